/**
 * Writes GGUF files for tests after the format's own description: metadata, tensor infos, aligned data, and the block
 * types with simple quantisers of our own. The tests check what a block means, not how good it is.
 */
import { writeFileSync } from 'node:fs'
import { decodeFloats, encodeFloats } from '../../src/backend/half.ts'
import {
  BLOCK_SIZES,
  type BlockType,
  GGUF_TYPES,
  type GgufType,
  plainType,
} from '../../src/model/formats/gguf/types.ts'

export type GgufValue = number | string | boolean | readonly string[] | readonly number[]

export interface GgufTensorValues {
  readonly name: string
  /** Outermost axis first. */
  readonly shape: readonly number[]
  readonly type: GgufType
  readonly values: Float32Array
  /** Encodes only this many values and repeats them, for files of real size. */
  readonly repeats?: number | undefined
}

const ALIGNMENT = 32

export function ggufBytes(
  metadata: Readonly<Record<string, GgufValue>>,
  tensors: readonly GgufTensorValues[],
  { version = 3 }: { readonly version?: number } = {},
): Buffer {
  const data = tensors.map(({ type, values, repeats }) => {
    const distinct = values.subarray(0, repeats ?? values.length)
    const bytes = encodeAs(type, distinct)
    return align(Buffer.alloc((bytes.length / distinct.length) * values.length, bytes))
  })
  let offset = 0
  const infos = tensors.map(({ name, shape, type }, i) => {
    const number = [...GGUF_TYPES].find(([, known]) => known === type)![0]
    const info = [text(name), u32(shape.length), ...shape.toReversed().map(u64), u32(number)]
    info.push(u64(offset))
    offset += data[i]!.length
    return Buffer.concat(info)
  })
  const keys = Object.entries(metadata).map(([key, value]) => Buffer.concat([text(key), encodeValue(value)]))
  const head = [Buffer.from('GGUF'), u32(version), u64(tensors.length), u64(keys.length)]
  return Buffer.concat([align(Buffer.concat([...head, ...keys, ...infos])), ...data])
}

export function writeGguf(
  path: string,
  metadata: Readonly<Record<string, GgufValue>>,
  tensors: readonly GgufTensorValues[],
): string {
  writeFileSync(path, ggufBytes(metadata, tensors))
  return path
}

/** Whole numbers become u32, others f32. */
function encodeValue(value: GgufValue): Buffer {
  if (typeof value === 'string') return Buffer.concat([u32(8), text(value)])
  if (typeof value === 'boolean') return Buffer.concat([u32(7), Buffer.of(value ? 1 : 0)])
  if (typeof value === 'number') {
    return Number.isInteger(value) ? Buffer.concat([u32(4), u32(value)]) : Buffer.concat([u32(6), f32(value)])
  }
  const isText = typeof value[0] === 'string'
  const items = value.map((item) => (typeof item === 'string' ? text(item) : u32(item)))
  return Buffer.concat([u32(9), u32(isText ? 8 : 5), u64(value.length), ...items])
}

function u32(value: number): Buffer {
  const bytes = Buffer.alloc(4)
  bytes.writeUInt32LE(value)
  return bytes
}

function u64(value: number): Buffer {
  const bytes = Buffer.alloc(8)
  bytes.writeBigUInt64LE(BigInt(value))
  return bytes
}

function f32(value: number): Buffer {
  const bytes = Buffer.alloc(4)
  bytes.writeFloatLE(value)
  return bytes
}

function text(value: string): Buffer {
  const bytes = Buffer.from(value)
  return Buffer.concat([u64(bytes.length), bytes])
}

function align(bytes: Uint8Array): Buffer {
  const padding = (ALIGNMENT - (bytes.length % ALIGNMENT)) % ALIGNMENT
  return Buffer.concat([bytes, Buffer.alloc(padding)])
}

/** `values` fills whole blocks. */
export function encodeAs(type: GgufType, values: Float32Array): Uint8Array {
  const plain = plainType(type)
  if (plain) return encodeFloats(values, plain)
  const packed = type as BlockType // the rest of the types
  const { elements } = BLOCK_SIZES[type]
  const blocks: Uint8Array[] = []
  for (let at = 0; at < values.length; at += elements) {
    blocks.push(QUANTISERS[packed](values.subarray(at, at + elements)))
  }
  return Buffer.concat(blocks)
}

type Quantiser = (values: Float32Array) => Uint8Array

