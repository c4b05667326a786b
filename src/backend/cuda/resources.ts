/**
 * What a cuda backend hands out besides states: tensors, weight matrices and tables, all in device memory. Parameters
 * and the residual are f32, activations and weights f16; a checkpoint's numbers are converted on the device. Knows
 * nothing of ops.
 */
import { assert, SkeinError } from '../../errors.ts'
import {
  isQuantised,
  type Matrix,
  type MatrixSource,
  type SourceType,
  type Table,
  type Tensor,
  type WeightType,
} from '../backend.ts'
import { f16ToNumber } from '../reference/tensors.ts'
import { NativeArena } from './arena.ts'
import type { CudaDevice } from './device.ts'
import { type DevicePointer, i64 } from './kernel-args.ts'

export type TensorType = 'f32' | 'f16'

export const SOURCE_BYTES: Readonly<Record<SourceType, number>> = { f32: 4, f16: 2, bf16: 2 }
/** Values of SOURCE in convert.cu and TABLE_TYPE in embed.cu. */
export const SOURCE_CODES: Readonly<Record<SourceType, number>> = { f32: 0, f16: 1, bf16: 2 }
/** Kernels load 8 halves at a time. */
const VECTOR = 8
/** Source bytes uploaded and converted at a time. */
const BLOCK_BYTES = 16 << 20

export class CudaTensor implements Tensor {
  readonly shape: readonly number[]
  readonly type: TensorType
  readonly address: DevicePointer
  readonly count: number

  /** Zeros unless `values` are given; those of an f16 tensor are rounded on the device. */
  constructor(
    device: CudaDevice,
    shape: readonly number[],
    type: TensorType,
    values?: Float32Array,
  ) {
    this.shape = shape
    this.type = type
    this.count = shape.reduce((a, b) => a * b, 1)
    assert(Number.isSafeInteger(this.count) && this.count > 0, `tensor shape [${shape}]`)
    this.address = device.alloc(this.bytes)
    assert(
      values === undefined || values.length === this.count,
      `${values?.length} values for a tensor [${shape}]`,
    )
    if (values === undefined) device.fill(this.address, 0, this.bytes)
    else if (type === 'f32') device.upload(this.address, values)
    else uploadHalves(device, this.address, values)
  }

  get bytes(): number {
    return this.count * (this.type === 'f32' ? 4 : 2)
  }
}

/** Rounds f32 values to f16 on their way to the device. */
export function uploadHalves(device: CudaDevice, to: DevicePointer, values: Float32Array): void {
  const scratch = device.alloc(values.byteLength)
  device.upload(scratch, values)
  convert(device, to, scratch, 'f32', values.length)
  device.free(scratch)
}

function convert(
  device: CudaDevice,
  to: DevicePointer,
  from: DevicePointer,
  type: SourceType,
  count: number,
): void {
  const kernel = device.kernel('convert', 'convert', { SOURCE: SOURCE_CODES[type] })
  const arena = new NativeArena()
  const args = device.args([to, from, i64(BigInt(count))], arena)
  device.launch(kernel, [Math.min(4096, Math.ceil(count / 256)), 1, 1], [256, 1, 1], 0, args)
  arena.dispose()
}

/** Numbers of a tensor on the host. */
export function downloadFloats(
  device: CudaDevice,
  from: DevicePointer,
  type: TensorType,
  start: number,
  count: number,
): Float32Array {
  if (count === 0) return new Float32Array(0)
  const size = type === 'f32' ? 4 : 2
  const { buffer } = device.download(from + BigInt(start * size), count * size)
  if (type === 'f32') return new Float32Array(buffer)
  return Float32Array.from(new Uint16Array(buffer), halfToNumber)
}

let halves: Float32Array | undefined

function halfToNumber(bits: number): number {
  halves ??= Float32Array.from({ length: 65536 }, (_, i) => f16ToNumber(i))
  return halves[bits]!
}

/** A weight matrix in f16, row-major as the checkpoint has it. */
export class CudaMatrix implements Matrix {
  readonly rows: number
  readonly columns: number
  readonly type = 'f16'
  readonly bytes: number
  readonly address: DevicePointer

  constructor(device: CudaDevice, source: MatrixSource, type: WeightType) {
    const { name, rows, columns, dtype } = source
    if (isQuantised(type))
      throw new SkeinError(
        'unsupported_parameter',
        'quantised weights are not implemented on cuda; use --quant file (fp16), or --device cpu',
      )
    if (columns % VECTOR !== 0 || rows % VECTOR !== 0)
      throw new SkeinError(
        'unsupported_weights',
        `${name} is ${rows}×${columns}; the cuda kernels need multiples of ${VECTOR}; use --device cpu`,
      )
    this.rows = rows
    this.columns = columns
    this.bytes = 2 * rows * columns
    this.address = device.alloc(this.bytes)
    if (dtype === 'f16') uploadRows(device, source, this.address)
    else convertRows(device, source, this.address)
  }
}

/** An embedding table as the checkpoint has it. */
export class CudaTable implements Table {
  readonly rows: number
  readonly columns: number
  readonly dtype: SourceType
  readonly bytes: number
  readonly address: DevicePointer

  constructor(device: CudaDevice, source: MatrixSource) {
    this.rows = source.rows
    this.columns = source.columns
    this.dtype = source.dtype
    this.bytes = source.rows * source.columns * SOURCE_BYTES[source.dtype]
    this.address = device.alloc(this.bytes)
    uploadRows(device, source, this.address)
  }
}

/** Uploads rows in their own type and makes them f16 on the device. */
function convertRows(device: CudaDevice, source: MatrixSource, to: DevicePointer): void {
  const { rows, columns, dtype } = source
  const rowBytes = columns * SOURCE_BYTES[dtype]
  const scratch = device.alloc(rowBytes * Math.min(rows, blockRows(rowBytes)))
  for (const [start, end, values] of readBlocks(source)) {
    device.upload(scratch, values)
    convert(device, to + BigInt(2 * start * columns), scratch, dtype, (end - start) * columns)
  }
  device.free(scratch)
}

function uploadRows(device: CudaDevice, source: MatrixSource, to: DevicePointer): void {
  const rowBytes = source.columns * SOURCE_BYTES[source.dtype]
  for (const [start, , values] of readBlocks(source)) device.upload(to, values, start * rowBytes)
}

function blockRows(rowBytes: number): number {
  return Math.max(1, Math.floor(BLOCK_BYTES / rowBytes))
}

/** The rows of a source in blocks, each checked for its length. */
function* readBlocks(source: MatrixSource): Generator<[start: number, end: number, Uint8Array]> {
  const { name, rows, columns, dtype } = source
  const rowBytes = columns * SOURCE_BYTES[dtype]
  const step = blockRows(rowBytes)
  for (let start = 0; start < rows; start += step) {
    const end = Math.min(start + step, rows)
    const values = source.readRows(start, end)
    if (values.length !== (end - start) * rowBytes)
      throw new SkeinError(
        'corrupt_weights',
        `${name}: rows ${start} to ${end} hold ${values.length} bytes, expected ${(end - start) * rowBytes}`,
      )
    yield [start, end, values]
  }
}
