import { expect, test } from 'vitest'
import type { CudaDevice } from '../../../src/backend/cuda/device/device.ts'
import { tokensOfHalves } from '../../../src/backend/cuda/linear/halves.ts'
import { copyBytes } from '../../../src/backend/cuda/linear/rounded-many.ts'
import { cutOf } from '../../../src/backend/cuda/linear/rounded-tiles.ts'
import { CopyBudget } from '../../../src/backend/cuda/linear/sparse.ts'
import { rowBytesOf } from '../../../src/backend/cuda/rounded-matrix.ts'
import { TILED } from '../../cuda/ops-kit.ts'

test('the f16 copy of integers covers a small matrix, and has a limit for a large one', () => {
  const bytes = (rows: number, columns: number) => copyBytes({ type: 'i8', rows, columns })
  expect(bytes(2048, 2048)).toBe(2 * 2048 * 2048)
  expect(bytes(16_384, 4096)).toBe(128 << 20)
  // The head of 7B, in parts.
  expect(bytes(65_536, 4096)).toBe(128 << 20)
  expect(bytes(20_000, 4096)).toBeLessThanOrEqual(128 << 20)
  for (const type of ['f16', 'fp8'] as const) expect(copyBytes({ type, rows: 2048, columns: 2048 })).toBe(0)
})

/** Rows by tokens of a tile, how many tiles have a pair for all columns, and how many pairs share the columns of the others. */
function cut(atOnce: number, tokens: number, shapes: readonly (readonly [rows: number, columns: number])[]) {
  const jobs = shapes.map(([rows, columns]) => ({ rows, columns }))
  const { size, whole, shares } = cutOf(atOnce, 'i8', jobs, tokens)
  return [`${64 * size.warpgroups * size.units}x${size.tokens}`, whole, shares]
}

test('products have tiles of which few are left over on the chip, and few tiles share their columns', () => {
  // As on an H200.
  const on66 = (tokens: number, ...shapes: (readonly [number, number])[]) => cut(66, tokens, shapes)
  const square = [4096, 4096] as const
  expect(on66(64, [4096, 16_384])).toEqual(['128x64', 0, 4])
  expect(on66(128, square)).toEqual(['128x128', 0, 4])
  expect(on66(320, square, square, square)).toEqual(['192x160', 66, 1])
  expect(on66(320, [16_384, 4096])).toEqual(['256x160', 64, 1])
  expect(on66(320, [4096, 16_384])).toEqual(['192x160', 0, 3])
  expect(on66(512, square, square, square)).toEqual(['128x256', 66, 2])
  expect(on66(1024, square, square, square)).toEqual(['128x256', 192, 1])
  // A share has at least one part of the columns.
  expect(on66(64, [256, 4096], [256, 64])).toEqual(['128x64', 2, 1])
})

test.each(TILED)('$tokens tokens by $rows rows have tiles of $tile, $atOnce at once', (one) => {
  const { tile, tokens, atOnce, rows, columns } = one
  const shapes = rows.map((count) => [count, columns] as const)
  const [size, whole, shares] = cut(atOnce, tokens, shapes)
  expect([size, shares]).toEqual([tile, 'shares' in one ? one.shares : 1])
  if ('whole' in one) expect(whole).toBe(one.whole)
})

test('rows have whole parts of values and scales', () => {
  expect(rowBytesOf('i8', 2048)).toEqual({ values: 2048, scales: 128 })
  expect(rowBytesOf('q4', 2048)).toEqual({ values: 1024, scales: 128 })
  expect(rowBytesOf('nf4', 2048)).toEqual({ values: 1024, scales: 64 })
  expect(rowBytesOf('q5Minimum', 2048)).toEqual({ values: 1024 + 256, scales: 256 })
  expect(rowBytesOf('q6', 2048)).toEqual({ values: 1024 + 512, scales: 256 })
  // 17 groups of 32; two of them are a part of i8, four a part of q4.
  expect(rowBytesOf('i8', 544)).toEqual({ values: 9 * 64, scales: 36 })
  expect(rowBytesOf('q4', 544)).toEqual({ values: 5 * 64, scales: 40 })
})

test('copies in f16 are for many tokens, or few weights; e4m3 is multiplied as it is where that pays', () => {
  const range = (type: 'i8' | 'fp8', rows: number, columns: number) => tokensOfHalves([{ type, rows, columns }])
  expect(range('i8', 16_384, 4096)).toEqual({ least: 193, most: Number.POSITIVE_INFINITY })
  expect(range('i8', 4096, 4096)).toEqual({ least: 0, most: Number.POSITIVE_INFINITY })
  expect(range('fp8', 2048, 8192).most).toBeCloseTo(477, 0)
  const { least, most } = range('fp8', 16_384, 4096)
  expect(most).toBeLessThan(least)
})

test('copies leave a part of the free memory, a reserve, and what a log may take', () => {
  const MiB = 2 ** 20
  const deviceOf = (free: number, taken: number) =>
    ({ freeBytes: () => free * MiB, memory: { takenBytes: taken * MiB } }) as unknown as CudaDevice
  const count = (budget: CopyBudget) => Array.from({ length: 32 }, () => budget.take(128 * MiB)).filter(Boolean).length
  expect(count(new CopyBudget(deviceOf(2560, 4096), 1 / 2))).toBe(8)
  expect(count(new CopyBudget(deviceOf(2560, 4096), 1 / 4, 1 / 4))).toBe(2)
  expect(new CopyBudget(deviceOf(100, 0), 1 / 2).take(1)).toBe(false)
  expect(new CopyBudget(deviceOf(1024, 4096), 1 / 4, 1 / 4).take(1)).toBe(false)
})
