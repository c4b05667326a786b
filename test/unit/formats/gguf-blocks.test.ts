import { createHash } from 'node:crypto'
import { describe, expect, test } from 'vitest'
import { unpackBlocks } from '../../../src/model/formats/gguf/blocks.ts'
import { BLOCK_SIZES, type BlockType } from '../../../src/model/formats/gguf/types.ts'
import { encodeAs } from '../../helpers/gguf.ts'

function unpack(type: BlockType, bytes: Uint8Array): number[] {
  const { elements, bytes: blockBytes } = BLOCK_SIZES[type]
  const out = new Float32Array((bytes.length / blockBytes) * elements)
  unpackBlocks(type, bytes, out)
  return Array.from(out)
}

/** f16 of 0.5, 2 and −1, little-endian. */
const HALF = [0x00, 0x38]
const TWO = [0x00, 0x40]
const MINUS_ONE = [0x00, 0xbc]
const repeat = (count: number, value: number) => new Array<number>(count).fill(value)

/** Handwritten blocks, from the description of each layout; [index, value] of the expected weights. */
const BY_HAND: Record<BlockType, { bytes: number[]; expected: [number, number][] }> = {
  // Byte 0 = 0xf0: weight 0 has level 0, weight 16 level 15; byte 3 = 0x29: weight 3 level 9, weight 19 level 2.
  Q4_0: {
    bytes: [...HALF, 0xf0, 0x88, 0x88, 0x29, ...repeat(12, 0x88)],
    expected: [
      [0, -4],
      [16, 3.5],
      [1, 0],
      [3, 0.5],
      [19, -3],
      [31, 0],
    ],
  },
  Q4_1: {
    bytes: [...HALF, ...MINUS_ONE, 0xf0, ...repeat(14, 0), 0x71],
    expected: [
      [0, -1],
      [16, 6.5],
      [15, -0.5],
      [31, 2.5],
    ],
  },
  // Fifth bits 0x80000001: of weights 0 and 31.
  Q5_0: {
    bytes: [...TWO, 0x01, 0, 0, 0x80, 0x0f, ...repeat(14, 0), 0x10],
    expected: [
      [0, (15 + 16 - 16) * 2],
      [31, (1 + 16 - 16) * 2],
      [16, -32],
      [1, -32],
    ],
  },
  Q5_1: {
    bytes: [...TWO, ...MINUS_ONE, 0x00, 0x80, 0x01, 0, 0x0f, ...repeat(14, 0), 0x53],
    expected: [
      [0, 29],
      [15, (3 + 16) * 2 - 1],
      [16, 16 * 2 - 1],
      [31, 9],
    ],
  },
  Q8_0: {
    bytes: [...HALF, 0x80, 0x7f, 0xff, ...repeat(29, 1)],
    expected: [
      [0, -64],
      [1, 63.5],
      [2, -0.5],
      [31, 0.5],
    ],
  },
  // Group 0: scale 1, minimum 2. Group 5: scale 0x21 = 33 (1 below, top pair 2), minimum 0x32 = 50 (2 below, top 3).
  Q4_K: {
    bytes: [
      ...[...HALF, ...TWO, 1, 0x80, 0, 0, 2, 0xc0, 0, 0, 0, 0x21, 0, 0],
      ...[0x07, ...repeat(63, 0)], // groups 0 to 3
      ...[0xe0, ...repeat(63, 0)], // groups 4 to 7
    ],
    expected: [
      [0, 7 * 0.5 - 4],
      [1, -4],
      [32, 0],
      [128, 0],
      [160, 14 * 16.5 - 100],
      [161, -100],
    ],
  },
  Q5_K: {
    bytes: [
      ...[...HALF, ...TWO, 1, 0x80, 0, 0, 2, 0xc0, 0, 0, 0, 0x21, 0, 0],
      ...[0b00100001, ...repeat(31, 0)], // fifth bit of weight 0 of groups 0 and 5
      ...[0x07, ...repeat(63, 0)],
      ...[0xe0, ...repeat(63, 0)],
    ],
    expected: [
      [0, 23 * 0.5 - 4],
      [1, -4],
      [160, 30 * 16.5 - 100],
      [161, -100],
    ],
  },
  // Low byte 0 = 0x5a: weights 0 (0xa) and 64 (0x5); high byte 0 = 0b11_10_01_00: pairs of weights 0, 32, 64, 96.
  Q6_K: {
    bytes: [
      ...[0x5a, ...repeat(31, 0), 0x31, ...repeat(31, 0), ...repeat(64, 0)],
      ...[0b11100100, ...repeat(63, 0)],
      ...[1, 0, 2, 0, 3, 0, 0xff, 0, ...repeat(8, 1)],
      ...HALF,
    ],
    expected: [
      [0, (10 - 32) * 0.5],
      [32, (0x11 - 32) * 1],
      [64, (0x25 - 32) * 1.5],
      [96, (0x33 - 32) * -0.5],
      [16, 0],
      [128, -16],
    ],
  },
  // Groups of 16: scale 3 and minimum 2 of group 0, scale 1 of group 5. Byte 1 = 0b10_01_00_11: weights 1, 33, 65, 97.
  Q2_K: {
    bytes: [
      ...[0x23, 0, 0, 0, 0, 0x01, ...repeat(10, 0)],
      ...[0, 0b10010011, ...repeat(15, 0), 0b00010000, ...repeat(46, 0)],
      ...HALF,
      ...TWO,
    ],
    expected: [
      [0, -4],
      [1, 3 * 1.5 - 4],
      [33, 0],
      [81, 0.5],
      [128, 0],
    ],
  },
  // Scales: group 0 has 0x25 (5 below, 2 above) − 32 = 5, group 9 0x1c (12, 1) − 32 = −4, the others −32.
  Q3_K: {
    bytes: [
      ...[0b00000001, 0, ...repeat(14, 0), 0, 0b00010000, ...repeat(14, 0)],
      ...[0b11, 0b01, ...repeat(30, 0), ...repeat(16, 0), 0, 0b10, ...repeat(14, 0)],
      ...[0x05, 0xc0, ...repeat(6, 0), 0b00000010, 0b00010000, 0, 0],
      ...HALF,
    ],
    expected: [
      [0, 3 * 2.5],
      [1, -3 * 2.5],
      [2, -4 * 2.5],
      [145, 2 * -2],
      [146, -4 * -2],
      [32, -4 * -16],
    ],
  },
  IQ4_NL: {
    bytes: [...HALF, 0xf0, ...repeat(14, 0x88), 0x19],
    expected: [
      [0, -63.5],
      [16, 56.5],
      [1, 0.5],
      [15, 6.5],
      [31, -52],
    ],
  },
  // Scales: group 0 has 1 below and 2 above, so 33 − 32 = 1; group 3 has 15 and 1, so −1; the others −32.
  IQ4_XS: {
    bytes: [
      ...[...HALF, 0b01000010, 0, 0x01, 0xf0, 0, 0],
      ...[0xf0, ...repeat(15, 0)],
      ...repeat(32, 0),
      ...[0x0f, ...repeat(15, 0)],
      ...repeat(64, 0),
    ],
    expected: [
      [0, -63.5],
      [16, 56.5],
      [96, -56.5],
      [112, 63.5],
      [32, 127 * 16],
    ],
  },
}

