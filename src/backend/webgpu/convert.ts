/** Rows of a checkpoint in the type that a device holds, on the host. Knows no layout but rows. */
import { SkeinError } from '../../errors.ts'
import { decodeFloats, encodeFloats } from '../half.ts'
import type { MatrixSource, SourceType } from '../weight-types.ts'

/** Little-endian elements of a source's rows in another of its types. Throws unsupported_weights beyond the range of f16. */
export function narrowRows(
  bytes: Uint8Array,
  { name, dtype }: Pick<MatrixSource, 'name' | 'dtype'>,
  type: SourceType,
): Uint8Array {
  if (dtype === type) return bytes
  if (dtype === 'bf16' && type === 'f16') return bf16ToF16(bytes, name)
  const floats = decodeFloats(bytes, dtype)
  if (type === 'f16') for (const value of floats) if (Math.abs(value) > 65504) throw beyondF16(name, value)
  return encodeFloats(floats, type)
}

/** Rows padded with zeros to `rowBytes` each. */
export function widenRows(bytes: Uint8Array, rows: number, rowBytes: number): Uint8Array {
  const own = bytes.length / rows
  if (own === rowBytes) return bytes
  const wide = new Uint8Array(rows * rowBytes)
  for (let row = 0; row < rows; row++) wide.set(bytes.subarray(row * own, (row + 1) * own), row * rowBytes)
  return wide
}

/** The nearest f16 of every bf16, made at first use: a lookup is faster than the arithmetic. u16 [65536] */
let halves: Uint16Array | null = null
const INFINITY = 0x7c00

function bf16ToF16(bytes: Uint8Array, name: string): Uint8Array {
  halves ??= allBf16AsF16()
  const out = new Uint16Array(bytes.length / 2)
  for (let i = 0; i < out.length; i++) {
    const half = halves[bytes[2 * i]! | (bytes[2 * i + 1]! << 8)]!
    if ((half & 0x7fff) === INFINITY) {
      const [value] = decodeFloats(bytes.slice(2 * i, 2 * i + 2), 'bf16')
      throw beyondF16(name, value!)
    }
    out[i] = half
  }
  return new Uint8Array(out.buffer)
}

function allBf16AsF16(): Uint16Array {
  const all = Uint16Array.from({ length: 2 ** 16 }, (_, bits) => bits)
  const floats = decodeFloats(new Uint8Array(all.buffer), 'bf16')
  return new Uint16Array(encodeFloats(floats, 'f16').buffer)
}

function beyondF16(name: string, value: number): SkeinError {
  const message = `${name} holds ${value}, beyond the range of f16; use bf16 or f32`
  return new SkeinError('unsupported_weights', message)
}
