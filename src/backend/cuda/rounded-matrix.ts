/**
 * Weight matrices of 8 and 4 bits in device memory, in the layout of quant.cuh: rounded there as they are loaded, or
 * taken as a file holds them. Knows no product.
 */
import { SkeinError } from '../../errors.ts'
import { numScales, SCALE_INPUTS, valueBytes } from '../quantised.ts'
import { checkBytes, rowBlocks } from '../source-rows.ts'
import type { MatrixSource, QuantisedSource, QuantisedType, RoundedType } from '../weight-types.ts'
import type { CudaDevice } from './device/device.ts'
import { type DevicePointer, i32 } from './kernel/args.ts'
import { eachBlock, launchOnce, SOURCE_CODES } from './source-rows.ts'

/** Values of QUANT in quant.cuh. */
export const QUANT_CODES: Readonly<Record<RoundedType, number>> = { i8: 1, q4: 2, nf4: 3, fp8: 4 }
/** Inputs and bytes of a part of a row, of integers (quant.cuh). */
export const PART_INPUTS: Readonly<Record<RoundedType, number>> = {
  i8: 64,
  q4: 128,
  nf4: 128,
  fp8: 64,
}
export const PART_BYTES = 64
/** What columns have to be multiples of. */
const COLUMNS = 32
/** Rows: what the library asks of e4m3, and of the copies in f16 of the others; tiles ask for multiples of 4. */
const ROWS: Readonly<Record<RoundedType, number>> = { i8: 8, q4: 8, nf4: 8, fp8: 16 }
/** Compute capability from which there is arithmetic of e4m3. */
const FP8_CAPABILITY = [8, 9] as const
const THREADS = 256
/** Inputs of a thread that rounds or lays out: kThreadInputs of quantise.cu. */
const THREAD_INPUTS = 64

interface RoundedMatrix {
  readonly address: DevicePointer
  /** Of integers f16, of groups; of fp8 f32, of rows. */
  readonly scales: DevicePointer
  readonly bytes: number
}

export function roundedMatrix(
  device: CudaDevice,
  source: MatrixSource,
  type: RoundedType,
): RoundedMatrix {
  const { name, rows, columns } = source
  if (columns % COLUMNS !== 0 || rows % ROWS[type] !== 0)
    throw new SkeinError(
      'unsupported_weights',
      `${name} is ${rows}×${columns}; in ${type} the cuda kernels need multiples of ${ROWS[type]}×${COLUMNS}; use --quant f16, or --device cpu`,
    )
  if (type === 'fp8') return fp8Matrix(device, source)
  const { quantised } = source
  return quantised?.type === type
    ? laidOut(device, source, quantised)
    : quantisedMatrix(device, source, type)
}

/** Bytes of a row's values and scales: whole parts of both. */
export function rowBytesOf(type: QuantisedType, columns: number) {
  const parts = Math.ceil(columns / PART_INPUTS[type])
  return {
    values: PART_BYTES * parts,
    scales: (2 * parts * PART_INPUTS[type]) / SCALE_INPUTS[type],
  }
}

function allocate(device: CudaDevice, { rows, columns }: MatrixSource, type: QuantisedType) {
  const { values: rowBytes, scales: rowScaleBytes } = rowBytesOf(type, columns)
  const address = device.alloc(rows * rowBytes)
  const scales = device.alloc(rows * rowScaleBytes)
  // What lies between a row's last input and the end of its part is read, and multiplied with zeros.
  device.fill(address, 0, rows * rowBytes)
  device.fill(scales, 0, rows * rowScaleBytes)
  const at = (row: number) => ({
    values: address + BigInt(row * rowBytes),
    scales: scales + BigInt(row * rowScaleBytes),
  })
  return { address, scales, bytes: rows * (rowBytes + rowScaleBytes), at }
}

function blocksOf(rows: number, columns: number): number {
  return Math.ceil((rows * Math.ceil(columns / THREAD_INPUTS)) / THREADS)
}

function quantisedMatrix(
  device: CudaDevice,
  source: MatrixSource,
  type: QuantisedType,
): RoundedMatrix {
  const { columns, dtype } = source
  const { at, ...matrix } = allocate(device, source, type)
  const defines = { QUANT: QUANT_CODES[type], SOURCE: SOURCE_CODES[dtype] }
  const kernel = device.kernel('quantise', 'quantise', defines)
  eachBlock(device, source, (block, start, end) => {
    const { values, scales } = at(start)
    const args = [values, scales, block, i32(end - start), i32(columns)]
    launchOnce(device, kernel, blocksOf(end - start, columns), args)
  })
  return matrix
}

/** What a file holds rounded is only laid out anew. */
function laidOut(
  device: CudaDevice,
  source: MatrixSource,
  { type, readRows }: QuantisedSource,
): RoundedMatrix {
  const { rows, columns } = source
  const { at, ...matrix } = allocate(device, source, type)
  const kernel = device.kernel('quantise', 'lay_out', { QUANT: QUANT_CODES[type], SOURCE: 0 })
  if (device.isAbsent) return matrix
  const rowScales = numScales(type, columns)
  for (const [start, end] of rowBlocks(rows, columns)) {
    const block = readRows(start, end)
    checkBytes(source, start, end, block.values, valueBytes(type, columns))
    checkBytes(source, start, end, block.scales, 2 * rowScales)
    const { values, scales } = at(start)
    const [codes, bits] = [device.alloc(block.values.length), device.alloc(block.scales.length)]
    device.upload(codes, block.values)
    device.upload(bits, block.scales)
    const args = [values, scales, codes, bits, i32(end - start), i32(columns)]
    launchOnce(device, kernel, blocksOf(end - start, columns), args)
    device.free(codes)
    device.free(bits)
  }
  return matrix
}

function fp8Matrix(device: CudaDevice, source: MatrixSource): RoundedMatrix {
  const { rows, columns, dtype } = source
  requireFp8(device)
  const address = device.alloc(rows * columns)
  const scales = device.alloc(4 * rows)
  const kernel = device.kernel('fp8', 'round_weights', { SOURCE: SOURCE_CODES[dtype] })
  eachBlock(device, source, (block, start, end) => {
    const to = address + BigInt(start * columns)
    const args = [to, scales + BigInt(4 * start), block, i32(columns / 4)]
    launchOnce(device, kernel, end - start, args)
  })
  return { address, scales, bytes: rows * (columns + 4) }
}

function requireFp8({ name, computeCapability: [major, minor] }: CudaDevice): void {
  if (major > FP8_CAPABILITY[0] || (major === FP8_CAPABILITY[0] && minor >= FP8_CAPABILITY[1]))
    return
  throw new SkeinError(
    'unsupported_parameter',
    `--quant fp8 needs a GPU of compute capability ${FP8_CAPABILITY.join('.')} or later; ${name} has ${major}.${minor}; int8 takes as little memory`,
    { param: 'quant' },
  )
}
