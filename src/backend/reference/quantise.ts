/**
 * What rounding a weight matrix to `i8`, `q4` or `nf4` means, to the bit: the definition that kernels/cpu/quantise.cpp
 * repeats. Every step is one f32 or f64 operation, so that both give the same bytes. Knows nothing of files and layouts.
 */

import { encodeCodes, NF4_LEVELS, SCALE_INPUTS, valueBytes } from '../quantised.ts'
import type { QuantisedRows, QuantisedType } from '../weight-types.ts'

/** The largest weight of a group over these are the scales of q4 that are tried. −8 and 7 are the ends of its range. */
const Q4_DIVISORS = [8, 7.7, 7.4, 7.1, 6.8, 8.3, 8.6, 9].map(Math.fround)

/** Rounds rows of f32 weights [rows, columns]. A group that is not finite gets NaN for its scale. */
export function quantiseRows(type: QuantisedType, weights: Float32Array, columns: number): QuantisedRows {
  const rows = weights.length / columns
  const rowBytes = valueBytes(type, columns)
  const values = new Uint8Array(rows * rowBytes)
  const scales: number[] = []
  for (let row = 0; row < rows; row++) {
    const codes = quantiseRow(type, weights.subarray(row * columns, (row + 1) * columns), scales)
    encodeCodes(type, codes, values.subarray(row * rowBytes, (row + 1) * rowBytes))
  }
  return { values, scales: Uint8Array.from(scales.flatMap((bits) => [bits & 255, bits >> 8])) }
}

/** The codes of a row; its scales, as bits of a bf16, are appended to `scales`. */
function quantiseRow(type: QuantisedType, row: Float32Array, scales: number[]): Int8Array {
  const inputs = SCALE_INPUTS[type]
  const codes = new Int8Array(row.length)
  for (let start = 0; start < row.length; start += inputs) {
    const group = row.subarray(start, start + inputs)
    const bits = scaleBits(type, group)
    scales.push(bits)
    const scale = bf16ToNumber(bits)
    for (const [i, w] of group.entries()) codes[start + i] = codeOf(type, w, scale)
  }
  return codes
}

const NOT_A_NUMBER = 0x7fc0
/** Weights of smaller groups are zero: kernels flush denormals, and no scale comes near them this way. */
const MIN_LARGEST = 2 ** -100

function scaleBits(type: QuantisedType, group: Float32Array): number {
  if (!group.every(Number.isFinite)) return NOT_A_NUMBER
  const largest = group.reduce((most, w) => (Math.abs(w) > Math.abs(most) ? w : most), 0)
  if (Math.abs(largest) < MIN_LARGEST) return 0
  // Rounded up, so that no code exceeds ±127.
  return type === 'q4' ? bestQ4Scale(group, largest) : bf16Above(Math.abs(largest) / 127)
}

/** The scale with the least squared error. */
function bestQ4Scale(group: Float32Array, largest: number): number {
  let best = 0
  let least = Number.POSITIVE_INFINITY
  for (const divisor of Q4_DIVISORS) {
    const bits = bf16Nearest(largest / -divisor)
    const scale = bf16ToNumber(bits)
    const error = group.reduce((sum, w) => {
      const difference = w - codeOf('q4', w, scale) * scale
      return sum + difference * difference
    }, 0)
    if (error < least) [best, least] = [bits, error]
  }
  return best
}

function codeOf(type: QuantisedType, w: number, scale: number): number {
  const scaled = scale === 0 || Number.isNaN(scale) ? 0 : Math.fround(w / scale)
  if (type === 'i8') return roundHalfEven(scaled)
  if (type === 'q4') return Math.min(7, Math.max(-8, roundHalfEven(scaled)))
  return NF4_LEVELS.findLastIndex((level, i) => i === 0 || scaled > (level + NF4_LEVELS[i - 1]!) / 2)
}

const word = new DataView(new ArrayBuffer(4))

export function bf16ToNumber(bits: number): number {
  word.setUint32(0, bits << 16)
  return word.getFloat32(0)
}

/** The bits of the nearest bf16 of a value first rounded to f32, ties to even. */
export function bf16Nearest(value: number): number {
  word.setFloat32(0, value)
  const bits = word.getUint32(0)
  return ((bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16) & 0xffff
}

/** The bits of the smallest bf16 that is not below a non-negative value first rounded to f32. */
function bf16Above(value: number): number {
  word.setFloat32(0, value)
  return (word.getUint32(0) + 0xffff) >>> 16
}

export function roundHalfEven(value: number): number {
  const floor = Math.floor(value)
  const rest = value - floor
  if (rest !== 0.5) return Math.round(value)
  return floor % 2 === 0 ? floor : floor + 1
}
