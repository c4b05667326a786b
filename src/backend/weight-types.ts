/** How matrices are held, in files and on devices, and how a backend reads one from a file. */

/**
 * Integers of few bits times a scale (bf16) that some inputs of an output row share:
 * `i8` 8 bits, 32 inputs · `q4` 4 bits, 32 inputs · `nf4` 4 bits that index 16 levels of a normal distribution, 64 inputs.
 */
export type QuantisedType = 'i8' | 'q4' | 'nf4'

/** The blocks of GGUF, in its own words: codes of 4, 5, 6 or 8 bits under scales, some with a minimum. */
export type PackedType = 'Q4_0' | 'Q4_1' | 'Q5_0' | 'Q5_1' | 'Q8_0' | 'Q4_K' | 'Q5_K' | 'Q6_K'

/**
 * How a matrix is held on the device. `fp8`, 8-bit floating point (e4m3) with one scale a row, is for `cuda` alone: what
 * it is multiplied with is rounded likewise where its arithmetic is used. Packed types are for a source of that type; a
 * backend without kernels for them holds the same numbers in a type of its own.
 */
export type WeightType = 'f32' | 'f16' | 'bf16' | 'fp8' | QuantisedType | PackedType

/** Types of fewer than 16 bits. */
export type RoundedType = QuantisedType | 'fp8'

export function isRounded(type: WeightType): type is RoundedType {
  return type === 'fp8' || isQuantised(type)
}

export function isQuantised(type: WeightType): type is QuantisedType {
  return type === 'i8' || type === 'q4' || type === 'nf4'
}

export function isPacked(type: WeightType): type is PackedType {
  return type.startsWith('Q')
}

/** Element types a checkpoint can hand over. */
export type SourceType = 'f32' | 'f16' | 'bf16'

/** A matrix (or table) in a file, read by rows so that loading never holds two copies. */
export interface MatrixSource {
  readonly name: string
  /** rows = outputs of y = x·Wᵀ (or vocabulary entries of a table). */
  readonly rows: number
  readonly columns: number
  readonly dtype: SourceType
  /** Little-endian row-major elements of rows [start, end). The view is valid until the next call. */
  readRows(start: number, end: number): Uint8Array
  /** Present when the file holds the matrix already rounded to a type; `readRows` then decodes it. */
  readonly quantised?: QuantisedSource
  /** Present when the file holds it in blocks; `readRows` then expands them to f32. */
  readonly packed?: PackedSource
  /** Present when the file holds the transpose, which this is: devices turn it faster than `readRows` does. */
  readonly turned?: MatrixSource
}

/** Rows in blocks, as the file has them (quantised.ts has their sizes). */
export interface PackedSource {
  readonly type: PackedType
  /** The view is valid until the next call. */
  readRows(start: number, end: number): Uint8Array
}

/** Rows as they were rounded, without padding: loading them anew loses nothing. */
export interface QuantisedSource {
  readonly type: QuantisedType
  /**
   * values: i8 one byte an input; q4 (+ 8) and nf4 (index of the level) two inputs a byte, the even one in the low half.
   * scales: bf16 per 32 inputs (nf4: 64). The views are valid until the next call.
   */
  readRows(start: number, end: number): QuantisedRows
}

export interface QuantisedRows {
  readonly values: Uint8Array
  readonly scales: Uint8Array
}
