import { expect, test } from 'vitest'
import type { CudaDevice } from '../../../src/backend/cuda/device/device.ts'
import { copyBytes } from '../../../src/backend/cuda/linear/rounded-many.ts'
import { cutOf } from '../../../src/backend/cuda/linear/rounded-tiles.ts'
import { CopyBudget } from '../../../src/backend/cuda/linear/sparse.ts'
import { rowBytesOf } from '../../../src/backend/cuda/rounded-matrix.ts'

test('the f16 copy of integers covers a small matrix, and has a limit for a large one', () => {
  const bytes = (rows: number, columns: number) => copyBytes({ type: 'i8', rows, columns })
  expect(bytes(2048, 2048)).toBe(2 * 2048 * 2048)
  expect(bytes(16_384, 4096)).toBe(128 << 20)
  // The head of 7B, in parts.
  expect(bytes(65_536, 4096)).toBe(128 << 20)
  expect(bytes(20_000, 4096)).toBeLessThanOrEqual(128 << 20)
  for (const type of ['f16', 'fp8'] as const) expect(copyBytes({ type, rows: 2048, columns: 2048 })).toBe(0)
})

test('products of few tiles share their columns, as far as pairs of blocks fit on the chip', () => {
  // As on an H200.
  const atOnce = 66
  const cut = (tokens: number, ...jobs: readonly (readonly [rows: number, columns: number])[]) => {
    const shapes = jobs.map(([rows, columns]) => ({ rows, columns }))
    const { size, shares } = cutOf(atOnce, 'i8', shapes, tokens)
    return [size, shares]
  }
  expect(cut(64, [4096, 16_384])).toEqual([64, 4])
  expect(cut(512, [4096, 4096])).toEqual([128, 1])
  expect(cut(128, [4096, 4096])).toEqual([64, 2])
  // Two tiles of 160 instead of three.
  expect(cut(320, [16_384, 4096])).toEqual([160, 1])
  // 64 pairs instead of 48.
  expect(cut(320, [4096, 16_384])).toEqual([160, 2])
  expect(cut(1024, [4096, 4096], [4096, 4096], [4096, 4096])).toEqual([256, 1])
  // A share has at least one part of the columns.
  expect(cut(64, [256, 4096], [256, 64])).toEqual([64, 1])
})

// test/cuda/ops-tiles.test.ts relies on this to test every size.
test.each([
  [1, [264, 520], 544, 1],
  [4, [24, 8], 16_416, 2],
  [8, [24, 8], 16_416, 4],
] as const)('if %i pairs fit, the number of tokens decides the size', (atOnce, rows, columns, shares) => {
  for (const [tokens, size] of [
    [40, 64],
    [120, 128],
    [150, 160],
    [250, 256],
  ] as const)
    expect(
      cutOf(
        atOnce,
        'i8',
        rows.map((one) => ({ rows: one, columns })),
        tokens,
      ),
    ).toMatchObject({ size, shares })
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

test('transposed copies leave half of the free memory, and a reserve', () => {
  const MiB = 2 ** 20
  const device = { freeBytes: () => 2560 * MiB } as unknown as CudaDevice
  const budget = new CopyBudget(device)
  const taken = Array.from({ length: 32 }, () => budget.take(128 * MiB)).filter(Boolean)
  expect(taken).toHaveLength(8)
  const short = new CopyBudget({ freeBytes: () => 100 * MiB } as unknown as CudaDevice)
  expect(short.take(1)).toBe(false)
})
