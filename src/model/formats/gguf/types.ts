/**
 * The element types of GGUF that are read here: three of plain numbers and the blocks that pack several weights under
 * common scales. How a block is read is in `gguf-blocks.ts`.
 */
import type { SourceType } from '../../../backend/backend.ts'

export type PackedType = 'Q4_0' | 'Q4_1' | 'Q5_0' | 'Q5_1' | 'Q8_0' | 'Q4_K' | 'Q5_K' | 'Q6_K'
export type GgufType = 'F32' | 'F16' | 'BF16' | PackedType

/** By the number in the file. */
export const GGUF_TYPES: ReadonlyMap<number, GgufType> = new Map([
  [0, 'F32'],
  [1, 'F16'],
  [2, 'Q4_0'],
  [3, 'Q4_1'],
  [6, 'Q5_0'],
  [7, 'Q5_1'],
  [8, 'Q8_0'],
  [12, 'Q4_K'],
  [13, 'Q5_K'],
  [14, 'Q6_K'],
  [30, 'BF16'],
])

/** Types that exist and are not read, so that a refusal can name them. */
export const OTHER_GGUF_TYPES: ReadonlyMap<number, string> = new Map([
  [9, 'Q8_1'],
  [10, 'Q2_K'],
  [11, 'Q3_K'],
  [15, 'Q8_K'],
  [16, 'IQ2_XXS'],
  [17, 'IQ2_XS'],
  [18, 'IQ3_XXS'],
  [19, 'IQ1_S'],
  [20, 'IQ4_NL'],
  [21, 'IQ3_S'],
  [22, 'IQ2_S'],
  [23, 'IQ4_XS'],
  [24, 'I8'],
  [25, 'I16'],
  [26, 'I32'],
  [27, 'I64'],
  [28, 'F64'],
  [29, 'IQ1_M'],
  [34, 'TQ1_0'],
  [35, 'TQ2_0'],
  [39, 'MXFP4'],
])

interface BlockSize {
  readonly elements: number
  readonly bytes: number
}

export const BLOCK_SIZES: Readonly<Record<GgufType, BlockSize>> = {
  F32: { elements: 1, bytes: 4 },
  F16: { elements: 1, bytes: 2 },
  BF16: { elements: 1, bytes: 2 },
  Q4_0: { elements: 32, bytes: 18 },
  Q4_1: { elements: 32, bytes: 20 },
  Q5_0: { elements: 32, bytes: 22 },
  Q5_1: { elements: 32, bytes: 24 },
  Q8_0: { elements: 32, bytes: 34 },
  Q4_K: { elements: 256, bytes: 144 },
  Q5_K: { elements: 256, bytes: 176 },
  Q6_K: { elements: 256, bytes: 210 },
}

/** The plain types as ours; undefined for the packed ones. */
export function plainType(type: GgufType): SourceType | undefined {
  if (type === 'F32') return 'f32'
  if (type === 'F16') return 'f16'
  return type === 'BF16' ? 'bf16' : undefined
}

export function isPacked(type: GgufType): type is PackedType {
  return plainType(type) === undefined
}
