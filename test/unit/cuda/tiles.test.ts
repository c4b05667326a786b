/** Which tiles fit a product, by the numbers that cuBLASLt has for them. */
import { expect, test } from 'vitest'
import { fitOf, tileOf } from '../../../src/backend/cuda/gemm/tiles.ts'

test('tiles have the numbers of cublasLt.h', () => {
  const tiles = {
    ...{ 312: [64, 16], 326: [64, 160], 337: [64, 264], 358: [64, 456] },
    ...{ 399: [128, 72], 406: [128, 144], 418: [128, 264], 421: [128, 288], 447: [128, 512] },
    ...{ 448: [192, 8], 458: [192, 96], 463: [192, 144], 476: [192, 264], 485: [192, 336] },
    ...{ 486: [256, 8], 492: [256, 72], 500: [256, 144], 502: [256, 160], 513: [256, 256] },
    ...{ 20: [128, 128], 29: [128, 160] },
  }
  for (const [id, tile] of Object.entries(tiles)) expect([id, tileOf(Number(id))]).toEqual([id, tile])
  for (const unknown of [0, 209, 311, 365, 398, 514]) expect(tileOf(unknown)).toBeUndefined()
})

test('on 132 multiprocessors those fit best that were fastest', () => {
  const shareOf = (tile: number, splits: number, m: number, n: number, batch = 1) =>
    fitOf({ tile, splits }, { m, n, batch }, 132)
  // 576 tokens are four tiles of 144, or 3.6 of 160; 320 are four of 80 and two of 160.
  expect(shareOf(406, 1, 4096, 576)).toBeGreaterThan(1.05 * shareOf(29, 1, 4096, 576))
  expect(shareOf(500, 1, 16384, 576)).toBeGreaterThan(1.05 * shareOf(29, 1, 16384, 576))
  expect(shareOf(463, 1, 4096, 576, 3)).toBeGreaterThan(1.15 * shareOf(24, 1, 4096, 576, 3))
  for (const halves of [29, 32]) expect(shareOf(400, 1, 4096, 320)).toBeGreaterThan(shareOf(halves, 2, 4096, 320))
  expect(shareOf(502, 1, 16384, 320)).toBeGreaterThan(shareOf(29, 1, 16384, 320))
  // A wave of 128 blocks takes as long as one of 132.
  expect(shareOf(406, 1, 4096, 576)).toBeCloseTo((128 / 132) * (1 - 2000 / (128 * 144)), 6)
  expect(shareOf(406, 2, 4096, 576)).toBeLessThan(shareOf(406, 1, 4096, 576))
  expect(shareOf(209, 1, 4096, 576)).toBe(0)
})
