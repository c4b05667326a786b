/**
 * The element types of GGUF that are read here: three of plain numbers and the blocks that pack several weights under
 * common scales. How a block is read is in `blocks.ts`.
 */

import { PACKED_BLOCKS } from '../../../backend/quantised.ts'
import type { PackedType, SourceType } from '../../../backend/weight-types.ts'

/** Blocks that no backend computes with: they are expanded as they are read. */
type SmallBlockType = 'Q2_K' | 'Q3_K' | 'IQ4_NL' | 'IQ4_XS'
export type BlockType = PackedType | SmallBlockType
export type GgufType = 'F32' | 'F16' | 'BF16' | BlockType

/** By the number in the file. */
export const GGUF_TYPES: ReadonlyMap<number, GgufType> = new Map([
  [0, 'F32'],
  [1, 'F16'],
  [2, 'Q4_0'],
  [3, 'Q4_1'],
  [6, 'Q5_0'],
  [7, 'Q5_1'],
  [8, 'Q8_0'],
  [10, 'Q2_K'],
  [11, 'Q3_K'],
  [12, 'Q4_K'],
  [13, 'Q5_K'],
  [14, 'Q6_K'],
  [20, 'IQ4_NL'],
  [23, 'IQ4_XS'],
  [30, 'BF16'],
])

/** Types that exist and are not read, so that a refusal can name them. */
export const OTHER_GGUF_TYPES: ReadonlyMap<number, string> = new Map([
  [9, 'Q8_1'],
  [15, 'Q8_K'],
  [16, 'IQ2_XXS'],
  [17, 'IQ2_XS'],
  [18, 'IQ3_XXS'],
  [19, 'IQ1_S'],
  [21, 'IQ3_S'],
  [22, 'IQ2_S'],
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

export const BLOCK_SIZES: Readonly<Record<GgufType, { readonly elements: number; readonly bytes: number }>> = {
  F32: { elements: 1, bytes: 4 },
  F16: { elements: 1, bytes: 2 },
  BF16: { elements: 1, bytes: 2 },
  ...PACKED_BLOCKS,
  Q2_K: { elements: 256, bytes: 84 },
  Q3_K: { elements: 256, bytes: 110 },
  IQ4_NL: { elements: 32, bytes: 18 },
  IQ4_XS: { elements: 256, bytes: 136 },
}

/** The plain types as ours; undefined for blocks. */
export function plainType(type: GgufType): SourceType | undefined {
  if (type === 'F32') return 'f32'
  if (type === 'F16') return 'f16'
  return type === 'BF16' ? 'bf16' : undefined
}

/** Whether backends compute with blocks of a type. */
export function isPackedType(type: GgufType): type is PackedType {
  return type in PACKED_BLOCKS
}
