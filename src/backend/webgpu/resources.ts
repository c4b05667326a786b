/**
 * What a webgpu backend hands out: tensors in the device's arena, and matrices and tables in slabs of memory. A matrix that
 * exceeds what can be bound is held as several ranges of rows. Knows nothing of ops.
 */
/// <reference types="@webgpu/types" />
import { assert, SkeinError } from '../../errors.ts'
import {
  isPacked,
  isQuantised,
  type Matrix,
  type MatrixSource,
  type PackedType,
  type QuantisedRows,
  type QuantisedType,
  type SourceType,
  type Table,
  type Tensor,
  type WeightType,
} from '../backend.ts'
import { numScales, refuseFp8, valueBytes } from '../quantised.ts'
import { quantiseRows } from '../reference/quantise.ts'
import { checkBytes, readBlocks, rowBlocks, SOURCE_BYTES } from '../source-rows.ts'
import { narrowRows, widenRows } from './convert.ts'
import { USAGE, type WebgpuDevice } from './device.ts'

export type HeldType = Exclude<WeightType, 'fp8' | PackedType>

/** Weights that a lane of linear.wgsl takes at a time: rows are padded to whole chunks. */
export const CHUNK: Readonly<Record<HeldType, number>> = {
  f32: 8,
  f16: 8,
  bf16: 8,
  i8: 32,
  q4: 32,
  nf4: 32,
}

export class WebgpuTensor implements Tensor {
  readonly shape: readonly number[]
  readonly count: number
  /** Index of its first number in the arena. f32 [shape] */
  readonly start: number

  constructor(device: WebgpuDevice, shape: readonly number[], values?: Float32Array) {
    this.shape = shape
    this.count = shape.reduce((a, b) => a * b, 1)
    assert(Number.isSafeInteger(this.count) && this.count > 0, `tensor shape [${shape}]`)
    this.start = device.allocate(this.count)
    if (values === undefined) return
    assert(values.length === this.count, `${values.length} values for a tensor [${shape}]`)
    device.write(device.arena, 4 * this.start, values)
  }
}

/** Part of a slab. */
interface Place {
  readonly buffer: GPUBuffer
  readonly offset: number
}

const SLAB_BYTES = 64 << 20
/** Weights begin at multiples of so many bytes. */
const UNIT = 256

/** Memory for weights: matrices used together mostly share a buffer, so that one launch can take several. */
export class Slabs {
  readonly #device: WebgpuDevice
  #current: { readonly buffer: GPUBuffer; used: number } | null = null

  constructor(device: WebgpuDevice) {
    this.#device = device
  }

  /** The least that a slab can be asked for at once. */
  get maxBytes(): number {
    return this.#device.maxBinding
  }

  place(bytes: number): Place {
    this.#device.check()
    let slab = this.#current
    if (slab === null || slab.used + bytes > slab.buffer.size) {
      const size = Math.max(bytes, Math.min(SLAB_BYTES, this.maxBytes))
      slab = { buffer: this.#device.buffer(size, USAGE.storage | USAGE.copyDst), used: 0 }
      this.#current = slab
    }
    const offset = slab.used
    slab.used = Math.ceil((offset + bytes) / UNIT) * UNIT
    return { buffer: slab.buffer, offset }
  }
}

/** Rows [first, first + rows) of a matrix or table. */
export interface Part {
  readonly first: number
  readonly rows: number
  readonly buffer: GPUBuffer
  /** Of the values, in bytes; the scales of rounded weights are in the same buffer. */
  readonly values: number
  readonly scales: number
}

export class WebgpuMatrix implements Matrix {
  readonly rows: number
  readonly columns: number
  readonly type: HeldType
  readonly bytes: number
  readonly parts: readonly Part[]

  constructor(device: WebgpuDevice, slabs: Slabs, source: MatrixSource, wanted: WeightType) {
    if (wanted === 'fp8') refuseFp8()
    // There are no kernels for packed weights: the numbers of the file, rounded to f16.
    const type = isPacked(wanted) ? 'f16' : wanted
    const { rows, columns } = source
    this.rows = rows
    this.columns = columns
    this.type = type
    const rowBytes = (this.chunks * CHUNK[type] * BITS[type]) / 8
    const scaleBytes = isQuantised(type) ? 2 * paddedScales(type, this.chunks) : 0
    this.parts = placeRows(slabs, rows, rowBytes, scaleBytes)
    this.bytes = rows * (rowBytes + scaleBytes)
    for (const [start, end, values, scales] of packedRows(source, type, this.chunks)) {
      for (const part of this.parts) {
        const [from, to] = [Math.max(start, part.first), Math.min(end, part.first + part.rows)]
        if (from >= to) continue
        const at = from - part.first
        const cut = (bytes: Uint8Array, row: number) =>
          bytes.subarray((from - start) * row, (to - start) * row)
        writeBytes(device, part.buffer, part.values + at * rowBytes, cut(values, rowBytes))
        if (scaleBytes > 0)
          writeBytes(device, part.buffer, part.scales + at * scaleBytes, cut(scales, scaleBytes))
      }
    }
  }

