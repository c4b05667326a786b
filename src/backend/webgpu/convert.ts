/** Rows of a checkpoint in the type that a device holds, on the host. Knows no layout but rows. */
import { SkeinError } from '../../errors.ts'
import { bf16Nearest, bf16ToNumber } from '../reference/quantise.ts'
import { f16ToNumber, roundToF16 } from '../reference/tensors.ts'
import type { MatrixSource, WeightType } from '../weight-types.ts'

/** Little-endian elements of a source's rows in another of its types. */
export function narrowRows(
  bytes: Uint8Array,
  { name, dtype }: MatrixSource,
  type: WeightType,
): Uint8Array {
  if (dtype === type) return bytes
  if (dtype === 'bf16' && type === 'f16') return bf16ToF16(bytes, name)
  const floats = dtype === 'f32' ? aligned(bytes) : toFloats(bytes, dtype)
  if (type === 'f32') return new Uint8Array(floats.buffer, floats.byteOffset, floats.byteLength)
  const words = new Uint16Array(floats.length)
  for (const [i, value] of floats.entries())
    words[i] = type === 'bf16' ? bf16Nearest(value) : f16Bits(value, name)
  return new Uint8Array(words.buffer)
}

/** Rows padded with zeros to `rowBytes` each. */
export function widenRows(bytes: Uint8Array, rows: number, rowBytes: number): Uint8Array {
  const own = bytes.length / rows
  if (own === rowBytes) return bytes
  const wide = new Uint8Array(rows * rowBytes)
  for (let row = 0; row < rows; row++)
    wide.set(bytes.subarray(row * own, (row + 1) * own), row * rowBytes)
  return wide
}

/** Of every bf16 the nearest f16, made at first use. u16 [65536] */
let halves: Uint16Array | null = null
/** Stands for those beyond the range: a NaN that no conversion gives. */
const BEYOND = 0x7fff

function bf16ToF16(bytes: Uint8Array, name: string): Uint8Array {
  halves ??= Uint16Array.from({ length: 2 ** 16 }, (_, bits) => {
    const value = bf16ToNumber(bits)
    return Math.abs(value) > MAX_F16 ? BEYOND : f16Bits(value, name)
  })
  const out = new Uint16Array(bytes.length / 2)
  for (let i = 0; i < out.length; i++) {
    const bits = bytes[2 * i]! | (bytes[2 * i + 1]! << 8)
    const half = halves[bits]!
    if (half === BEYOND) f16Bits(bf16ToNumber(bits), name)
    out[i] = half
  }
  return new Uint8Array(out.buffer)
}

function aligned(bytes: Uint8Array): Float32Array {
  const whole = bytes.byteOffset % 4 === 0 ? bytes : bytes.slice()
  return new Float32Array(whole.buffer, whole.byteOffset, whole.byteLength / 4)
}

function toFloats(bytes: Uint8Array, dtype: 'f16' | 'bf16'): Float32Array {
  const count = bytes.length / 2
  const words = new Uint32Array(count)
  const floats = new Float32Array(words.buffer)
  for (let i = 0; i < count; i++) {
    const bits = bytes[2 * i]! | (bytes[2 * i + 1]! << 8)
    if (dtype === 'bf16') words[i] = bits << 16
    else floats[i] = f16ToNumber(bits)
  }
  return floats
}

const MAX_F16 = 65504

/** Nearest f16, ties to even. */
function f16Bits(value: number, name: string): number {
  if (Number.isNaN(value)) return 0x7e00
  if (Math.abs(value) > MAX_F16)
    throw new SkeinError(
      'unsupported_weights',
      `${name} holds ${value}, beyond the range of f16; use bf16 or f32`,
    )
  const rounded = roundToF16(value)
  const sign = rounded < 0 || Object.is(rounded, -0) ? 0x8000 : 0
  const magnitude = Math.abs(rounded)
  if (magnitude < 2 ** -14) return sign | (magnitude * 2 ** 24)
  const exponent = Math.floor(Math.log2(magnitude))
  return sign | ((exponent + 15) << 10) | (magnitude * 2 ** (10 - exponent) - 1024)
}
