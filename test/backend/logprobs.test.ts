import { describe, expect, test } from 'vitest'
import { nativeScores } from '../../src/backend/cpu/cpu.ts'
import { scoreRows } from '../../src/engine/answer/logprobs.ts'
import { LEVELS, normals } from './kit.ts'

/** Rows of logits as models have them, and odd ones. */
function rowsOf(vocabSize: number): Float32Array[] {
  const like = (scale: number, seed: number) => normals(vocabSize, seed, scale)
  const far = like(30, 4).map((x, id) => (id === vocabSize >> 1 ? 90 : x - 800))
  const tied = like(3, 5).map((x) => Math.round(x))
  const banned = like(5, 6).map((x, id) => (id < vocabSize - 3 ? -Infinity : x))
  return [like(4, 1), like(0, 2), like(200, 3), far, tied, banned]
}

const UNSOUND = [Number.NaN, Infinity, -Infinity]

describe.each(LEVELS)('log-probabilities at %s', (isa) => {
  const native = nativeScores(isa)

  // Around the width of a vector and of a scan, the demo model's and the largest vocabulary.
  test.each([1, 3, 7, 8, 9, 17, 64, 65, 250, 2687, 65_536])('of %i tokens are those of the plain way', (vocabSize) => {
    const rows = rowsOf(vocabSize)
    const logits = Float32Array.from(rows.flatMap((row) => [...row]))
    const tokens = Int32Array.from(rows, (_, row) => (row * 7919) % vocabSize)
    for (const k of [0, 1, 5, 20].filter((k) => k <= vocabSize)) {
      const [got, expected] = [native(logits, vocabSize, tokens, k), scoreRows(logits, vocabSize, tokens, k)]
      expect(got.topIds).toEqual(expected.topIds)
      for (const name of ['logprobs', 'topLogprobs'] as const) {
        expect(got[name].length).toBe(expected[name].length)
        for (const [i, logprob] of got[name].entries()) {
          // Digits of a sum of 65,536 doubles; what stands before the point counts as well.
          const digits = 1e-13 * Math.max(1, Math.abs(expected[name][i]!))
          if (logprob !== expected[name][i]) expect(Math.abs(logprob - expected[name][i]!)).toBeLessThan(digits)
        }
      }
    }
  })

  test('of a row do not depend on the rows beside it, nor on the level', () => {
    const rows = rowsOf(2687)
    const all = native(Float32Array.from(rows.flatMap((row) => [...row])), 2687, new Int32Array(rows.length), 20)
    for (const [i, row] of rows.entries()) {
      const alone = nativeScores(LEVELS[0])(row, 2687, new Int32Array(1), 20)
      expect(all.logprobs[i]).toBe(alone.logprobs[0])
      expect(all.topIds.subarray(20 * i, 20 * i + 20)).toEqual(alone.topIds)
      expect(all.topLogprobs.subarray(20 * i, 20 * i + 20)).toEqual(alone.topLogprobs)
    }
  })

  test.each(UNSOUND)('of a row with %d', (odd) => {
    for (const at of [0, 5, 15, 16, 70]) {
      const logits = normals(3 * 71, 9).map((x, i) => (i === 71 + at ? odd : x))
      const tokens = Int32Array.of(1, 2, 3)
      const [got, expected] = [native(logits, 71, tokens, 2), scoreRows(logits, 71, tokens, 2)]
      expect([...got.logprobs].map(Number.isNaN)).toEqual([false, odd !== -Infinity, false])
      expect([...expected.logprobs].map(Number.isNaN)).toEqual([false, odd !== -Infinity, false])
    }
    const nothing = new Float32Array(71).fill(-Infinity)
    expect(native(nothing, 71, Int32Array.of(0), 0).logprobs).toEqual(Float64Array.of(Number.NaN))
  })

  test('a token outside the vocabulary, more of the best than there are, and missing rows are refused', () => {
    const logits = new Float32Array(8)
    expect(() => native(logits, 8, Int32Array.of(8), 0)).toThrow('outside the vocabulary')
    expect(() => native(logits, 8, Int32Array.of(-1), 0)).toThrow('outside the vocabulary')
    expect(() => native(logits, 8, Int32Array.of(0), 9)).toThrow('too many top logprobs')
    expect(() => native(logits, 8, Int32Array.of(0, 1), 0)).toThrow('8 logits of 2 rows of 8')
  })
})