  /** Of a row. */
  get chunks(): number {
    return Math.ceil(this.columns / CHUNK[this.type])
  }
}

/** Of a value. */
const BITS: Readonly<Record<HeldType, number>> = {
  f32: 32,
  f16: 16,
  bf16: 16,
  i8: 8,
  q4: 4,
  nf4: 4,
}
/** Rows of which the ends of parts are multiples: no write begins amid a word. */
const PART_ROWS = 8

function placeRows(slabs: Slabs, rows: number, rowBytes: number, scaleBytes: number): Part[] {
  const fitting = Math.floor((slabs.maxBytes - UNIT) / (rowBytes + scaleBytes))
  const step = Math.floor(fitting / PART_ROWS) * PART_ROWS
  assert(step > 0, `rows of ${rowBytes} bytes beyond what can be bound`)
  const parts: Part[] = []
  for (let first = 0; first < rows; first += step) {
    const count = Math.min(step, rows - first)
    const valueEnd = Math.ceil((count * rowBytes) / UNIT) * UNIT
    const { buffer, offset } = slabs.place(valueEnd + count * scaleBytes)
    parts.push({ first, rows: count, buffer, values: offset, scales: offset + valueEnd })
  }
  return parts
}

/** Scales of a row, with those of its padding. */
function paddedScales(type: QuantisedType, chunks: number): number {
  return type === 'nf4' ? Math.ceil(chunks / 2) : chunks
}

/** Writes are of whole words; what pads the last one is behind it, or is written next. */
function writeBytes(device: WebgpuDevice, buffer: GPUBuffer, offset: number, bytes: Uint8Array) {
  const even = bytes.length % 4 === 0 ? bytes : padded(bytes, 4)
  assert(offset % 4 === 0, 'a block of weights begins amid a word')
  device.write(buffer, offset, even)
}

function padded(bytes: Uint8Array, unit: number): Uint8Array {
  const whole = new Uint8Array(Math.ceil(bytes.length / unit) * unit)
  whole.set(bytes)
  return whole
}

type Packed = [start: number, end: number, values: Uint8Array, scales: Uint8Array]

/** The rows of a source as the device holds them, in blocks. */
function* packedRows(source: MatrixSource, type: HeldType, chunks: number): Generator<Packed> {
  const width = chunks * CHUNK[type]
  if (!isQuantised(type)) {
    for (const [start, end, bytes] of readBlocks(source, PART_ROWS)) {
      const held = narrowRows(bytes, source, type, end - start)
      yield [start, end, widenRows(held, end - start, (BITS[type] * width) / 8), NOTHING]
    }
    return
  }
  const scaleBytes = 2 * paddedScales(type, chunks)
  for (const [start, end, { values, scales }] of quantisedRows(source, type)) {
    const rows = end - start
    const rowBytes = (BITS[type] * width) / 8
    yield [start, end, widenRows(values, rows, rowBytes), widenRows(scales, rows, scaleBytes)]
  }
}

const NOTHING = new Uint8Array(0)

/** Rows that the file holds rounded already, or rounded here. */
function* quantisedRows(
  source: MatrixSource,
  type: QuantisedType,
): Generator<[start: number, end: number, rows: QuantisedRows]> {
  const { rows, columns, quantised } = source
  if (quantised?.type === type) {
    for (const [start, end] of rowBlocks(rows, columns, PART_ROWS)) {
      const held = quantised.readRows(start, end)
      checkBytes(source, start, end, held.values, valueBytes(type, columns))
      checkBytes(source, start, end, held.scales, 2 * numScales(type, columns))
      yield [start, end, held]
    }
    return
  }
  for (const [start, end, bytes] of readBlocks(source, PART_ROWS)) {
    const floats = narrowRows(bytes, source, 'f32', end - start)
    const { buffer, byteOffset, byteLength } = floats
    yield [
      start,
      end,
      quantiseRows(type, new Float32Array(buffer, byteOffset, byteLength / 4), columns),
    ]
  }
}

export class WebgpuTable implements Table {
  readonly rows: number
  readonly columns: number
  readonly bytes: number
  readonly type: SourceType
  readonly parts: readonly Part[]

  constructor(device: WebgpuDevice, slabs: Slabs, source: MatrixSource) {
    const { rows, columns, dtype } = source
    this.rows = rows
    this.columns = columns
    this.type = dtype
    const rowBytes = columns * SOURCE_BYTES[dtype]
    this.bytes = rows * rowBytes
    this.parts = placeRows(slabs, rows, rowBytes, 0)
    for (const [start, end, bytes] of readBlocks(source, PART_ROWS))
      for (const part of this.parts) {
        const [from, to] = [Math.max(start, part.first), Math.min(end, part.first + part.rows)]
        if (from >= to) continue
        const block = bytes.subarray((from - start) * rowBytes, (to - start) * rowBytes)
        writeBytes(device, part.buffer, part.values + (from - part.first) * rowBytes, block)
      }
  }
}

export function tensorOf(tensor: Tensor, count: number): number {
  assert(tensor instanceof WebgpuTensor, 'a tensor of another backend')
  if (tensor.count < count)
    throw new SkeinError('internal', `a tensor [${tensor.shape}] where ${count} numbers are needed`)
  return tensor.start
}
