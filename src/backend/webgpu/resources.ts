/**
 * What a webgpu backend hands out: tensors in the device's arena, and matrices and tables in slabs of memory. A matrix that
 * exceeds what can be bound is held as several ranges of rows. Knows nothing of ops.
 */
/// <reference types="@webgpu/types" />
import { assert, SkeinError } from '../../errors.ts'
import type { HostTable, Matrix, Table, Tensor } from '../backend.ts'
import { refuseFp8 } from '../quantised.ts'
import { quantiseRows } from '../reference/quantise.ts'
import { readBlocks, readQuantisedBlocks, SOURCE_BYTES } from '../source-rows.ts'
import {
  isPacked,
  isQuantised,
  type MatrixSource,
  type PackedType,
  type QuantisedRows,
  type QuantisedType,
  type SourceType,
  type WeightType,
} from '../weight-types.ts'
import { narrowRows, widenRows } from './convert.ts'
import { USAGE, type WebgpuDevice } from './device.ts'

export type HeldType = Exclude<WeightType, 'fp8' | PackedType>

/** Weights of 16 bytes, which a thread of linear.wgsl takes at a time: rows are padded to whole units. */
export const UNIT: Readonly<Record<HeldType, number>> = {
  f32: 4,
  f16: 8,
  bf16: 8,
  i8: 16,
  q4: 32,
  nf4: 32,
}
const UNIT_BYTES = 16
/** Units that share a scale. */
const SCALE_UNITS: Readonly<Record<QuantisedType, number>> = { i8: 2, q4: 1, nf4: 2 }
/** Rows of which a unit each lie side by side; see linear-jobs.wgsl. Parts of a matrix are of whole blocks. */
export const BLOCK_ROWS = 8

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

/** Each slab is as large as all before it, within these. */
const LEAST_SLAB_BYTES = 64 << 20
const MOST_SLAB_BYTES = 2 ** 28
/** Weights begin at multiples of so many bytes. */
const ALIGNMENT = 256

