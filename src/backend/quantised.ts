/**
 * What rounded weights look like in rows, in files and between backends, and which numbers they stand for. Knows neither
 * how they were rounded (reference/quantise.ts) nor how a backend lays them out.
 */
import { SkeinError } from '../errors.ts'
import type { PackedType, QuantisedRows, QuantisedType } from './weight-types.ts'

/** Inputs of a row that share a scale. */
export const SCALE_INPUTS: Readonly<Record<QuantisedType, number>> = { i8: 32, q4: 32, nf4: 64 }

/** Inputs and bytes of a block of GGUF. */
export const PACKED_BLOCKS: Readonly<Record<PackedType, { readonly elements: number; readonly bytes: number }>> = {
  Q4_0: { elements: 32, bytes: 18 },
  Q4_1: { elements: 32, bytes: 20 },
  Q5_0: { elements: 32, bytes: 22 },
  Q5_1: { elements: 32, bytes: 24 },
  Q8_0: { elements: 32, bytes: 34 },
  Q4_K: { elements: 256, bytes: 144 },
  Q5_K: { elements: 256, bytes: 176 },
  Q6_K: { elements: 256, bytes: 210 },
}

/** Bytes of a row of whole blocks. */
export function packedRowBytes(type: PackedType, columns: number): number {
  const { elements, bytes } = PACKED_BLOCKS[type]
  return (columns / elements) * bytes
}

/**
 * The sixteen values of nf4: quantiles of the normal distribution (Dettmers et al., "QLoRA", 2023), rounded to 1/127
 * of the largest, so that products stay exact integers.
 */
export const NF4_LEVELS: readonly number[] = [-127, -88, -67, -50, -36, -23, -12, 0, 10, 20, 31, 43, 56, 71, 92, 127]

/** For backends without fp8 arithmetic. */
export function refuseFp8(): never {
  const message =
    '--quant fp8 needs an NVIDIA GPU of compute capability 8.9 or later (--device cuda); int8 runs everywhere'
  throw new SkeinError('unsupported_parameter', message, { param: 'quant' })
}

/** q4 is stored as value + 8. */
const Q4_OFFSET = 8

/** Bytes of a row's values. */
export function valueBytes(type: QuantisedType, columns: number): number {
  return type === 'i8' ? columns : Math.ceil(columns / 2)
}

/** Scales of a row, a bf16 each. */
export function numScales(type: QuantisedType, columns: number): number {
  return Math.ceil(columns / SCALE_INPUTS[type])
}

/** The weights that rows stand for, exact in f32. [rows, columns] */
export function decodeRows(type: QuantisedType, { values, scales }: QuantisedRows, columns: number): Float32Array {
  const rowBytes = valueBytes(type, columns)
  const rowScales = numScales(type, columns)
  const factors = decodeScales(scales)
  const weights = new Float32Array((values.length / rowBytes) * columns)
  for (let row = 0, i = 0; i < weights.length; row++) {
    for (let column = 0; column < columns; column++, i++) {
      const scale = factors[row * rowScales + Math.floor(column / SCALE_INPUTS[type])]!
      weights[i] = integerAt(type, values, row * rowBytes, column) * scale
    }
  }
  return weights
}

function integerAt(type: QuantisedType, values: Uint8Array, row: number, column: number): number {
  if (type === 'i8') return (values[row + column]! << 24) >> 24
  const code = (values[row + (column >> 1)]! >> ((column & 1) * 4)) & 15
  return type === 'q4' ? code - Q4_OFFSET : NF4_LEVELS[code]!
}

/** Packs one row's codes (i8 and q4: the integer, nf4: the index of its level) into bytes. */
export function encodeCodes(type: QuantisedType, codes: Int8Array, bytes: Uint8Array): void {
  if (type === 'i8') {
    bytes.set(codes)
    return
  }
  const offset = type === 'q4' ? Q4_OFFSET : 0
  bytes.fill(0)
  for (const [i, code] of codes.entries()) bytes[i >> 1]! |= (code + offset) << ((i & 1) * 4)
}

function decodeScales(bytes: Uint8Array): Float32Array {
  const words = new Uint32Array(bytes.length / 2)
  for (const i of words.keys()) words[i] = (bytes[2 * i]! << 16) | (bytes[2 * i + 1]! << 24)
  return new Float32Array(words.buffer)
}
