/** Descriptions of matrices for the copy engine of capability 9.0 (CUtensorMap). Knows no kernel. */
import type { CudaDevice } from '../device/device.ts'
import type { DevicePointer } from '../kernel/args.ts'

export const TENSOR_MAP_BYTES = 128
const ALIGNMENT = 64n
/** CUtensorMapDataType and bytes of an element. */
const TYPES = { u8: [0, 1], f16: [6, 2] } as const
/** CUtensorMapSwizzle: 16 bytes of a row change places with others, so that those of eight rows lie in different banks. */
const SWIZZLES = { none: 0, rowsOf64: 2, rowsOf128: 3 } as const
/** What of the other enumerations of cuTensorMapEncodeTiled is wanted. */
const [NO_INTERLEAVE, PROMOTE_256B, ZEROS_BEYOND] = [0, 3, 0] as const

/** A matrix [rows, columns] and what of it a copy brings; zeros beyond its ends. */
interface TensorBoxes {
  readonly type: keyof typeof TYPES
  readonly address: DevicePointer
  readonly rows: number
  readonly columns: number
  readonly boxRows: number
  readonly boxColumns: number
  readonly swizzle: keyof typeof SWIZZLES
}

/** Takes native memory that goes with the device: to be made once, not for each launch. */
export function tensorMapOf(device: CudaDevice, boxes: TensorBoxes): Uint8Array {
  const { type, address, rows, columns, boxRows, boxColumns, swizzle } = boxes
  const [code, elementBytes] = TYPES[type]
  const { address: start, view } = device.arena.allocate(TENSOR_MAP_BYTES + Number(ALIGNMENT))
  const skipped = (ALIGNMENT - (start % ALIGNMENT)) % ALIGNMENT
  device.driver.call(
    'cuTensorMapEncodeTiled',
    start + skipped,
    code,
    2,
    address,
    new BigUint64Array([BigInt(columns), BigInt(rows)]),
    new BigUint64Array([BigInt(elementBytes * columns)]),
    new Uint32Array([boxColumns, boxRows]),
    new Uint32Array([1, 1]),
    NO_INTERLEAVE,
    SWIZZLES[swizzle],
    PROMOTE_256B,
    ZEROS_BEYOND,
  )
  const at = view.byteOffset + Number(skipped)
  return new Uint8Array(view.buffer, at, TENSOR_MAP_BYTES).slice()
}
