/** Rows with later draws, and rows that only draw, in the flat arrays of a batch. */
import { expect, test } from 'vitest'
import { createBatch, SAMPLE_INTS, SampleInt } from '../../src/backend/batch.ts'
import { sampleSpec } from '../../src/bench/plain-request.ts'
import { packMasks, packRows } from '../../src/model/run/step-packing.ts'

const batchOf = () => createBatch({ tokens: 8, rows: 8, logits: 8, samples: 8 })
const maskOf = (word: number) => Uint32Array.of(word, word)

test('later masks have rows of their own, beside those already known', () => {
  const batch = batchOf()
  const row = (slot: number, fields = {}) => ({
    slot,
    tokens: Int32Array.of(3 + slot),
    samples: [sampleSpec({ slot: 10 + slot })],
    ...fields,
  })
  const known = [sampleSpec({ slot: 11, mask: maskOf(1) })]
  packRows(batch, [
    row(0, { drawsLater: true }),
    row(1, { samples: known }),
    row(2, { drawsLater: true }),
    row(3),
    row(4, { drawsLater: true }),
  ])
  const maskAt = (s: number) => batch.sampleInts[s * SAMPLE_INTS + SampleInt.mask]
  expect([0, 1, 2, 3, 4].map(maskAt)).toEqual([-1, 2, -3, 0, -4])
  expect([batch.numMasks, batch.numLater]).toEqual([4, 3])
  expect([...batch.keptAs.subarray(0, 5)]).toEqual([11, 0, 13, 0, 15])
  packMasks(batch, [maskOf(5), null, maskOf(7)])
  expect([...batch.hasCome.subarray(0, 4)]).toEqual([1, 0, 0, 1])
  const words = [0, 1, 3].map((mask) => [...batch.masks.subarray(2 * mask, 2 * mask + 2)])
  expect(words).toEqual([
    [5, 5],
    [1, 1],
    [7, 7],
  ])
  expect(() => packMasks(batch, [maskOf(5)])).toThrow()
  packRows(batch, [row(0), row(1, { drawsLater: true })])
  expect([...batch.keptAs.subarray(0, 2), batch.numLater, batch.hasCome[0]]).toEqual([0, 12, 1, 0])
})

test('a row without tokens skips the layers, and draws from what was kept for it', () => {
  const batch = batchOf()
  const only = { slot: 2, tokens: Int32Array.of(), samples: [sampleSpec({ slot: 6 })] }
  const fed = { slot: 1, tokens: Int32Array.of(9), samples: [sampleSpec({ slot: 5 })] }
  packRows(batch, [only, fed])
  expect([batch.numRows, batch.numTokens, batch.numLogits, batch.numSamples]).toEqual([1, 1, 2, 2])
  expect([...batch.logitRows.subarray(0, 2)]).toEqual([-7, 0])
  packRows(batch, [only])
  expect([batch.numRows, batch.numTokens, batch.numLogits, batch.numSamples]).toEqual([0, 0, 1, 1])
  const blend = { weight: 1, others: [] }
  expect(() => packRows(batch, [{ ...fed, drawsLater: true, blend }])).toThrow('more than its draw')
})
