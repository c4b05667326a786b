import { afterAll, describe, expect, test } from 'vitest'
import { doneFlight } from '../../src/backend/flight.ts'
import { compareLogits, drawTexts, type ScoringRunner } from '../../src/bench/quality.ts'
import type { Runner } from '../../src/model/runner.ts'
import { someTokens, tinyRunner } from '../helpers/runner.ts'

const runners: Runner[] = []
const runner = (quant: 'f32' | 'int8' | 'nf4') => {
  const made = tinyRunner('reference', { quant, slots: 3, maxTokens: 40 })
  runners.push(made)
  return made
}
afterAll(() => {
  for (const one of runners) one.dispose()
})

describe('the quality of quantised weights', () => {
  const exact = runner('f32')
  const prompts = [someTokens(1, 1), someTokens(9, 2), someTokens(60, 3)]

  test('texts begin with their prompts, have one length, and are reproducible', () => {
    const texts = drawTexts(exact, prompts, 120)
    expect(texts.map((text) => text.length)).toEqual([40, 40, 40])
    for (const [i, text] of texts.entries()) expect(text.slice(0, prompts[i]!.length)).toEqual(prompts[i]!.slice(0, 40))
    expect(drawTexts(exact, prompts, 120)).toEqual(texts)
    expect(drawTexts(exact, prompts, 120, 2n)).not.toEqual(texts)
    expect(texts[0]).not.toEqual(texts[1])
  })

  test('a model does not differ from itself, and differs more the fewer bits it has', async () => {
    const texts = drawTexts(exact, prompts, 120)
    const seen: number[] = []
    const [same, eight, four] = await compareLogits(
      exact,
      [runner('f32'), runner('int8'), runner('nf4')],
      texts,
      (done) => seen.push(done),
    )
    expect(same).toMatchObject({ rmsError: 0, maxError: 0, argmaxAgreement: 1 })
    expect(same!.divergence).toBeCloseTo(0, 12)
    expect(seen.at(-1)).toBe(120)
    for (const key of ['rmsError', 'maxError', 'divergence'] as const) {
      expect(eight![key]).toBeGreaterThan(0)
      expect(four![key]).toBeGreaterThan(4 * eight![key])
    }
    expect(four!.rmsError).toBeLessThan(0.2)
    expect(four!.argmaxAgreement).toBeLessThan(eight!.argmaxAgreement)
    expect(four!.weightType).toBe('nf4')
    expect(four!.weightBytes).toBe(runners.at(-1)!.info.weightBytes)
  })

  test('the figures follow their definition', async () => {
    const logits = [Float32Array.of(0, 1, 3), Float32Array.of(0.5, 2, 1)]
    const scripted = (values: Float32Array): ScoringRunner => ({
      info: { ...exact.info, vocabSize: 3 },
      maxLogits: 1,
      clearSlot: () => {},
      launch: (rows) => doneFlight(rows.map(() => ({ drawn: [], logits: values }))),
    })
    const [row] = await compareLogits(scripted(logits[0]!), [scripted(logits[1]!)], [Int32Array.of(1, 2)])
    const probabilities = (values: Float32Array) => {
      const exponentials = [...values].map(Math.exp)
      const sum = exponentials.reduce((a, b) => a + b)
      return exponentials.map((value) => value / sum)
    }
    const [p, q] = logits.map(probabilities)
    const divergence = p!.reduce((sum, value, i) => sum + value * Math.log(value / q![i]!), 0)
    const mean = 4 / 3
    const size = mean ** 2 + (1 - mean) ** 2 + (3 - mean) ** 2
    expect(row!.divergence).toBeCloseTo(divergence, 10)
    expect(row!.rmsError).toBeCloseTo(Math.sqrt((0.25 + 1 + 4) / size), 10)
    expect(row!.maxError).toBeCloseTo(2 / 3, 10)
    expect(row!.argmaxAgreement).toBe(0)
    expect(row!.perplexity).toBeCloseTo(1 / q![2]!, 10)
    expect(row!.perplexityLoss).toBeCloseTo(p![2]! / q![2]! - 1, 10)
  })
})
