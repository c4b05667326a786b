/** The best rates of the device, and what it costs to reach them: the bounds for measured figures. */
import type { CudaDevice } from './device/device.ts'
import type { Gemm } from './gemm/gemm.ts'
import { i32 } from './kernel/args.ts'

export interface DeviceSpeed {
  /** Copy within device memory, bytes read and written together. */
  readonly copyBytesPerSecond: number
  /** f16 product of 8192³, random numbers, f32 sums. */
  readonly matrixFlopsPerSecond: number
  /** From ordinary host memory, through the page-locked staging. */
  readonly uploadBytesPerSecond: number
  /** Host time of one launch outside a graph. */
  readonly launchMicroseconds: number
  /** Device time of one kernel that does nothing, within a graph of them. */
  readonly graphKernelMicroseconds: number
}

const COPY_BYTES = 2 ** 30
const UPLOAD_BYTES = 2 ** 28
const SIDE = 8192
const REPEATS = 10
const LAUNCHES = 1000
/** f16 between 0.5 and 1 with either sign; zeros multiply faster. */
const RANDOM_HALVES = 2 ** 20

/** Takes about 2 GiB for a moment and half a second. */
export function measureSpeed(device: CudaDevice, gemm: Gemm): DeviceSpeed {
  const [from, to] = [device.alloc(COPY_BYTES), device.alloc(COPY_BYTES)]
  try {
    const uploadBytesPerSecond = uploadSpeed(device, from)
    const block = randomHalves()
    device.upload(from, block)
    for (let done = block.byteLength; done < COPY_BYTES; done *= 2) device.copy(from + BigInt(done), from, done)
    const copy = device.time(() => device.copy(to, from, COPY_BYTES), REPEATS)
    const matrixBytes = BigInt(2 * SIDE * SIDE)
    const product = { m: SIDE, n: SIDE, k: SIDE, outType: 'f16' } as const
    const multiply = () => gemm.run({ ...product, w: from, x: from + matrixBytes, y: to })
    const matrix = device.time(multiply, REPEATS)
    return {
      copyBytesPerSecond: (2 * COPY_BYTES) / (copy / 1e6),
      matrixFlopsPerSecond: (2 * SIDE ** 3) / (matrix / 1e6),
      uploadBytesPerSecond,
      ...launchCosts(device, to),
    }
  } finally {
    device.free(from)
    device.free(to)
  }
}

function randomHalves(): Uint16Array {
  return Uint16Array.from({ length: RANDOM_HALVES }, (_, i) => {
    const mixed = Math.imul(i + 1, 0x9e37_79b1) >>> 16
    return (mixed & 0x83ff) | 0x3800
  })
}

/** The second of two, when the staging exists and the source is in memory. */
function uploadSpeed(device: CudaDevice, to: bigint): number {
  const source = new Uint8Array(UPLOAD_BYTES)
  const run = () => {
    const start = performance.now()
    device.upload(to, source)
    device.synchronize()
    return UPLOAD_BYTES / ((performance.now() - start) / 1000)
  }
  run()
  return run()
}

function launchCosts(device: CudaDevice, anywhere: bigint) {
  // Without tokens to mark the kernel does nothing.
  const kernel = device.kernel('penalties', 'mark_prompt')
  const args = device.args([anywhere, anywhere, i32(0), i32(0)])
  const launchAll = () => {
    for (let i = 0; i < LAUNCHES; i++) device.launch(kernel, [1, 1, 1], [256, 1, 1], 0, args)
  }
  launchAll()
  device.synchronize()
  const start = performance.now()
  launchAll()
  const launchMicroseconds = (1000 * (performance.now() - start)) / LAUNCHES
  const graph = device.capture(launchAll, 'launches')
  const graphMicroseconds = device.time(() => graph.launch(), REPEATS)
  graph.dispose()
  return { launchMicroseconds, graphKernelMicroseconds: graphMicroseconds / LAUNCHES }
}