const QUANTISERS: Readonly<Record<BlockType, Quantiser>> = {
  Q4_0: (values) => symmetric(values, 8),
  Q5_0: (values) => symmetric(values, 16),
  Q4_1: (values) => affine(values, 15),
  Q5_1: (values) => affine(values, 31),
  Q8_0: (values) => {
    const d = roundF16(largest(values) / 127)
    return Buffer.concat([f16(d), signed(values, (v) => quotient(v, d, -127, 127))])
  },
  Q4_K: (values) => grouped(values, 15),
  Q5_K: (values) => grouped(values, 31),
  Q6_K: sixBit,
  Q2_K: twoBit,
  Q3_K: threeBit,
  IQ4_NL: (values) => {
    const d = roundF16(largest(values) / 113)
    return Buffer.concat([f16(d), nibbles(Array.from(values, (v) => nearestLevel(v, d)))])
  },
  IQ4_XS: ofLevels,
}

/** d f16 · [fifth bits] · nibbles; levels −half … half − 1 */
function symmetric(values: Float32Array, half: number): Uint8Array {
  const d = roundF16(largest(values) / (half - 1))
  const q = Array.from(values, (v) => quotient(v, d, -half, half - 1) + half)
  return Buffer.concat([f16(d), ...(half === 16 ? [fifthBits(q)] : []), nibbles(q)])
}

/** d f16 · m f16 · [fifth bits] · nibbles */
function affine(values: Float32Array, levels: number): Uint8Array {
  const m = roundF16(Math.min(...values))
  const d = roundF16((Math.max(...values) - m) / levels)
  const q = Array.from(values, (v) => quotient(v - m, d, 0, levels))
  return Buffer.concat([f16(d), f16(m), ...(levels === 31 ? [fifthBits(q)] : []), nibbles(q)])
}

/** Eight groups of 32, each with a six-bit scale and minimum in units of d and dmin. */
function grouped(values: Float32Array, levels: number): Uint8Array {
  const groups = Array.from({ length: 8 }, (_, j) => values.subarray(32 * j, 32 * j + 32))
  const minima = groups.map((group) => Math.max(0, -Math.min(...group)))
  const spans = groups.map((group, j) => (Math.max(...group) + minima[j]!) / levels)
  const d = roundF16(Math.max(...spans) / 63)
  const dmin = roundF16(Math.max(...minima) / 63)
  const scales = spans.map((span) => quotient(span, d, 0, 63))
  const offsets = minima.map((minimum) => quotient(minimum, dmin, 0, 63))
  const q = groups.map((group, j) =>
    Array.from(group, (v) => quotient(v + offsets[j]! * dmin, d * scales[j]!, 0, levels)),
  )
  const fifth = Uint8Array.from({ length: 32 }, (_, i) =>
    q.reduce((byte, group, j) => byte | ((group[i]! >> 4) << j), 0),
  )
  const low = Uint8Array.from({ length: 128 }, (_, i) => {
    const [pair, column] = [i >> 5, i & 31]
    return (q[2 * pair]![column]! & 15) | ((q[2 * pair + 1]![column]! & 15) << 4)
  })
  const packed = packSixBits(scales, offsets)
  return Buffer.concat([f16(d), f16(dmin), packed, ...(levels === 31 ? [fifth] : []), low])
}

/** Twelve bytes: six bits each of the first four scales and minima, whose upper pairs of bits hold the others' tops. */
function packSixBits(scales: readonly number[], minima: readonly number[]): Uint8Array {
  const bytes = new Uint8Array(12)
  for (let j = 0; j < 4; j++) {
    bytes[j] = scales[j]! | ((scales[j + 4]! >> 4) << 6)
    bytes[j + 4] = minima[j]! | ((minima[j + 4]! >> 4) << 6)
    bytes[j + 8] = (scales[j + 4]! & 15) | ((minima[j + 4]! & 15) << 4)
  }
  return bytes
}

/** Sixteen groups of 16 with signed scales in units of d; levels −32 … 31. */
function sixBit(values: Float32Array): Uint8Array {
  const groups = Array.from({ length: 16 }, (_, j) => values.subarray(16 * j, 16 * j + 16))
  const d = roundF16(largest(values) / 31 / 127)
  const scales = groups.map((group) => quotient(largest(group) / 31, d, -128, 127))
  const q = groups.flatMap((group, j) => Array.from(group, (v) => quotient(v, d * scales[j]!, -32, 31) + 32))
  const low = new Uint8Array(128)
  const high = new Uint8Array(64)
  for (const [i, value] of q.entries()) {
    const [half, quarter, column] = [i >> 7, (i >> 5) & 3, i & 31]
    low[64 * half + 32 * (quarter & 1) + column]! |= (value & 15) << (4 * (quarter >> 1))
    high[32 * half + column]! |= (value >> 4) << (2 * quarter)
  }
  return Buffer.concat([low, high, signed(scales), f16(d)])
}

