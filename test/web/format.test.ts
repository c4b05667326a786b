import { expect, test } from 'vitest'
import { formatBytes } from '../../src/cli/terminal/output.ts'
import { bytes } from '../../web/src/lib/format.ts'

test.each([
  [0, '0 B'],
  [999, '999 B'],
  [1000, '1.00 KB'],
  [537_000_000, '537 MB'],
  [999_700_000, '1.00 GB'],
  [3 * 2 ** 30, '3.22 GB'],
  [5e15, '5000 TB'],
])('%d bytes are %s', (size, text) => {
  expect(bytes(size)).toBe(text)
})

test('the dashboard and the commands use the same units', () => {
  for (const size of [1, 12_345, 11_504_093, 2 ** 30, 137_438_953_472]) {
    expect(bytes(size)).toBe(formatBytes(size))
  }
})
