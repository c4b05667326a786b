/**
 * Buffers of the reference backend: plain typed arrays, activations and states in f64, weights in f32 (every source
 * type, and the rounded weights, are exact in f32). Owns the conversions from checkpoint bytes to numbers.
 */
import { SkeinError } from '../../errors.ts'
import type { HostTable, Matrix, Norm, Table, Tensor } from '../backend.ts'
import { decodeRows, refuseFp8 } from '../quantised.ts'
import { isQuantised, type MatrixSource, type SourceType, type WeightType } from '../weight-types.ts'
import { bf16Nearest, bf16ToNumber, quantiseRows, roundHalfEven } from './quantise.ts'

interface RefTensor extends Tensor {
  readonly values: Float64Array
}

interface RefMatrix extends Matrix, Table {
  /** [rows, columns] */
  readonly values: Float32Array
}

export function valuesOf(tensor: Tensor): Float64Array {
  // Every Tensor that reaches this backend was made by it: a Tensor of another backend is a bug of the caller.
  return (tensor as RefTensor).values
}

export function weightsOf(matrix: Matrix | Table | HostTable): Float32Array {
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

/** Reads a whole matrix; a quantised type keeps what its rounding leaves. */
export function readMatrix(source: MatrixSource, type: WeightType): RefMatrix {
  if (type === 'fp8') refuseFp8()
  const { rows, columns } = source
  const values = new Float32Array(rows * columns)
  const blockRows = Math.max(1, Math.floor(2 ** 22 / columns))
  for (let start = 0; start < rows; start += blockRows) {
    const end = Math.min(rows, start + blockRows)
    decodeInto(values.subarray(start * columns, end * columns), source, start, end)
  }
  if (isQuantised(type) && source.quantised?.type !== type)
    values.set(decodeRows(type, quantiseRows(type, values, columns), columns))
  if (type === 'bf16' && source.dtype !== 'bf16') roundEach(values, (value) => bf16ToNumber(bf16Nearest(value)))
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

export function f16ToNumber(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1
  const exponent = (bits >> 10) & 31
  const fraction = bits & 1023
  if (exponent === 31) return fraction ? Number.NaN : sign * Number.POSITIVE_INFINITY
  return exponent ? sign * 2 ** (exponent - 15) * (1 + fraction / 1024) : sign * 2 ** -14 * (fraction / 1024)
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