const TYPES = Object.keys(BY_HAND) as BlockType[] // Object.keys loses the key type

describe('handwritten blocks', () => {
  test.each(TYPES)('%s', (type) => {
    const { bytes, expected } = BY_HAND[type]
    expect(bytes).toHaveLength(BLOCK_SIZES[type].bytes)
    const values = unpack(type, Uint8Array.from(bytes))
    for (const [index, value] of expected) expect([index, values[index]! + 0]).toEqual([index, value])
  })
})

/** Sha256 of the f32 that gguf-py 0.19 (ggml-org/llama.cpp, gguf.quants.dequantize) returns for the blocks below. */
const BY_GGUF_PY: Record<BlockType, string> = {
  Q4_0: 'c47934fa30833ec7a9b668bf47a3e1922f4e4b830dc9b2c0914c2649d6853f52',
  Q4_1: 'c251f64af32a6d6cbcc62f580e7547a56332e8829a5d745930d9944e77f11771',
  Q5_0: '45848ec0524ce5b57e72c8f1c05bb7d92fe6601bff379d4c791cca337de5ce2a',
  Q5_1: '6baa2947f23a0a2d72767bce1d41f2b9cbc41c51412279fc918ac8686394c284',
  Q8_0: 'cd5e9a50003bf516c5e18c3480abe9dea49fc0bc3ad0d777d2f19befc7eaff73',
  Q4_K: '127aa79d82ba93576013f3f6540bd36288aa902b7a387047dfff69e921199401',
  Q5_K: '2c8571016e50f6168e537213ba4b50b3f1d5a0f129652b0078f3ecf9391a27c1',
  Q6_K: '113dee6fb6dc5b811b6f27569bd7167eef7a49e7dbf1c6ec8f4755bde7ce17aa',
  Q2_K: '6ada3eb1a3f4bfa6653be9c2757fee75a2930c5934f783839aea82fbb8f5f46c',
  Q3_K: '57bf19620c302be3abce3d7c6f1ae5b7db29b338b44413ac60a42312d71e45f3',
  IQ4_NL: 'fc9c5742dc92a2a9fc1e248b93c79cb14476fdaf118c64cc3ed72a9977d901e4',
  IQ4_XS: '1800e977d8e9e60d3d1d5339d5633dfec859e9fd6e2787b7b774cf9abc5f3b82',
}

