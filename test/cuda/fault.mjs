/**
 * Makes a process fail on its GPU: `NODE_OPTIONS="--import …/fault.mjs"`, then SIGUSR2. A kernel writes to an invalid
 * address, which ends the CUDA context for the whole process.
 */
import { isMainThread } from 'node:worker_threads'
import koffi from 'koffi'

const PTX = `.version 7.0
.target sm_50
.address_size 64
.visible .entry fault() { .reg .u64 %a; .reg .u32 %b; mov.u64 %a, 16; mov.u32 %b, 1; st.global.u32 [%a], %b; ret; }`

if (isMainThread) process.on('SIGUSR2', fail)

function fail() {
  const driver = koffi.load('libcuda.so.1')
  const load = driver.func('int cuModuleLoadData(_Out_ void **module, const char *image)')
  const find = driver.func('int cuModuleGetFunction(_Out_ void **kernel, void *module, const char *name)')
  const launch = driver.func(
    'int cuLaunchKernel(void *, uint, uint, uint, uint, uint, uint, uint, void *, void **, void **)',
  )
  const [module, kernel] = [[null], [null]]
  const codes = [load(module, PTX), find(kernel, module[0], 'fault')]
  codes.push(launch(kernel[0], 1, 1, 1, 1, 1, 1, 0, null, null, null))
  process.stderr.write(`fault: ${codes}\n`)
}
