/**
 * The three element types of a checkpoint as bytes: f32, IEEE f16 and bf16 (the upper half of an f32), converted to
 * and from Float32Array. Rounds to nearest, ties to even, as the hardware does. Bytes are little-endian and so is
 * every platform Node supports that we run on. Knows nothing of files.
 */
import type { SourceType } from './weight-types.ts'

export const BYTES_PER_ELEMENT: Readonly<Record<SourceType, number>> = { f32: 4, f16: 2, bf16: 2 }

/** Elements as the bits they are, without a copy. The view begins at an address fit for its type. */
export function elementBits(bytes: Uint8Array, dtype: SourceType): Uint16Array | Uint32Array {
  const { buffer, byteOffset, byteLength } = bytes
  return dtype === 'f32'
    ? new Uint32Array(buffer, byteOffset, byteLength / 4)
    : new Uint16Array(buffer, byteOffset, byteLength / 2)
}

/** Little-endian elements of `dtype` → f32, always a fresh array. */
export function decodeFloats(bytes: Uint8Array, dtype: SourceType): Float32Array {
  // A typed array needs an aligned offset, which a view into a file's buffer may not have.
  const aligned = bytes.byteOffset % 4 === 0 ? bytes : bytes.slice()
  const { buffer, byteOffset } = aligned
  if (dtype === 'f32') return new Float32Array(buffer, byteOffset, bytes.byteLength >>> 2).slice()
  const halves = new Uint16Array(buffer, byteOffset, bytes.byteLength >>> 1)
  const floats = new Float32Array(halves.length)
  if (dtype === 'bf16') {
    const bits = new Uint32Array(floats.buffer)
    for (let i = 0; i < halves.length; i++) bits[i] = halves[i]! << 16
    return floats
  }
  const values = f16Table()
  for (let i = 0; i < halves.length; i++) floats[i] = values[halves[i]!]!
  return floats
}

/** f32 → little-endian elements of `dtype`, always a fresh array. */
export function encodeFloats(values: Float32Array, dtype: SourceType): Uint8Array {
  const bits = new Uint32Array(values.buffer, values.byteOffset, values.length)
  if (dtype === 'f32') return new Uint8Array(bits.slice().buffer)
  const halves = new Uint16Array(values.length)
  const convert = dtype === 'bf16' ? bf16FromBits : f16FromBits
  for (let i = 0; i < halves.length; i++) halves[i] = convert(bits[i]!)
  return new Uint8Array(halves.buffer)
}

/** Every f16 as f32, made at first use: 256 KiB, and four times faster than the arithmetic. */
let f16Values: Float32Array | undefined

// [65536]

export function f16Table(): Float32Array {
  f16Values ??= Float32Array.from({ length: 65536 }, (_, bits) => f16Value(bits))
  return f16Values
}

function f16Value(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1
  const exponent = (bits >>> 10) & 31
  const fraction = bits & 1023
  if (exponent === 31) return fraction === 0 ? sign * Number.POSITIVE_INFINITY : Number.NaN
  if (exponent === 0) return sign * fraction * 2 ** -24
  return sign * (1024 + fraction) * 2 ** (exponent - 25)
}

function bf16FromBits(bits: number): number {
  // A NaN whose payload sits in the lower half would round to infinity; make it quiet instead.
  if ((bits & 0x7fffffff) > 0x7f800000) return (bits >>> 16) | 0x40
  return (bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16
}

function f16FromBits(bits: number): number {
  const sign = (bits >>> 16) & 0x8000
  const magnitude = bits & 0x7fffffff
  if (magnitude > 0x7f800000) return sign | 0x7e00
  if (magnitude >= 0x47800000) return sign | 0x7c00
  if (magnitude >= 0x38800000) return sign | ((magnitude - 0x38000000 + 0xfff + ((magnitude >>> 13) & 1)) >>> 13)
  // Below 2^-14 an f16 is a multiple of 2^-24: shift the significand there and round to even.
  const shift = 126 - (magnitude >>> 23)
  if (shift > 24) return sign
  const significand = (magnitude & 0x7fffff) | 0x800000
  const half = 1 << (shift - 1)
  const kept = significand >>> shift
  const rest = significand & ((1 << shift) - 1)
  return sign | (rest > half || (rest === half && kept & 1) ? kept + 1 : kept)
}
