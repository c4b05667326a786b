import { expect, test } from 'vitest'
import { encodeFloats } from '../../src/backend/half.ts'
import { f16ToNumber, roundToF16 } from '../../src/backend/reference/tensors.ts'
import { narrowRows } from '../../src/backend/webgpu/convert.ts'

const bytesOf = (values: readonly number[]) => new Uint8Array(Float32Array.from(values).buffer)
const halvesOf = (bytes: Uint8Array) => Array.from(new Uint16Array(bytes.buffer, bytes.byteOffset, bytes.length / 2))
const named = (dtype: 'f32' | 'f16' | 'bf16') => ({ name: 'w', dtype })

const VALUES = [0, -0, 1, -1.5, 65504, -65504, 2 ** -14, 2 ** -24, 2 ** -25, 3 * 2 ** -26, 1e-9, Math.PI]

test('f32 becomes the f16 that the reference rounds it to', () => {
  const got = halvesOf(narrowRows(bytesOf(VALUES), named('f32'), 'f16')).map(f16ToNumber)
  expect(got).toEqual(VALUES.map((value) => roundToF16(Math.fround(value))))
})

test('every bf16 in range becomes the f16 that the reference rounds it to', () => {
  // Up to 65280, the last one below the end of f16's range.
  const bits = Uint16Array.from({ length: 0x4780 }, (_, i) => i)
  const values = Array.from(bits, (each) => new Float32Array(Uint32Array.of(each << 16).buffer)[0]!)
  const got = halvesOf(narrowRows(new Uint8Array(bits.buffer), named('bf16'), 'f16'))
  expect(got.map(f16ToNumber)).toEqual(values.map(roundToF16))
})

test('f16 and bf16 widen to f32 without loss; a row that has the type already is not changed', () => {
  const halves = encodeFloats(Float32Array.of(1, -2.5, 2 ** -24), 'f16')
  expect(narrowRows(halves, named('f16'), 'f32')).toEqual(bytesOf([1, -2.5, 2 ** -24]))
  expect(narrowRows(halves, named('f16'), 'f16')).toBe(halves)
})

test.each([
  ['f32', bytesOf([1, 65505])],
  ['f32', bytesOf([Number.NEGATIVE_INFINITY])],
  ['bf16', Uint8Array.of(0x80, 0x47)],
] as const)('beyond the range of f16, %s is refused by name', (dtype, bytes) => {
  expect(() => narrowRows(bytes, named(dtype), 'f16')).toThrow(/^w holds .*, beyond the range of f16/)
})
