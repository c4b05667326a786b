/**
 * What a cuda backend hands out besides states: tensors, weight matrices and tables, in device memory but for host tables. Parameters
 * and the residual are f32, activations and weights f16; a checkpoint's numbers are converted on the device. Knows
 * nothing of ops.
 */
import { assert, SkeinError } from '../../errors.ts'
import type { HostTable, Matrix, Table, Tensor } from '../backend.ts'
import { doneFlight, type Flight } from '../flight.ts'
import { decodeFloats } from '../half.ts'
import { packedRowBytes } from '../quantised.ts'
import { readBlocks, readPackedBlocks, SOURCE_BYTES } from '../source-rows.ts'
import {
  isPacked,
  isRounded,
  type MatrixSource,
  type PackedType,
  type RoundedType,
  type SourceType,
  type WeightType,
} from '../weight-types.ts'
import type { CudaDevice } from './device/device.ts'
import type { Downloads } from './device/downloads.ts'
import { type DevicePointer, i64 } from './kernel/args.ts'
import { type Layout, layoutOf, packedMatrix, roundedMatrix } from './rounded-matrix.ts'
import { eachBlock, launchOnce, SOURCE_CODES, transpose } from './source-rows.ts'

export type TensorType = 'f32' | 'f16'

/** Kernels load 8 halves at a time. */
const VECTOR = 8

export class CudaTensor implements Tensor {
  readonly shape: readonly number[]
  readonly type: TensorType
  readonly address: DevicePointer
  readonly count: number