/** Memory for weights: matrices used together mostly share a buffer, so that one launch can take several. */
export class Slabs {
  readonly #device: WebgpuDevice
  #current: { readonly buffer: GPUBuffer; used: number } | null = null
  #total = 0

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
      const usual = Math.min(Math.max(this.#total, LEAST_SLAB_BYTES), MOST_SLAB_BYTES)
      const size = Math.max(bytes, Math.min(usual, this.maxBytes))
      this.#total += size
      slab = { buffer: this.#device.buffer(size, USAGE.storage | USAGE.copyDst), used: 0 }
      this.#current = slab
    }
    const offset = slab.used
    slab.used = Math.ceil((offset + bytes) / ALIGNMENT) * ALIGNMENT
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
  /** The power of two that brings its scales to the middle of what f16 has. */
  readonly factor: number

  constructor(device: WebgpuDevice, slabs: Slabs, quantise: Quantise, source: MatrixSource, wanted: WeightType) {
    if (wanted === 'fp8') refuseFp8()
    // There are no kernels for packed weights: the numbers of the file, rounded to f16.
    const type = isPacked(wanted) ? 'f16' : wanted
    const { rows, columns } = source
    this.rows = rows
    this.columns = columns
    this.type = type
    const rowBytes = this.units * UNIT_BYTES
    // Words of two scales that a row has, those of its padding among them.
    const scaleBytes = isQuantised(type) ? 4 * Math.ceil(this.units / (2 * SCALE_UNITS[type])) : 0
    this.parts = placeRows(slabs, rows, rowBytes, scaleBytes)
    this.bytes = rows * (rowBytes + scaleBytes)
    let largest = 0
    for (const [start, end, values, scales] of packedRows(source, type, quantise, rowBytes, scaleBytes)) {
      largest = Math.max(largest, largestOf(scales))
      for (const part of this.parts) {
        const [from, to] = [Math.max(start, part.first), Math.min(end, part.first + part.rows)]
        if (from >= to) continue
        const at = from - part.first
        const put = (bytes: Uint8Array, place: number, row: number, unit: number, order: Order = asItIs) => {
          const cut = bytes.subarray((from - start) * row, (to - start) * row)
          writeBytes(device, part.buffer, place + at * row, inBlocks(cut, to - from, unit, order))
        }
        put(values, part.values, rowBytes, UNIT_BYTES, ORDERS[type])
        if (scaleBytes > 0) put(scales, part.scales, scaleBytes, 4)
      }
    }
    this.factor = factorOf(type, largest)
  }

  /** Of a row. */
  get units(): number {
    return Math.ceil(this.columns / UNIT[this.type])
  }
}

function placeRows(slabs: Slabs, rows: number, rowBytes: number, scaleBytes: number): Part[] {
  const fitting = Math.floor((slabs.maxBytes - ALIGNMENT) / (rowBytes + scaleBytes))
  const step = Math.floor(fitting / BLOCK_ROWS) * BLOCK_ROWS
  assert(step > 0, `rows of ${rowBytes} bytes beyond what can be bound`)
  const parts: Part[] = []
  for (let first = 0; first < rows; first += step) {
    const count = Math.min(step, rows - first)
    const padded = Math.ceil(count / BLOCK_ROWS) * BLOCK_ROWS
    const valueEnd = Math.ceil((padded * rowBytes) / ALIGNMENT) * ALIGNMENT
    const { buffer, offset } = slabs.place(valueEnd + padded * scaleBytes)
    parts.push({ first, rows: count, buffer, values: offset, scales: offset + valueEnd })
  }
  return parts
}

/** The largest of bf16 scales that are numbers, as bits: they are in the order of what they stand for. */
function largestOf(scales: Uint8Array): number {
  let largest = 0
  for (let i = 0; i < scales.length; i += 2) {
    const bits = (scales[i]! | (scales[i + 1]! << 8)) & 0x7fff
    if (bits > largest && bits < INFINITE_BF16) largest = bits
  }
  return largest
}
const INFINITE_BF16 = 0x7f80

/** Exponents of bf16 have a bias of 127. With this one the largest weight is between 2^14 and 2^15. */
function factorOf(type: HeldType, largest: number): number {
  const bits = type === 'i8' ? 7 : type === 'q4' ? 3 : null
  if (bits === null || largest === 0) return 1
  const exponent = (largest >> 7) - 127
  return 2 ** Math.max(-100, Math.min(100, 14 - bits - exponent))
}

/** A word of weights in the order in which kernels take it apart. */
type Order = (word: number) => number
const asItIs: Order = (word) => word

/** What becomes a pair of f16 has 16 bits between: see halves-i8.wgsl and halves-q4.wgsl. */
const ORDERS: Readonly<Partial<Record<HeldType, Order>>> = {
  i8: (word) => (word & 0xff0000ff) | ((word & 0xff00) << 8) | ((word >>> 8) & 0xff00),
  q4: (word) => halfOfPlaces(word) | (halfOfPlaces(word >>> 4) << 16),
}

/** Every other four bits, beginning with the lowest. */
function halfOfPlaces(word: number): number {
  const inBytes = word & 0x0f0f0f0f
  const inHalves = (inBytes | (inBytes >>> 4)) & 0x00ff00ff
  return (inHalves | (inHalves >>> 8)) & 0xffff
}

/** Rows in blocks: of each unit first that of the first row, then that of the second, … Rows that a block lacks are zero. */
function inBlocks(bytes: Uint8Array, rows: number, unitBytes: number, order: Order): Uint8Array {
  const words = wordsOf(bytes)
  const width = words.length / rows
  const unit = unitBytes / 4
  const blocks = Math.ceil(rows / BLOCK_ROWS)
  const out = new Uint32Array(blocks * BLOCK_ROWS * width)
  for (let row = 0; row < rows; row++) {
    const r = row % BLOCK_ROWS
    let to = (row - r) * width + r * unit
    for (let from = row * width; from < (row + 1) * width; from += unit) {
      for (let i = 0; i < unit; i++) out[to + i] = order(words[from + i]!)
      to += BLOCK_ROWS * unit
    }
  }
  return new Uint8Array(out.buffer)
}

function wordsOf(bytes: Uint8Array): Uint32Array {
  const whole = bytes.byteOffset % 4 === 0 ? bytes : bytes.slice()
  return new Uint32Array(whole.buffer, whole.byteOffset, whole.byteLength / 4)
}

/**
 * Writes are of whole words; what pads the last one is behind it, or is written next. A file's rows may lie in memory that
 * threads share, which the queue does not take.
 */
function writeBytes(device: WebgpuDevice, buffer: GPUBuffer, offset: number, bytes: Uint8Array) {
  const own = bytes.buffer instanceof ArrayBuffer ? bytes : bytes.slice()
  const even = own.length % 4 === 0 ? own : padded(own, 4)
  assert(offset % 4 === 0, 'a block of weights begins amid a word')
  device.write(buffer, offset, even)
}

function padded(bytes: Uint8Array, unit: number): Uint8Array {
  const whole = new Uint8Array(Math.ceil(bytes.length / unit) * unit)
  whole.set(bytes)
  return whole
}

type Packed = [start: number, end: number, values: Uint8Array, scales: Uint8Array]

/** The rows of a source with their padding, so many at a time. */
function* packedRows(
  source: MatrixSource,
  type: HeldType,
  quantise: Quantise,
  rowBytes: number,
  scaleBytes: number,
): Generator<Packed> {
  if (!isQuantised(type)) {
    for (const [start, end, bytes] of readBlocks(source, BLOCK_ROWS)) {
      const held = narrowRows(bytes, source, type)
      yield [start, end, widenRows(held, end - start, rowBytes), NOTHING]
    }
    return
  }
  for (const [start, end, { values, scales }] of quantisedRows(source, type, quantise)) {
    const rows = end - start
    yield [start, end, widenRows(values, rows, rowBytes), widenRows(scales, rows, scaleBytes)]
  }
}

const NOTHING = new Uint8Array(0)

/** Rows [start, end) of a source, rounded. */
export type Quantise = (type: QuantisedType, source: MatrixSource, start: number, end: number) => QuantisedRows

/** As the definition says, where nothing faster is there. */
export const quantiseSlowly: Quantise = (type, source, start, end) => {
  const floats = narrowRows(source.readRows(start, end), source, 'f32')
  const { buffer, byteOffset, byteLength } = floats
  return quantiseRows(type, new Float32Array(buffer, byteOffset, byteLength / 4), source.columns)
}

/** Rows that the file holds rounded already, or rounded here. */
function quantisedRows(
  source: MatrixSource,
  type: QuantisedType,
  quantise: Quantise,
): Generator<[start: number, end: number, rows: QuantisedRows]> {
  const { columns, quantised } = source
  const readRows = (start: number, end: number) => quantise(type, source, start, end)
  const held = quantised?.type === type ? quantised : { type, readRows }
  return readQuantisedBlocks(source, held, 4 * columns, BLOCK_ROWS)
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
    for (const [start, end, bytes] of readBlocks(source, BLOCK_ROWS))
      for (const part of this.parts) {
        const [from, to] = [Math.max(start, part.first), Math.min(end, part.first + part.rows)]
        if (from >= to) continue
        const block = bytes.subarray((from - start) * rowBytes, (to - start) * rowBytes)
        writeBytes(device, part.buffer, part.values + (from - part.first) * rowBytes, block)
      }
  }
}

/** A table in the host's memory, as the checkpoint has it. */
export class WebgpuHostTable implements HostTable {
  readonly rows: number
  readonly columns: number
  readonly type: SourceType
  readonly rowBytes: number
  readonly #bytes: Uint8Array

