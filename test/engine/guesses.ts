/**
 * Guesses by script: a proposer that knows what will be drawn, and says that, something else, or that up to some token, so
 * that guesses are accepted and rejected by construction and not by luck.
 */

import type { GenerateRequest } from '../../src/engine/messages.ts'
import type { OpenProposer } from '../../src/engine/speculation/proposer.ts'
import { answerOf } from '../helpers/fake-runner.ts'
import { specOf, V } from './kit.ts'

/** What a choice of a request draws to a prompt. */
export type Truth = (
  prompt: Int32Array,
  request: GenerateRequest,
  choice: number,
) => readonly number[]

/** How much of a guess is right, in turn: that many tokens, then a wrong one. */
export const SCRIPTS = {
  right: [Number.POSITIVE_INFINITY],
  wrong: [0],
  mixed: [3, 0, Number.POSITIVE_INFINITY, 1, 2, Number.POSITIVE_INFINITY],
} as const
export type Script = keyof typeof SCRIPTS

export function scripted(script: Script, truth: Truth = fakeTruth, vocabSize = V): OpenProposer {
  return (prompt, request, choice) => {
    const drawn = truth(prompt, request, choice)
    const turns = SCRIPTS[script]
    let [numKnown, turn] = [0, choice]
    return {
      isPromising: true,
      add: () => {
        numKnown++
      },
      propose: (most) => {
        const right = turns[turn++ % turns.length]!
        return Array.from({ length: most }, (_, i) => {
          const token = drawn[numKnown + i] ?? 1
          return i < right ? token : (token + 1) % vocabSize
        })
      },
    }
  }
}

function fakeTruth(prompt: Int32Array, request: GenerateRequest, choice: number): number[] {
  const spec = specOf(request, choice, request.sampling.seed ?? 0n)
  return answerOf(prompt, spec, request.maxTokens, V)
}
