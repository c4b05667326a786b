import { expect, test } from 'vitest'
import { decodeFloats, encodeFloats } from '../../src/backend/half.ts'

const bitsOf = (values: number[], dtype: 'f16' | 'bf16') =>
  Array.from(new Uint16Array(encodeFloats(Float32Array.from(values), dtype).buffer))

test.each(['f16', 'bf16'] as const)('every %s survives f32 and back', (dtype) => {
  const bits = Uint16Array.from({ length: 65536 }, (_, i) => i)
  const floats = decodeFloats(new Uint8Array(bits.buffer), dtype)
  const back = new Uint16Array(encodeFloats(floats, dtype).buffer)
  for (let i = 0; i < 65536; i++) {
    if (Number.isNaN(floats[i]))
      expect(Number.isNaN(decodeFloats(Uint8Array.of(back[i]!, back[i]! >> 8), dtype)[0])).toBe(true)
    else if (back[i] !== i) expect(back[i]).toBe(i)
  }
})

test('f16 has the values of IEEE 754', () => {
  const bits = Uint16Array.of(0x3c00, 0xc000, 0x7bff, 0x0400, 0x0001, 0x7c00, 0xfc00, 0x8000)
  expect(Array.from(decodeFloats(new Uint8Array(bits.buffer), 'f16'))).toEqual([
    1,
    -2,
    65504,
    2 ** -14,
    2 ** -24,
    Number.POSITIVE_INFINITY,
    Number.NEGATIVE_INFINITY,
    -0,
  ])
})

test('f16 rounds to nearest, ties to even', () => {
  const ulp = 2 ** -10
  expect(bitsOf([1 + ulp / 2, 1 + (3 * ulp) / 2, 1 + ulp * 0.51], 'f16')).toEqual([0x3c00, 0x3c02, 0x3c01])
  expect(bitsOf([65519.99, 65520, -1e6, 1e38], 'f16')).toEqual([0x7bff, 0x7c00, 0xfc00, 0x7c00])
  // Subnormals: 2^-24 is the least, half of it is a tie with zero.
  expect(bitsOf([2 ** -25, 2 ** -25 * 1.01, 3 * 2 ** -25, 2 ** -26, -(2 ** -24)], 'f16')).toEqual([0, 1, 2, 0, 0x8001])
  expect(bitsOf([2 ** -14 - 2 ** -26], 'f16')).toEqual([0x0400])
})

test('bf16 rounds to nearest, ties to even, and keeps NaN', () => {
  expect(bitsOf([1, 1 + 2 ** -8, 1 + 3 * 2 ** -8, 3.4e38], 'bf16')).toEqual([0x3f80, 0x3f80, 0x3f82, 0x7f80])
  const quiet = new Float32Array(Uint32Array.of(0x7f800001).buffer)
  expect(Number.isNaN(decodeFloats(encodeFloats(quiet, 'bf16'), 'bf16')[0])).toBe(true)
})

test('a view at an odd address is decoded', () => {
  const bytes = new Uint8Array(9)
  bytes.set(encodeFloats(Float32Array.of(1.5, -2), 'f32'), 1)
  expect(Array.from(decodeFloats(bytes.subarray(1), 'f32'))).toEqual([1.5, -2])
})