/** Any bytes are a block if the scales are finite: the top exponent bit of each is cleared. */
function anyBlocks(type: BlockType): Uint8Array {
  const { bytes: size } = BLOCK_SIZES[type]
  const scales = {
    ...{ Q4_1: [1, 3], Q5_1: [1, 3], Q4_K: [1, 3], Q5_K: [1, 3], Q6_K: [209] },
    ...{ Q2_K: [81, 83], Q3_K: [109] },
  }
  const clear: readonly number[] = Object.entries(scales).find(([name]) => name === type)?.[1] ?? [1]
  let state = 7
  return Uint8Array.from({ length: 64 * size }, (_, i) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
    const byte = state >>> 24
    return clear.includes(i % size) ? byte & 0xbf : byte
  })
}

describe('random bytes, bit for bit as in gguf-py', () => {
  test.each(TYPES)('%s', (type) => {
    const values = Float32Array.from(unpack(type, anyBlocks(type)))
    const hash = createHash('sha256').update(new Uint8Array(values.buffer)).digest('hex')
    expect(hash).toBe(BY_GGUF_PY[type])
  })
})

describe('quantised and unpacked again', () => {
  /** Half a step of each type, as a share of the block's largest weight. */
  const HALF_STEP: Record<BlockType, number> = {
    Q4_0: 1 / 14,
    Q4_1: 1 / 14,
    Q5_0: 1 / 30,
    Q5_1: 1 / 30,
    Q8_0: 1 / 254,
    Q4_K: 1 / 11,
    Q5_K: 1 / 20,
    Q6_K: 1 / 50,
    Q2_K: 1 / 3,
    Q3_K: 1 / 5,
    IQ4_NL: 1 / 8,
    IQ4_XS: 1 / 7,
  }
  test.each(TYPES)('%s is within its step, every weight in its place', (type) => {
    // Distinct values per weight, so that two exchanged weights would be noticed.
    const values = Float32Array.from({ length: 512 }, (_, i) => Math.sin(i * 2.399) * (1 + i / 512))
    const unpacked = unpack(type, encodeAs(type, values))
    const limit = 2 * HALF_STEP[type]
    const worst = Math.max(...unpacked.map((value, i) => Math.abs(value - values[i]!)))
    expect(worst).toBeLessThan(limit)
    expect(worst).toBeGreaterThan(limit / 100)
  })
})
