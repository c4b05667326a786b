/** Answers of a slot that are drawn a token a step, and with guesses that are right or wrong on purpose. */
import { expect } from 'vitest'
import type { ModelRunner } from '../../src/model/run/model-runner.ts'
import type { BatchRow, Drawn, SampleSpec } from '../../src/model/runner.ts'
import { draw, someTokens } from './runner.ts'

const PROMPT = someTokens(21, 3)
export const PENALISED = { presencePenalty: 0.5, frequencyPenalty: 0.4, repetitionPenalty: 1.2 } as const

/** Reads the prompt; returns the first token that it draws. */
export function begin(runner: ModelRunner, slot: number, fields: Partial<SampleSpec>): Drawn {
  runner.clearSlot(slot)
  runner.resetPenalties(slot, PROMPT)
  return runner.step([{ slot, tokens: PROMPT, samples: [draw(slot, fields)] }])[0]!.drawn[0]!
}

/** In slot 0: a step per token, for an answer to come or a given one. `others`: rows of every step beside it. */
export function oneByOne(
  runner: ModelRunner,
  fields: Partial<SampleSpec>,
  numDrawn: number,
  others: readonly BatchRow[] = [],
  given: readonly Drawn[] | null = null,
): Drawn[] {
  const drawn = [begin(runner, 0, fields)]
  while (drawn.length < numDrawn) {
    const { token } = (given ?? drawn)[drawn.length - 1]!
    const samples = [draw(0, { ...fields, position: drawn.length })]
    const row = { slot: 0, tokens: Int32Array.of(token), samples }
    drawn.push(runner.step([row, ...others])[0]!.drawn[0]!)
  }
  return drawn
}

export interface Way {
  readonly length: number
  readonly wrongEvery: number
}

/** In slot 1, as long as `truth`: guesses of `length` tokens; those at multiples of `wrongEvery` are wrong. */
export function guessed(
  runner: ModelRunner,
  fields: Partial<SampleSpec>,
  truth: readonly Drawn[],
  { length, wrongEvery }: Way,
  others: readonly BatchRow[] = [],
): { readonly drawn: Drawn[]; readonly numRewound: number } {
  const slot = 1
  const drawn = [begin(runner, slot, fields)]
  let [numFed, numRewound] = [0, 0]
  while (drawn.length < truth.length) {
    const unfed = drawn.slice(numFed).map(({ token }) => token)
    const count = Math.min(length, truth.length - drawn.length - 1)
    const guesses = Array.from({ length: count }, (_, i) => {
      const at = drawn.length + i
      return (truth[at]!.token + (at % wrongEvery === 0 ? 1 : 0)) % runner.info.vocabSize
    })
    const samples = Array.from({ length: count + 1 }, (_, i) => draw(slot, { ...fields, position: drawn.length + i }))
    const tokens = Int32Array.of(...unfed, ...guesses)
    const row = { slot, tokens, samples, ...(count === 0 ? {} : { guesses: { count, spares: [1], every: 0 } }) }
    const before = runner.readState(slot).result()
    const results = runner.step([row, ...others])[0]!.drawn
    const wrong = guesses.findIndex((token, i) => token !== results[i]!.token)
    const numRight = wrong === -1 ? count : wrong
    drawn.push(...results.slice(0, numRight + 1))
    for (const { token } of results.slice(numRight + 1)) expect(token).toBe(-1)
    if (wrong === -1) {
      numFed += tokens.length
      continue
    }
    runner.rewindSlot(slot, 1)
    numRewound++
    expect(runner.readState(slot).result()).toEqual(before)
  }
  return { drawn, numRewound }
}
