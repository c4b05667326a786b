/** What the device can do at best: the two rates that every figure is held against. Knows no model. */
import type { CudaDevice } from './device.ts'
import type { Gemm } from './gemm.ts'

export interface DeviceSpeed {
  /** Copy within device memory, bytes read and written together. */
  readonly copyBytesPerSecond: number
  /** f16 product of 8192³, random numbers, f32 sums. */
  readonly matrixFlopsPerSecond: number
}

const COPY_BYTES = 2 ** 30
const SIDE = 8192
const REPEATS = 10
/** f16 between 0.5 and 1 with either sign; zeros multiply faster. */
const RANDOM_BLOCK = Uint16Array.from({ length: 1 << 20 }, (_, i) => {
  const mixed = Math.imul(i + 1, 0x9e37_79b1) >>> 16
  return (mixed & 0x83ff) | 0x3800
})

/** Takes about 2 GiB for a moment and a tenth of a second. */
export function measureSpeed(device: CudaDevice, gemm: Gemm): DeviceSpeed {
  const [from, to] = [device.alloc(COPY_BYTES), device.alloc(COPY_BYTES)]
  try {
    device.upload(from, RANDOM_BLOCK)
    for (let done = RANDOM_BLOCK.byteLength; done < COPY_BYTES; done *= 2)
      device.copy(from + BigInt(done), from, done)
    const copy = device.time(() => device.copy(to, from, COPY_BYTES), REPEATS)
    const matrixBytes = BigInt(2 * SIDE * SIDE)
    const product = { m: SIDE, n: SIDE, k: SIDE, outType: 'f16' } as const
    const matrix = device.time(
      () => gemm.run({ ...product, w: from, x: from + matrixBytes, y: to }),
      REPEATS,
    )
    return {
      copyBytesPerSecond: (2 * COPY_BYTES) / (copy / 1e6),
      matrixFlopsPerSecond: (2 * SIDE ** 3) / (matrix / 1e6),
    }
  } finally {
    device.free(from)
    device.free(to)
  }
}
