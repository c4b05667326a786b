/** Descriptions of matrices for the copy engine of capability 9.0 (CUtensorMap). Knows no kernel. */
import type { CudaDevice } from './device.ts'
import type { DevicePointer } from './kernel-args.ts'

export const TENSOR_MAP_BYTES = 128
const ALIGNMENT = 64n
/** What the swizzle takes as a row. */
const BOX_BYTES = 128
/** CUtensorMapDataType, and what of the other enumerations of cuTensorMapEncodeTiled is wanted. */
const FLOAT16 = 6
const [NO_INTERLEAVE, SWIZZLE_128B, PROMOTE_256B, ZEROS_BEYOND] = [0, 3, 3, 0] as const

/** An f16 matrix [rows, columns], and boxes of `boxRows` rows of 128 bytes, swizzled; zeros beyond its ends. */
export function tensorMapOf(
  device: CudaDevice,
  address: DevicePointer,
  rows: number,
  columns: number,
  boxRows: number,
): Uint8Array {
  const { address: start, view } = device.arena.allocate(TENSOR_MAP_BYTES + Number(ALIGNMENT))
  const skipped = (ALIGNMENT - (start % ALIGNMENT)) % ALIGNMENT
  device.driver.call(
    'cuTensorMapEncodeTiled',
    start + skipped,
    FLOAT16,
    2,
    address,
    new BigUint64Array([BigInt(columns), BigInt(rows)]),
    new BigUint64Array([BigInt(2 * columns)]),
    new Uint32Array([BOX_BYTES / 2, boxRows]),
    new Uint32Array([1, 1]),
    NO_INTERLEAVE,
    SWIZZLE_128B,
    PROMOTE_256B,
    ZEROS_BEYOND,
  )
  const at = view.byteOffset + Number(skipped)
  return new Uint8Array(view.buffer, at, TENSOR_MAP_BYTES).slice()
}
