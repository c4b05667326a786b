import { expect, test } from 'vitest'
import type { CudaDevice } from '../../../src/backend/cuda/device.ts'
import { copyBytes } from '../../../src/backend/cuda/ops-rounded-many.ts'
import { CopyBudget } from '../../../src/backend/cuda/ops-sparse.ts'
import { rowBytesOf } from '../../../src/backend/cuda/rounded-matrix.ts'

test('the f16 copy of integers is as large as a small matrix, and bounded for a large one', () => {
  const bytes = (rows: number, columns: number) => copyBytes({ type: 'i8', rows, columns })
  expect(bytes(2048, 2048)).toBe(2 * 2048 * 2048)
  expect(bytes(16_384, 4096)).toBe(128 << 20)
  // The head of 7B, in parts.
  expect(bytes(65_536, 4096)).toBe(128 << 20)
  expect(bytes(20_000, 4096)).toBeLessThanOrEqual(128 << 20)
  for (const type of ['f16', 'fp8'] as const)
    expect(copyBytes({ type, rows: 2048, columns: 2048 })).toBe(0)
})

test('rows take whole parts of values and scales', () => {
  expect(rowBytesOf('i8', 2048)).toEqual({ values: 2048, scales: 128 })
  expect(rowBytesOf('q4', 2048)).toEqual({ values: 1024, scales: 128 })
  expect(rowBytesOf('nf4', 2048)).toEqual({ values: 1024, scales: 64 })
  // 17 groups of 32, of which two make a part of i8 and four one of q4.
  expect(rowBytesOf('i8', 544)).toEqual({ values: 9 * 64, scales: 36 })
  expect(rowBytesOf('q4', 544)).toEqual({ values: 5 * 64, scales: 40 })
})

test('transposed copies together leave half of what is free, and a reserve', () => {
  const MiB = 2 ** 20
  const device = { freeBytes: () => 2560 * MiB } as unknown as CudaDevice
  const budget = new CopyBudget(device)
  const taken = Array.from({ length: 32 }, () => budget.take(128 * MiB)).filter(Boolean)
  expect(taken).toHaveLength(8)
  const short = new CopyBudget({ freeBytes: () => 100 * MiB } as unknown as CudaDevice)
  expect(short.take(1)).toBe(false)
})
