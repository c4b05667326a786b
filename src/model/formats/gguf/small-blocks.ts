/**
 * The blocks of GGUF that are read and not computed with: two and three bits, and four that index levels. As blocks.ts.
 */
import { f16ToFloat } from '../../../backend/half.ts'

function f16At(b: Uint8Array, at: number): number {
  return f16ToFloat(b[at]! | (b[at + 1]! << 8))
}

/**
 * 16 bytes, of 16 weights each: scale below, minimum above · 64 bytes of pairs of bits · d f16 · dmin f16. Of 128 weights,
 * byte i of 32 holds i, i + 32, i + 64, i + 96; q·(d·scale) − dmin·minimum
 */
export function unpackQ2_K(b: Uint8Array, at: number, out: Float32Array, to: number): void {
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
export function unpackQ3_K(b: Uint8Array, at: number, out: Float32Array, to: number): void {
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

/** d f16 · 16 bytes: the low halves are weights 0–15, the high ones 16–31; level·d */
export function unpackIQ4_NL(b: Uint8Array, at: number, out: Float32Array, to: number): void {
  unpackLevels(b, at + 2, f16At(b, at), out, to)
}

/** d f16 · eight upper pairs of bits of scales · their low halves · per 32 weights 16 bytes as above; level·d·(scale − 32) */
export function unpackIQ4_XS(b: Uint8Array, at: number, out: Float32Array, to: number): void {
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
