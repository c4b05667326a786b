/**
 * Unpacks the weight blocks of GGUF to f32, each weight rounded once. Scales are f16; a weight is its few bits times
 * the scale, plus or minus an offset. Layouts: ggml-org/llama.cpp, ggml/src/ggml-common.h. Knows nothing of files.
 */
import { f16Table } from '../../../backend/half.ts'
import { BLOCK_SIZES, type BlockType } from './types.ts'

/** `blocks` holds whole blocks of `type`, and `out` their elements. */
export function unpackBlocks(type: BlockType, blocks: Uint8Array, out: Float32Array): void {
  const { elements, bytes } = BLOCK_SIZES[type]
  const unpack = UNPACKERS[type]
  const count = blocks.length / bytes
  for (let i = 0; i < count; i++) unpack(blocks, i * bytes, out, i * elements)
}

/** Reads the block at byte `at` into elements from `to` on. */
type Unpack = (b: Uint8Array, at: number, out: Float32Array, to: number) => void

const UNPACKERS: Readonly<Record<BlockType, Unpack>> = {
  Q4_0: unpackQ4_0,
  Q4_1: unpackQ4_1,
  Q5_0: unpackQ5_0,
  Q5_1: unpackQ5_1,
  Q8_0: unpackQ8_0,
  Q4_K: unpackQ4_K,
  Q5_K: unpackQ5_K,
  Q6_K: unpackQ6_K,
  Q2_K: unpackQ2_K,
  Q3_K: unpackQ3_K,
  // d f16 · 16 bytes: the low halves are weights 0–15, the high ones 16–31; level·d
  IQ4_NL: (b, at, out, to) => unpackLevels(b, at + 2, f16At(b, at), out, to),
  IQ4_XS: unpackIQ4_XS,
}

function f16At(b: Uint8Array, at: number): number {
  return f16Table()[b[at]! | (b[at + 1]! << 8)]!
}

function u32At(b: Uint8Array, at: number): number {
  return b[at]! | (b[at + 1]! << 8) | (b[at + 2]! << 16) | (b[at + 3]! << 24)
}

function i8(byte: number): number {
  return (byte << 24) >> 24
}

/** d f16 · 16 bytes: the low halves are weights 0–15, the high ones 16–31; (q − 8)·d */
function unpackQ4_0(b: Uint8Array, at: number, out: Float32Array, to: number): void {
  const d = f16At(b, at)
  for (let i = 0; i < 16; i++) {
    const byte = b[at + 2 + i]!
    out[to + i] = ((byte & 15) - 8) * d
    out[to + 16 + i] = ((byte >> 4) - 8) * d
  }
}

/** d f16 · m f16 · 16 bytes as above; q·d + m */
function unpackQ4_1(b: Uint8Array, at: number, out: Float32Array, to: number): void {
  const d = f16At(b, at)
  const m = f16At(b, at + 2)
  for (let i = 0; i < 16; i++) {
    const byte = b[at + 4 + i]!
    out[to + i] = (byte & 15) * d + m
    out[to + 16 + i] = (byte >> 4) * d + m
  }
}

/** d f16 · 32 fifth bits · 16 bytes as above; (q − 16)·d */
function unpackQ5_0(b: Uint8Array, at: number, out: Float32Array, to: number): void {
  const d = f16At(b, at)
  const high = u32At(b, at + 2)
  for (let i = 0; i < 16; i++) {
    const byte = b[at + 6 + i]!
    out[to + i] = ((byte & 15) + 16 * ((high >>> i) & 1) - 16) * d
    out[to + 16 + i] = ((byte >> 4) + 16 * ((high >>> (16 + i)) & 1) - 16) * d
  }
}

/** d f16 · m f16 · 32 fifth bits · 16 bytes as above; q·d + m */
function unpackQ5_1(b: Uint8Array, at: number, out: Float32Array, to: number): void {
  const d = f16At(b, at)
  const m = f16At(b, at + 2)
  const high = u32At(b, at + 4)
  for (let i = 0; i < 16; i++) {
    const byte = b[at + 8 + i]!
    out[to + i] = ((byte & 15) + 16 * ((high >>> i) & 1)) * d + m
    out[to + 16 + i] = ((byte >> 4) + 16 * ((high >>> (16 + i)) & 1)) * d + m
  }
}

/** d f16 · 32 signed bytes; q·d */
function unpackQ8_0(b: Uint8Array, at: number, out: Float32Array, to: number): void {
  const d = f16At(b, at)
  for (let i = 0; i < 32; i++) out[to + i] = i8(b[at + 2 + i]!) * d
}

/** Six-bit scale and minimum of group j of eight, packed in twelve bytes. */
function groupScale(b: Uint8Array, at: number, j: number): number {
  if (j < 4) return b[at + j]! & 63
  return (b[at + j + 4]! & 15) | ((b[at + j - 4]! >> 6) << 4)
}

function groupMinimum(b: Uint8Array, at: number, j: number): number {
  if (j < 4) return b[at + j + 4]! & 63
  return (b[at + j + 4]! >> 4) | ((b[at + j]! >> 6) << 4)
}

/**
 * d f16 · dmin f16 · 12 bytes of group scales · 128 bytes: of each 32, the low halves are one group of 32 weights,
 * the high ones the next; q·(d·scale) − dmin·minimum
 */
function unpackQ4_K(b: Uint8Array, at: number, out: Float32Array, to: number): void {
  const d = f16At(b, at)
  const dmin = f16At(b, at + 2)
  for (let j = 0; j < 8; j++) {
    const scale = Math.fround(d * groupScale(b, at + 4, j))
    const minimum = Math.fround(dmin * groupMinimum(b, at + 4, j))
    const from = at + 16 + 32 * (j >> 1)
    const shift = 4 * (j & 1)
    for (let i = 0; i < 32; i++) out[to + 32 * j + i] = ((b[from + i]! >> shift) & 15) * scale - minimum
  }
}

