/**
 * A program that takes all memory of a GPU, and what becomes free later: node test/cuda/hog.mjs [number]. Prints a line
 * when it has it; ends with its standard input.
 */
import koffi from 'koffi'

const driver = koffi.load('libcuda.so.1')
const init = driver.func('int cuInit(uint flags)')
const deviceAt = driver.func('int cuDeviceGet(_Out_ int *device, int number)')
const createContext = driver.func('int cuCtxCreate_v2(_Out_ void **context, uint flags, int device)')
const memory = driver.func('int cuMemGetInfo_v2(_Out_ uint64 *free, _Out_ uint64 *all)')
const alloc = driver.func('int cuMemAlloc_v2(_Out_ uint64 *address, size_t bytes)')

const PAGE = 2 << 20
const [device, context] = [[0], [null]]
const codes = [init(0), deviceAt(device, Number(process.argv[2] ?? 0)), createContext(context, 0, device[0])]
if (codes.some((code) => code !== 0)) throw new Error(`no GPU: ${codes}`)

function take() {
  const [free, all] = [[0], [0]]
  memory(free, all)
  for (let bytes = Number(free[0]); bytes >= PAGE; ) {
    const failed = alloc([0], bytes) !== 0
    if (failed) bytes = Math.floor(bytes / 2 / PAGE) * PAGE
    else memory(free, all)
    if (!failed) bytes = Math.min(bytes, Number(free[0]))
  }
}

take()
process.stdout.write('it has everything\n')
setInterval(take, 5)
process.stdin.on('end', () => process.exit(0)).resume()
