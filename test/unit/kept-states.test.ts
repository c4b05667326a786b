/** Which tokens of a step have their states kept, in the flat arrays of a batch; and how much memory that may take. */
import { expect, test } from 'vitest'
import { createBatch, NOWHERE } from '../../src/backend/batch.ts'
import { sampleSpec } from '../../src/bench/plain-request.ts'
import { chooseBatchSize } from '../../src/host/batch-size.ts'
import { packRows } from '../../src/model/run/step-packing.ts'

test('states are kept from before the first guess on, in the order of the batch', () => {
  const batch = createBatch({ tokens: 16, rows: 4, logits: 16, samples: 16 })
  // Four slots, then six spares, all in other places of the pool.
  const states = Int32Array.from({ length: 10 }, (_, i) => 20 + i)
  const row = (slot: number, extra: number, spares: readonly number[], count: number, every: number) => ({
    slot,
    tokens: Int32Array.from({ length: extra + 1 + count }, (_, t) => 1 + t),
    samples: Array.from({ length: count + 1 }, (_, position) => sampleSpec({ slot, position })),
    guesses: { count, spares, every },
  })
  const plain = { slot: 3, tokens: Int32Array.of(9), samples: [sampleSpec({ slot: 3 })] }
  packRows(batch, [row(0, 1, [5, 1], 4, 3), plain, row(1, 0, [0, 2], 2, 1), row(2, 2, [4], 1, 0)], states)
  // One token, three, four and six.
  const none = NOWHERE
  expect([...batch.keeps.subarray(0, 14)]).toEqual([
    none,
    ...[24, 26, none],
    ...[none, none, none, none],
    ...[none, 29, none, none, 25, none],
  ])
  packRows(batch, [plain], states)
  expect([...new Set(batch.keeps)]).toEqual([none])
  expect(() => packRows(batch, [row(0, 0, [1], 4, 3)], states)).toThrow('places')
})

test('places for such states are a part of what is left, and none where a backend keeps none', () => {
  const GIB = 2 ** 30
  const model = { stateShape: { layers: 32, channels: 4096, heads: 64, headSize: 64 }, vocabSize: 65536 }
  const numKept = (bytes: number, more: object, slots = 64) =>
    chooseBatchSize({ slots }, { ...model, ...more }, { bytes: bytes * GIB, isDevice: true }).numKept
  expect(numKept(120, { guessingRows: 32 })).toBe(0)
  const keeps = { guessingRows: 32, keepsStates: true }
  expect(numKept(120, keeps)).toBe(6 * 32)
  expect(numKept(120, { ...keeps, guessingRows: 4 })).toBe(6 * 4)
  const few = numKept(8, keeps)
  expect(few).toBeGreaterThan(0)
  expect(few).toBeLessThan(40)
})
