/**
 * Rows with guesses on the backends that check them: whatever is guessed, the counted draws, their log-probabilities,
 * the penalty counts and the state equal those of a step per token, to the bit.
 */
import { describe, expect, test } from 'vitest'
import { sparesOf } from '../../src/model/run/speculate-choice.ts'
import type { SampleSpec } from '../../src/model/runner.ts'
import { begin, guessed, oneByOne, PENALISED } from '../helpers/guessing.ts'
import { ARCHITECTURES, BACKENDS, draw, tinyRunner } from '../helpers/runner.ts'

const NUM_DRAWN = 12
const SPECS: readonly Partial<SampleSpec>[] = [
  { temperature: 0, logprobs: 2 },
  { temperature: 1, topP: 0.9, logprobs: 3, ...PENALISED, penaltyDecay: 0.9 },
  { temperature: 1.5, topK: 20, noise: 0, bias: new Map([[5, -Infinity]]) },
]

const cases = [
  ...ARCHITECTURES.flatMap((architecture) =>
    BACKENDS.map((device) => ({ device, architecture, quant: 'file' as const })),
  ),
  { device: 'cpu' as const, architecture: 'rwkv7' as const, quant: 'int8' as const },
  { device: 'cpu' as const, architecture: 'rwkv7' as const, quant: 'q4' as const },
]

describe.each(cases)('$device, $architecture, $quant', ({ device, ...choice }) => {
  const isLong = device === 'reference' && choice.architecture !== 'rwkv7'
  test('the same draws, counts and states as one token at a time', isLong ? { tags: 'night' } : {}, () => {
    const runner = tinyRunner(device, { slots: 3, maxTokens: 64, speculate: 'lookup', ...choice })
    for (const fields of SPECS) {
      const truth = oneByOne(runner, fields, NUM_DRAWN)
      for (const way of [
        { length: 4, wrongEvery: Number.POSITIVE_INFINITY },
        { length: 3, wrongEvery: 1 },
        { length: 5, wrongEvery: 4 },
      ]) {
        const { drawn, numRewound } = guessed(runner, fields, truth, way)
        expect(drawn).toEqual(truth)
        expect(numRewound > 0).toBe(way.wrongEvery !== Number.POSITIVE_INFINITY)
      }
    }
    runner.dispose()
  })
})

test('after right and after wrong guesses, draws have the distribution without guesses', () => {
  const runner = tinyRunner('cpu', { slots: 2, maxTokens: 64, speculate: 'lookup' })
  const [NUM_TRIALS, CHOICES] = [4000, 6]
  const fields = { temperature: 1, topK: CHOICES, logprobs: CHOICES }
  const { token: first } = begin(runner, 0, { ...fields, temperature: 0 })
  const before = runner.readState(0).result()
  const tops = (tokens: readonly number[]) => {
    runner.writeState(1, before).result()
    const samples = [draw(1, { ...fields, temperature: 0 })]
    const { logprob } = runner.step([{ slot: 1, tokens: Int32Array.from(tokens), samples }])[0]!.drawn[0]!
    return logprob!.top
  }
  const guess = tops([first])[0]!.token
  const counts = [new Map<number, number>(), new Map<number, number>()] as const
  for (let trial = 0; trial < NUM_TRIALS; trial++) {
    const samples = [0, 1].map((position) => draw(0, { ...fields, seed: BigInt(trial), position, logprobs: null }))
    const tokens = Int32Array.of(first, guess)
    const row = { slot: 0, tokens, samples, guesses: { count: 1, spares: [0], every: 0 } }
    const { drawn } = runner.step([row])[0]!
    for (const [i, { token }] of drawn.entries())
      if (token >= 0) counts[i]!.set(token, (counts[i]!.get(token) ?? 0) + 1)
    runner.rewindSlot(0, 0)
  }
  for (const [i, tokens] of [[first], [first, guess]].entries()) {
    const top = tops(tokens)
    const total = top.reduce((sum, { logprob }) => sum + Math.exp(logprob), 0)
    const drawn = [...counts[i]!.values()].reduce((sum, count) => sum + count, 0)
    expect(drawn).toBeGreaterThan(500)
    expect(counts[i]!.size).toBe(CHOICES)
    const chiSquare = top.reduce((sum, { token, logprob }) => {
      const expected = (drawn * Math.exp(logprob)) / total
      return sum + ((counts[i]!.get(token) ?? 0) - expected) ** 2 / expected
    }, 0)
    // With 5 degrees of freedom, one in 10,000 exceeds this; the seeds are fixed.
    expect(chiSquare).toBeLessThan(25.7)
  }
  runner.dispose()
})

test('backends that cannot check guesses are refused by name; without speculation nothing is required', () => {
  const webgpu = { name: 'webgpu', guessing: null } as const
  expect(() => sparesOf({ speculate: 'lookup' }, 8, webgpu)).toThrow(
    /--speculate lookup is for models on one CPU or one CUDA device; on webgpu/,
  )
  expect(() => sparesOf({ draft: 'small.pth' }, 8, webgpu)).toThrow(/--draft is for models on one/)
  const ofWebgpu = [{ speculate: 'off' }, { speculate: 'prediction' }, {}] as const
  expect(ofWebgpu.map((choice) => sparesOf(choice, 8, webgpu))).toEqual([0, 0, 0])
  const cpu = { name: 'cpu', guessing: { rows: 4, costs: [] } } as const
  const lookup = { speculate: 'lookup' } as const
  expect([sparesOf(lookup, 2, cpu), sparesOf(lookup, 64, cpu)]).toEqual([2, 4])
  const gpu = { name: 'cuda', guessing: { rows: 32, costs: [] } } as const
  const choices = [{ speculate: 'prediction' }, lookup, { draft: 'small.pth' }] as const
  expect(choices.map((choice) => sparesOf(choice, 64, gpu))).toEqual([4, 32, 32])
})
