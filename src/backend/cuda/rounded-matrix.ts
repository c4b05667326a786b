/**
 * Weight matrices of 8 and 4 bits in device memory, in the layout of quant.cuh: rounded there as they are loaded, or
 * taken as a file holds them, GGUF's blocks among them. Knows no product.
 */
import { SkeinError } from '../../errors.ts'
import { readPackedBlocks, readQuantisedBlocks } from '../source-rows.ts'
import type { MatrixSource, PackedType, QuantisedSource, QuantisedType, RoundedType } from '../weight-types.ts'
import type { CudaDevice } from './device/device.ts'
import { type DevicePointer, i32 } from './kernel/args.ts'
import { eachBlock, launchOnce, SOURCE_CODES } from './source-rows.ts'

/** Integers of 4 and 5 bits, with a minimum beside each scale or without, and of 6 with a scale for 16 inputs: GGUF's blocks alone. */
type BlockLayout = 'q4Minimum' | 'q5Minimum' | 'q5' | 'q6'
/** All of integers. */
export type IntegerLayout = QuantisedType | BlockLayout
/** How a matrix that is not f16 is held. */
export type Layout = RoundedType | BlockLayout

export function isBlockLayout(type: Layout | 'f16'): type is BlockLayout {
  return type === 'q4Minimum' || type === 'q5Minimum' || type === 'q5' || type === 'q6'
}

/** The layout of each type of blocks, and BLOCK of gguf-blocks.cuh. */
const BLOCKS: Readonly<Record<PackedType, { readonly layout: IntegerLayout; readonly code: number }>> = {
  Q4_0: { layout: 'q4', code: 1 },
  Q4_1: { layout: 'q4Minimum', code: 2 },
  Q5_0: { layout: 'q5', code: 3 },
  Q5_1: { layout: 'q5Minimum', code: 4 },
  Q8_0: { layout: 'i8', code: 5 },
  Q4_K: { layout: 'q4Minimum', code: 6 },
  Q5_K: { layout: 'q5Minimum', code: 7 },
  Q6_K: { layout: 'q6', code: 8 },
}

export function layoutOf(type: PackedType): IntegerLayout {
  return BLOCKS[type].layout
}

/** BLOCK of gguf-blocks.cuh. */
export function blockCode(type: PackedType): number {
  return BLOCKS[type].code
}

interface LayoutFacts {
  /** Value of QUANT in quant.cuh. */
  readonly code: number
  /** Inputs of a part of a row (quant.cuh). */
  readonly partInputs: number
  /** Inputs to an f16 beside the values: kGroup / kGroupScales. Of e4m3 there is none. */
  readonly scaleInputs: number
  /** Bytes of a part behind those that four lanes have each for itself, for all of them (quant.cuh). */
  readonly highBytes: number
}

export const LAYOUTS: Readonly<Record<Layout, LayoutFacts>> = {
  i8: { code: 1, partInputs: 64, scaleInputs: 32, highBytes: 0 },
  q4: { code: 2, partInputs: 128, scaleInputs: 32, highBytes: 0 },
  nf4: { code: 3, partInputs: 128, scaleInputs: 64, highBytes: 0 },
  fp8: { code: 4, partInputs: 64, scaleInputs: 0, highBytes: 0 },
  q4Minimum: { code: 5, partInputs: 128, scaleInputs: 16, highBytes: 0 },
  q5Minimum: { code: 6, partInputs: 128, scaleInputs: 16, highBytes: 16 },
  q6: { code: 7, partInputs: 128, scaleInputs: 16, highBytes: 32 },
  q5: { code: 8, partInputs: 128, scaleInputs: 32, highBytes: 16 },
}
/** Bytes of a part of integers that four lanes have each for itself. */
export const LANES_BYTES = 64
/** Columns must be a multiple of this. */
const COLUMNS = 32
/** Rows: what the library asks of e4m3, and of the copies in f16 of the others; tiles ask for multiples of 4. */
const ROWS = 8
const FP8_ROWS = 16
/** Compute capability from which there is arithmetic of e4m3. */
const FP8_CAPABILITY = [8, 9] as const
const THREADS = 256
/** Inputs of a thread that rounds or lays out: kThreadInputs of quantise.cu. */
const THREAD_INPUTS = 64

interface RoundedMatrix {
  readonly address: DevicePointer
  /** For integers f16 scales of groups; for fp8 f32 scales of rows. */
  readonly scales: DevicePointer
  readonly bytes: number
}

export function roundedMatrix(device: CudaDevice, source: MatrixSource, type: RoundedType): RoundedMatrix {
  checkShape(source, type)
  if (type === 'fp8') return fp8Matrix(device, source)
  const { quantised } = source
  return quantised?.type === type ? laidOut(device, source, quantised) : quantisedMatrix(device, source, type)
}

