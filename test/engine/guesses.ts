/**
 * Scripted guesses: a proposer that knows what will be drawn and proposes that, something else, or that up to some
 * token. So guesses are accepted and rejected by construction, not by chance.
 */

import type { GenerateRequest } from '../../src/engine/messages.ts'
import { Draft } from '../../src/engine/speculation/draft.ts'
import type { ProposerSource } from '../../src/engine/speculation/proposer.ts'
import type { BatchRow, Flight, RowResult, Runner } from '../../src/model/runner.ts'
import { answerOf, FakeRunner } from '../helpers/fake-runner.ts'
import { specOf, V } from './kit.ts'

/** What a choice of a request draws after a prompt. */
export type Truth = (prompt: Int32Array, request: GenerateRequest, choice: number) => readonly number[]

/** How many tokens of a guess are right, in turn; then a wrong one follows. */
export const SCRIPTS = {
  right: [Number.POSITIVE_INFINITY],
  wrong: [0],
  mixed: [3, 0, Number.POSITIVE_INFINITY, 1, 2, Number.POSITIVE_INFINITY],
} as const
export type Script = keyof typeof SCRIPTS

export function scripted(script: Script, truth: Truth = fakeTruth, vocabSize = V): ProposerSource {
  const open: ProposerSource['open'] = (prompt, request, choice) => {
    const drawn = truth(prompt, request, choice)
    const turns = SCRIPTS[script]
    let [numKnown, turn] = [0, choice]
    return {
      isPromising: true,
      add: () => {
        numKnown++
      },
      propose: (most) => {
        // A single guess is mostly asked for to see how guesses fare: it is right, so that more are made.
        const right = most === 1 ? 1 : turns[turn++ % turns.length]!
        return Array.from({ length: most }, (_, i) => {
          const token = drawn[numKnown + i] ?? 1
          return i < right ? token : (token + 1) % vocabSize
        })
      },
    }
  }
  return { name: 'lookup', open }
}

function fakeTruth(prompt: Int32Array, request: GenerateRequest, choice: number): number[] {
  const spec = specOf(request, choice, request.sampling.seed ?? 0n)
  return answerOf(prompt, spec, request.maxTokens, V)
}

/** The scripted model again, with some draws changed. */
export class FaultyRunner extends FakeRunner {
  readonly #faultEvery: number
  #numDrawn = 0

  constructor(faultEvery: number, numSlots = 6, maxTokens = 24) {
    super({ numSlots, maxTokens, vocabSize: V })
    this.#faultEvery = faultEvery
  }

  override launch(rows: readonly BatchRow[]): Flight<RowResult[]> {
    const flight = super.launch(rows)
    for (const { drawn } of flight.result())
      for (const [i, one] of drawn.entries()) {
        if (one.token < 0 || ++this.#numDrawn % this.#faultEvery !== 0) continue
        // The next launch feeds the token there.
        const others = drawn as { token: number; logprob: null }[]
        others[i] = { token: (one.token + 1) % V, logprob: null }
      }
    return flight
  }
}

/** Its guesses take no time, so their number does not depend on the machine. */
export function draftOver(runner: Runner, now = () => 0): Draft {
  return new Draft(runner, undefined, now)
}

/** The source of guesses in a random life: a script, a draft model that is often right, or both. */
export const SOURCES = [...(Object.keys(SCRIPTS) as Script[]), 'draft', 'both'] as const
export type Source = (typeof SOURCES)[number]

export function sourcesOf(source: Source): ProposerSource[] {
  const draft = () => draftOver(new FaultyRunner(5))
  if (source === 'draft') return [draft()]
  return source === 'both' ? [scripted('mixed'), draft()] : [scripted(source)]
}