/** Sixteen groups of 16 with four-bit scales and minima in units of d and dmin; levels 0 … 3. */
function twoBit(values: Float32Array): Uint8Array {
  const groups = Array.from({ length: 16 }, (_, j) => values.subarray(16 * j, 16 * j + 16))
  const minima = groups.map((group) => Math.max(0, -Math.min(...group)))
  const spans = groups.map((group, j) => (Math.max(...group) + minima[j]!) / 3)
  const d = roundF16(Math.max(...spans) / 15)
  const dmin = roundF16(Math.max(...minima) / 15)
  const scales = spans.map((span) => quotient(span, d, 0, 15))
  const offsets = minima.map((minimum) => quotient(minimum, dmin, 0, 15))
  const q = groups.flatMap((group, j) =>
    Array.from(group, (v) => quotient(v + offsets[j]! * dmin, d * scales[j]!, 0, 3)),
  )
  const packed = Uint8Array.from(scales, (scale, j) => scale | (offsets[j]! << 4))
  return Buffer.concat([packed, pairs(q), f16(d), f16(dmin)])
}

/** Sixteen groups of 16 with scales of six bits, 32 too large, in units of d; levels −4 … 3. */
function threeBit(values: Float32Array): Uint8Array {
  const groups = Array.from({ length: 16 }, (_, j) => values.subarray(16 * j, 16 * j + 16))
  const d = roundF16(largest(values) / 3 / 31)
  const scales = groups.map((group) => quotient(largest(group) / 3, d, 0, 31) + 32)
  const q = groups.flatMap((group, j) => Array.from(group, (v) => quotient(v, d * (scales[j]! - 32), -4, 3) + 4))
  const thirds = new Uint8Array(32)
  for (const [i, value] of q.entries()) thirds[i % 32]! |= (value >> 2) << Math.floor(i / 32)
  const packed = new Uint8Array(12)
  for (const [j, scale] of scales.entries()) {
    packed[j % 8]! |= (scale & 15) << (j < 8 ? 0 : 4)
    packed[8 + (j % 4)]! |= (scale >> 4) << (2 * Math.floor(j / 4))
  }
  return Buffer.concat([thirds, pairs(q), packed, f16(d)])
}

/** 256 values of two bits: of 128, byte i of 32 holds i, i + 32, i + 64 and i + 96. */
function pairs(q: readonly number[]): Uint8Array {
  const bytes = new Uint8Array(64)
  for (const [i, value] of q.entries()) bytes[32 * (i >> 7) + (i & 31)]! |= (value & 3) << (2 * ((i >> 5) & 3))
  return bytes
}

/** Eight groups of 32 with scales of six bits, 32 too large, in units of d. */
function ofLevels(values: Float32Array): Uint8Array {
  const groups = Array.from({ length: 8 }, (_, j) => values.subarray(32 * j, 32 * j + 32))
  const d = roundF16(largest(values) / 113 / 31)
  const scales = groups.map((group) => quotient(largest(group) / 113, d, 0, 31) + 32)
  const upper = scales.reduce((bits, scale, j) => bits | ((scale >> 4) << (2 * j)), 0)
  const lower = Uint8Array.from({ length: 4 }, (_, i) => (scales[2 * i]! & 15) | ((scales[2 * i + 1]! & 15) << 4))
  const codes = groups.map((group, j) => nibbles(Array.from(group, (v) => nearestLevel(v, d * (scales[j]! - 32)))))
  return Buffer.concat([f16(d), Uint8Array.of(upper & 255, upper >> 8), lower, ...codes])
}

const LEVELS = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]

function nearestLevel(value: number, unit: number): number {
  const distances = LEVELS.map((level) => Math.abs(level * unit - value))
  return distances.indexOf(Math.min(...distances))
}

function nibbles(q: readonly number[]): Uint8Array {
  return Uint8Array.from({ length: 16 }, (_, i) => (q[i]! & 15) | ((q[i + 16]! & 15) << 4))
}

function fifthBits(q: readonly number[]): Uint8Array {
  return u32(q.reduce((bits, value, i) => bits | ((value >> 4) << i), 0) >>> 0)
}

function signed(values: Iterable<number>, round = (value: number) => value): Uint8Array {
  return new Uint8Array(Int8Array.from(values, round).buffer)
}

function quotient(value: number, unit: number, min: number, max: number): number {
  if (unit === 0) return 0
  return Math.min(max, Math.max(min, Math.round(value / unit)))
}

function largest(values: Float32Array): number {
  return values.reduce((max, value) => Math.max(max, Math.abs(value)), 0)
}

function f16(value: number): Uint8Array {
  return encodeFloats(Float32Array.of(value), 'f16')
}

function roundF16(value: number): number {
  return decodeFloats(f16(value), 'f16')[0]!
}