  constructor(source: MatrixSource) {
    const { rows, columns, dtype } = source
    this.rows = rows
    this.columns = columns
    this.type = dtype
    this.rowBytes = columns * SOURCE_BYTES[dtype]
    assert(this.rowBytes % 4 === 0, `rows of ${this.rowBytes} bytes are no whole words`)
    this.#bytes = new Uint8Array(rows * this.rowBytes)
    for (const [start, , values] of readBlocks(source)) this.#bytes.set(values, start * this.rowBytes)
  }

  /** The rows of some tokens, one after the other. */
  copyRows(tokens: Int32Array): Uint8Array {
    const { rowBytes } = this
    const out = new Uint8Array(tokens.length * rowBytes)
    for (const [t, id] of tokens.entries()) {
      assert(id >= 0 && id < this.rows, `token id ${id} out of range`)
      out.set(this.#bytes.subarray(id * rowBytes, (id + 1) * rowBytes), t * rowBytes)
    }
    return out
  }
}

export function tensorOf(tensor: Tensor, count: number): number {
  assert(tensor instanceof WebgpuTensor, 'a tensor of another backend')
  if (tensor.count < count)
    throw new SkeinError('internal', `a tensor [${tensor.shape}] where ${count} numbers are needed`)
  return tensor.start
}