/** As Q4_K, with 32 bytes between scales and weights: bit j of byte i is the fifth bit of weight i of group j. */
function unpackQ5_K(b: Uint8Array, at: number, out: Float32Array, to: number): void {
  const d = f16At(b, at)
  const dmin = f16At(b, at + 2)
  for (let j = 0; j < 8; j++) {
    const scale = Math.fround(d * groupScale(b, at + 4, j))
    const minimum = Math.fround(dmin * groupMinimum(b, at + 4, j))
    const from = at + 48 + 32 * (j >> 1)
    const shift = 4 * (j & 1)
    for (let i = 0; i < 32; i++) {
      const q = ((b[from + i]! >> shift) & 15) + 16 * ((b[at + 16 + i]! >> j) & 1)
      out[to + 32 * j + i] = q * scale - minimum
    }
  }
}

/**
 * 128 bytes of low halves · 64 of high pairs of bits · 16 signed scales, one for 16 weights · d f16. Per half of 128
 * weights, byte i of 64 holds weight i and i + 64, byte i of 32 the high bits of i, i + 32, i + 64, i + 96;
 * (q − 32)·(d·scale)
 */
function unpackQ6_K(b: Uint8Array, at: number, out: Float32Array, to: number): void {
  const d = f16At(b, at + 208)
  for (let half = 0; half < 2; half++) {
    const low = at + 64 * half
    const high = at + 128 + 32 * half
    const scales = at + 192 + 8 * half
    for (let group = 0; group < 8; group++) {
      const scale = Math.fround(d * i8(b[scales + group]!))
      const quarter = group >> 1
      for (let i = 0; i < 16; i++) {
        const column = 16 * (group & 1) + i
        const nibble = (b[low + column + 32 * (quarter & 1)]! >> (4 * (quarter >> 1))) & 15
        const q = nibble | (((b[high + column]! >> (2 * quarter)) & 3) << 4)
        out[to + 128 * half + 16 * group + i] = (q - 32) * scale
      }
    }
  }
}

/**
 * 16 bytes, of 16 weights each: scale below, minimum above · 64 bytes of pairs of bits · d f16 · dmin f16. Of 128 weights,
 * byte i of 32 holds i, i + 32, i + 64, i + 96; q·(d·scale) − dmin·minimum
 */
function unpackQ2_K(b: Uint8Array, at: number, out: Float32Array, to: number): void {
  const d = f16At(b, at + 80)
  const dmin = f16At(b, at + 82)
  for (let group = 0; group < 16; group++) {
    const byte = b[at + group]!
    const scale = Math.fround(d * (byte & 15))
    const minimum = Math.fround(dmin * (byte >> 4))
    for (let i = 0; i < 16; i++) out[to + 16 * group + i] = pairAt(b, at + 16, group, i) * scale - minimum
  }
}

/** Weight i of a group of 16: two bits. */
function pairAt(b: Uint8Array, at: number, group: number, i: number): number {
  const byte = b[at + 32 * (group >> 3) + 16 * (group & 1) + i]!
  return (byte >> (2 * ((group >> 1) & 3))) & 3
}

/**
 * 32 bytes, bit j of byte i the third bit of weight i of 32-group j · 64 bytes of pairs as above · 12 bytes with the
 * six-bit scales of 16 weights each · d f16; (q − 4)·d·(scale − 32)
 */
function unpackQ3_K(b: Uint8Array, at: number, out: Float32Array, to: number): void {
  const d = f16At(b, at + 108)
  for (let group = 0; group < 16; group++) {
    const scale = Math.fround(d * (sixBitScale(b, at + 96, group) - 32))
    for (let i = 0; i < 16; i++) {
      const third = (b[at + 16 * (group & 1) + i]! >> (group >> 1)) & 1
      out[to + 16 * group + i] = (pairAt(b, at + 32, group, i) + 4 * third - 4) * scale
    }
  }
}

/** Halves of the first eight below, of the others above; four bytes of the upper pairs. */
function sixBitScale(b: Uint8Array, at: number, group: number): number {
  const low = (b[at + (group & 7)]! >> (4 * (group >> 3))) & 15
  return low | (((b[at + 8 + (group & 3)]! >> (2 * (group >> 2))) & 3) << 4)
}

/** What the codes of IQ4 stand for. */
const LEVELS = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]

/** d f16 · eight upper pairs of bits of scales · their low halves · per 32 weights 16 bytes as of IQ4_NL; level·d·(scale − 32) */
function unpackIQ4_XS(b: Uint8Array, at: number, out: Float32Array, to: number): void {
  const d = f16At(b, at)
  const upper = b[at + 2]! | (b[at + 3]! << 8)
  for (let group = 0; group < 8; group++) {
    const low = (b[at + 4 + (group >> 1)]! >> (4 * (group & 1))) & 15
    const scale = low | (((upper >> (2 * group)) & 3) << 4)
    unpackLevels(b, at + 8 + 16 * group, Math.fround(d * (scale - 32)), out, to + 32 * group)
  }
}

function unpackLevels(b: Uint8Array, at: number, scale: number, out: Float32Array, to: number): void {
  for (let i = 0; i < 16; i++) {
    const byte = b[at + i]!
    out[to + i] = LEVELS[byte & 15]! * scale
    out[to + 16 + i] = LEVELS[byte >> 4]! * scale
  }
}