  /** Zeros unless `values` are given; those of an f16 tensor are rounded on the device. */
  constructor(device: CudaDevice, shape: readonly number[], type: TensorType, values?: Float32Array) {
    this.shape = shape
    this.type = type
    this.count = shape.reduce((a, b) => a * b, 1)
    assert(Number.isSafeInteger(this.count) && this.count > 0, `tensor shape [${shape}]`)
    this.address = device.alloc(this.bytes)
    assert(values === undefined || values.length === this.count, `${values?.length} values for a tensor [${shape}]`)
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

/** Rounds numbers of a checkpoint to f16, on the device. */
export function convert(
  device: CudaDevice,
  to: DevicePointer,
  from: DevicePointer,
  type: SourceType,
  count: number,
): void {
  const kernel = device.kernel('convert', 'convert', { SOURCE: SOURCE_CODES[type] })
  const blocks = Math.min(4096, Math.ceil(count / 256))
  launchOnce(device, kernel, blocks, [to, from, i64(BigInt(count))])
}

/** f16 to f32, on the device. */
export function widen(device: CudaDevice, to: DevicePointer, from: DevicePointer, count: number): void {
  const kernel = device.kernel('convert', 'widen', { SOURCE: SOURCE_CODES.f16 })
  const blocks = Math.min(4096, Math.ceil(count / 256))
  launchOnce(device, kernel, blocks, [to, from, i64(BigInt(count))])
}

/** Numbers of a tensor on their way to the host. */
export function downloadFloats(
  downloads: Downloads,
  { address, type }: CudaTensor,
  start: number,
  count: number,
): Flight<Float32Array> {
  if (count === 0) return doneFlight(new Float32Array(0))
  const size = type === 'f32' ? 4 : 2
  const bytes = downloads.start(address + BigInt(start * size), count * size)
  let floats: Float32Array | null = null
  return {
    get isDone() {
      return bytes.isDone
    },
    result() {
      const data = bytes.result()
      floats ??= type === 'f32' ? new Float32Array(data.buffer) : decodeFloats(data, type)
      return floats
    },
  }
}

/** A weight matrix: f16, row-major as the checkpoint has it, or rounded to fewer bits (rounded-matrix.ts). */
export class CudaMatrix implements Matrix {
  readonly rows: number
  readonly columns: number
  readonly type: 'f16' | RoundedType | PackedType
  readonly layout: 'f16' | Layout
  readonly bytes: number
  readonly address: DevicePointer
  /** Null for f16. */
  readonly scales: DevicePointer | null

  constructor(device: CudaDevice, source: MatrixSource, type: WeightType) {
    const { rows, columns } = source
    this.rows = rows
    this.columns = columns
    this.type = isPacked(type) || isRounded(type) ? type : 'f16'
    this.layout = isPacked(this.type) ? layoutOf(this.type) : this.type
    const held = isPacked(type)
      ? packedMatrix(device, source, type)
      : isRounded(type)
        ? roundedMatrix(device, source, type)
        : { ...halfMatrix(device, source), scales: null }
    this.address = held.address
    this.scales = held.scales
    this.bytes = held.bytes
  }
}

/** Where a matrix is, and what it is. */
export type HeldMatrix = Pick<CudaMatrix, 'rows' | 'columns' | 'layout' | 'address' | 'scales'>

function halfMatrix(
  device: CudaDevice,
  source: MatrixSource,
): { readonly address: DevicePointer; readonly bytes: number } {
  const { name, rows, columns, dtype, turned } = source
  if (turned !== undefined) {
    const stored = halfMatrix(device, turned)
    const address = transpose(device, stored.address, turned.rows, turned.columns)
    device.free(stored.address)
    return { address, bytes: stored.bytes }
  }
  if (columns % VECTOR !== 0 || rows % VECTOR !== 0)
    throw new SkeinError(
      'unsupported_weights',
      `${name} is ${rows}×${columns}; the cuda kernels need multiples of ${VECTOR}; use --device cpu`,
    )
  const bytes = 2 * rows * columns
  const address = device.alloc(bytes)
  if (dtype === 'f16') uploadRows(device, readBlocks(source), address, 2 * columns)
  else
    eachBlock(device, source, (block, start, end) => {
      const to = address + BigInt(2 * start * columns)
      convert(device, to, block, dtype, (end - start) * columns)
    })
  return { address, bytes }
}

/** An embedding table as the checkpoint has it. */
export class CudaTable implements Table {
  readonly rows: number
  readonly columns: number
  readonly type: SourceType | PackedType
  readonly bytes: number
  readonly address: DevicePointer

  constructor(device: CudaDevice, source: MatrixSource) {
    const { rows, columns, dtype, packed } = source
    this.rows = rows
    this.columns = columns
    this.type = packed?.type ?? dtype
    const rowBytes = packed ? packedRowBytes(packed.type, columns) : columns * SOURCE_BYTES[dtype]
    this.bytes = rows * rowBytes
    this.address = device.alloc(this.bytes)
    const blocks = packed ? readPackedBlocks(source, packed.type) : readBlocks(source)
    uploadRows(device, blocks, this.address, rowBytes)
  }
}

/** A table in page-locked memory of the host, as the checkpoint has it: kernels read the rows that they need over the bus. */
export class CudaHostTable implements HostTable {
  readonly rows: number
  readonly columns: number
  readonly type: SourceType
  readonly address: DevicePointer

  constructor(device: CudaDevice, source: MatrixSource) {
    const { rows, columns, dtype } = source
    this.rows = rows
    this.columns = columns
    this.type = dtype
    const rowBytes = columns * SOURCE_BYTES[dtype]
    if (device.isAbsent) {
      this.address = 0n
      return
    }
    const memory = device.pinned(rows * rowBytes)
    const bytes = new Uint8Array(memory.buffer)
    for (const [start, , values] of readBlocks(source)) bytes.set(values, start * rowBytes)
    this.address = memory.address
  }
}

function uploadRows(
  device: CudaDevice,
  blocks: ReturnType<typeof readBlocks>,
  to: DevicePointer,
  rowBytes: number,
): void {
  if (device.isAbsent) return
  for (const [start, , values] of blocks) device.upload(to, values, start * rowBytes)
}
