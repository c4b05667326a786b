/**
 * Buffers of the reference backend: plain typed arrays, activations and states in f64, weights in f32 (every source
 * type, and the rounded int8 weights, are exact in f32). Owns the conversions from checkpoint bytes to numbers.
 */
import { SkeinError } from '../../errors.ts'
import type {
  Matrix,
  MatrixSource,
  Norm,
  SourceType,
  Table,
  Tensor,
  WeightType,
} from '../backend.ts'

export interface RefTensor extends Tensor {
  readonly values: Float64Array
}

export interface RefMatrix extends Matrix, Table {
  /** [rows, columns] */
  readonly values: Float32Array
}

/** The values of a tensor of this backend. */
export function valuesOf(tensor: Tensor): Float64Array {
  // Every Tensor that reaches this backend was made by it: a Tensor of another backend is a bug of the caller.
  return (tensor as RefTensor).values
}

export function weightsOf(matrix: Matrix | Table): Float32Array {
  // As above: matrices and tables are made by readMatrix below.
  return (matrix as RefMatrix).values
}

export function normOf(norm: Norm): { weight: Float64Array; bias: Float64Array; eps: number } {
  return { weight: valuesOf(norm.weight), bias: valuesOf(norm.bias), eps: norm.eps }
}

export function createTensor(shape: readonly number[], values?: Float32Array): RefTensor {
  const size = shape.reduce((product, n) => product * n, 1)
  if (values && values.length !== size)
    throw new SkeinError('internal', `tensor of shape [${shape}] given ${values.length} values`)
  return { shape, values: values ? Float64Array.from(values) : new Float64Array(size) }
}

/** Reads a whole matrix; `i8` keeps what the rounding to eight bits leaves. */
export function readMatrix(source: MatrixSource, type: WeightType): RefMatrix {
  const { rows, columns } = source
  const values = new Float32Array(rows * columns)
  const blockRows = Math.max(1, Math.floor(2 ** 22 / columns))
  for (let start = 0; start < rows; start += blockRows) {
    const end = Math.min(rows, start + blockRows)
    decodeInto(values.subarray(start * columns, end * columns), source, start, end)
  }
  if (type === 'i8')
    for (let r = 0; r < rows; r++) roundToInt8(values.subarray(r * columns, (r + 1) * columns))
  if (type === 'bf16' && source.dtype !== 'bf16') roundEach(values, roundToBf16)
  if (type === 'f16' && source.dtype !== 'f16') roundEach(values, roundToF16)
  return { rows, columns, type, bytes: values.byteLength, values }
}

function decodeInto(out: Float32Array, source: MatrixSource, start: number, end: number): void {
  const bytes = source.readRows(start, end)
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)
  const read = READERS[source.dtype]
  for (let i = 0; i < out.length; i++) out[i] = read(view, i)
}

const READERS: Record<SourceType, (view: DataView, index: number) => number> = {
  f32: (view, i) => view.getFloat32(4 * i, true),
  f16: (view, i) => f16ToNumber(view.getUint16(2 * i, true)),
  bf16: (view, i) => bf16ToNumber(view.getUint16(2 * i, true)),
}

const word = new DataView(new ArrayBuffer(4))

export function bf16ToNumber(bits: number): number {
  word.setUint32(0, bits << 16)
  return word.getFloat32(0)
}

export function f16ToNumber(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1
  const exponent = (bits >> 10) & 31
  const fraction = bits & 1023
  if (exponent === 31) return fraction ? Number.NaN : sign * Number.POSITIVE_INFINITY
  return exponent
    ? sign * 2 ** (exponent - 15) * (1 + fraction / 1024)
    : sign * 2 ** -14 * (fraction / 1024)
}

/** Nearest bf16, ties to even. */
export function roundToBf16(value: number): number {
  word.setFloat32(0, value)
  const bits = word.getUint32(0)
  return bf16ToNumber(((bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16) & 0xffff)
}

/** Nearest f16, ties to even; beyond its range the largest finite value. */
export function roundToF16(value: number): number {
  const magnitude = Math.min(Math.abs(value), 65504)
  const exponent = Math.max(-14, Math.floor(Math.log2(magnitude || 1)))
  const step = 2 ** (exponent - 10)
  return Math.sign(value) * Math.min(65504, roundHalfEven(magnitude / step) * step)
}

function roundEach(values: Float32Array, round: (value: number) => number): void {
  for (let i = 0; i < values.length; i++) values[i] = round(values[i]!)
}

/** Inputs that share one scale. */
export const INT8_GROUP = 32

/**
 * Replaces a weight row by its int8 form: per 32 inputs, scale = max|w| / 127 rounded up to bf16,
 * w → round(w / scale) · scale, exact in f32.
 */
function roundToInt8(row: Float32Array): void {
  for (let start = 0; start < row.length; start += INT8_GROUP) {
    const group = row.subarray(start, start + INT8_GROUP)
    const scale = bf16Above(
      Math.fround(group.reduce((max, w) => Math.max(max, Math.abs(w)), 0) / 127),
    )
    for (let i = 0; i < group.length; i++)
      group[i] = scale === 0 ? 0 : roundHalfEven(group[i]! / scale) * scale
  }
}

/** The smallest bf16 that is not below a non-negative f32. */
function bf16Above(value: number): number {
  word.setFloat32(0, value)
  return bf16ToNumber((word.getUint32(0) + 0xffff) >>> 16)
}

function roundHalfEven(value: number): number {
  const floor = Math.floor(value)
  const rest = value - floor
  if (rest !== 0.5) return Math.round(value)
  return floor % 2 === 0 ? floor : floor + 1
}