/** GGUF's blocks in the layout that has room for them. */
export function packedMatrix(device: CudaDevice, source: MatrixSource, type: PackedType): RoundedMatrix {
  const { columns } = source
  const { layout, code } = BLOCKS[type]
  checkShape(source, layout)
  const { at, ...matrix } = allocate(device, source, layout)
  const defines = { QUANT: LAYOUTS[layout].code, BLOCK: code }
  const kernel = device.kernel('lay-out-blocks', 'lay_out_blocks', defines)
  if (device.isAbsent) return matrix
  for (const [start, end, blocks] of readPackedBlocks(source, type)) {
    const { values, scales } = at(start)
    const from = device.alloc(blocks.length)
    device.upload(from, blocks)
    const args = [values, scales, from, i32(end - start), i32(columns)]
    launchOnce(device, kernel, blocksOf(end - start, columns, layout), args)
    device.free(from)
  }
  return matrix
}

function checkShape({ name, rows, columns }: MatrixSource, type: Layout): void {
  const multiple = type === 'fp8' ? FP8_ROWS : ROWS
  if (columns % COLUMNS === 0 && rows % multiple === 0) return
  throw new SkeinError(
    'unsupported_weights',
    `${name} is ${rows}×${columns}; in ${type} the cuda kernels need multiples of ${multiple}×${COLUMNS}; use --quant f16, or --device cpu`,
  )
}

/** Bytes of a row's values and scales: whole parts of both. */
export function rowBytesOf(type: Layout, columns: number) {
  // e4m3 has no groups: a scale a row, which lies apart.
  if (type === 'fp8') return { values: columns, scales: 0 }
  const { partInputs, scaleInputs, highBytes } = LAYOUTS[type]
  const parts = Math.ceil(columns / partInputs)
  return { values: (LANES_BYTES + highBytes) * parts, scales: (2 * parts * partInputs) / scaleInputs }
}

function allocate(device: CudaDevice, { rows, columns }: MatrixSource, type: IntegerLayout) {
  const { values: rowBytes, scales: rowScaleBytes } = rowBytesOf(type, columns)
  const address = device.alloc(rows * rowBytes)
  const scales = device.alloc(rows * rowScaleBytes)
  // Padding behind a row's last input is read and multiplied with zeros.
  device.fill(address, 0, rows * rowBytes)
  device.fill(scales, 0, rows * rowScaleBytes)
  const at = (row: number) => ({
    values: address + BigInt(row * rowBytes),
    scales: scales + BigInt(row * rowScaleBytes),
  })
  return { address, scales, bytes: rows * (rowBytes + rowScaleBytes), at }
}

function blocksOf(rows: number, columns: number, type: IntegerLayout): number {
  const { highBytes, partInputs } = LAYOUTS[type]
  const threadInputs = highBytes > 0 ? partInputs : THREAD_INPUTS
  return Math.ceil((rows * Math.ceil(columns / threadInputs)) / THREADS)
}

function quantisedMatrix(device: CudaDevice, source: MatrixSource, type: QuantisedType): RoundedMatrix {
  const { columns, dtype } = source
  const { at, ...matrix } = allocate(device, source, type)
  const defines = { QUANT: LAYOUTS[type].code, SOURCE: SOURCE_CODES[dtype] }
  const kernel = device.kernel('quantise', 'quantise', defines)
  eachBlock(device, source, (block, start, end) => {
    const { values, scales } = at(start)
    const args = [values, scales, block, i32(end - start), i32(columns)]
    launchOnce(device, kernel, blocksOf(end - start, columns, type), args)
  })
  return matrix
}

/** Weights that a file holds rounded only change their layout. */
function laidOut(device: CudaDevice, source: MatrixSource, quantised: QuantisedSource): RoundedMatrix {
  const { columns } = source
  const { type } = quantised
  const { at, ...matrix } = allocate(device, source, type)
  const kernel = device.kernel('quantise', 'lay_out', { QUANT: LAYOUTS[type].code, SOURCE: 0 })
  if (device.isAbsent) return matrix
  for (const [start, end, block] of readQuantisedBlocks(source, quantised, columns)) {
    const { values, scales } = at(start)
    const [codes, bits] = [device.alloc(block.values.length), device.alloc(block.scales.length)]
    device.upload(codes, block.values)
    device.upload(bits, block.scales)
    const args = [values, scales, codes, bits, i32(end - start), i32(columns)]
    launchOnce(device, kernel, blocksOf(end - start, columns, type), args)
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
  if (major > FP8_CAPABILITY[0] || (major === FP8_CAPABILITY[0] && minor >= FP8_CAPABILITY[1])) return
  throw new SkeinError(
    'unsupported_parameter',
    `--quant fp8 needs a GPU of compute capability ${FP8_CAPABILITY.join('.')} or later; ${name} has ${major}.${minor}; int8 takes as little memory`,
    { param: 'quant' },
  )
}
