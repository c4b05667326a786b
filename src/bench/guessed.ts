/**
 * What guesses of an answer's next tokens are worth on a machine: one answer without any, with guesses that are all right, as
 * where text is copied word for word, and with guesses that are all wrong. Right ones are known from an answer to the same
 * request before, so weights of random numbers serve as well as others. Knows the engine as a client does.
 */
import type { EngineClient } from '../engine/client.ts'
import { type GenerateRequest, PLAIN_SAMPLING } from '../engine/messages.ts'

const KINDS = ['off', 'right', 'wrong'] as const
type Kind = (typeof KINDS)[number]

/** Tokens a second of one answer, by what is guessed. */
export type GuessRates = Readonly<Record<Kind, number>>

/** Tokens of an answer; the time begins with the first. */
const NUM_TOKENS = 64
const ROUNDS = 3

/** What the engine is opened with. */
export class ScriptedGuesses {
  kind: Kind = 'off'
  truth: readonly number[] = []

  /** Of one answer. */
  readonly open = () => {
    const { kind, truth } = this
    let numKnown = 0
    return {
      add: () => {
        numKnown++
      },
      propose: (most: number) => {
        if (kind === 'off') return []
        const right = truth.slice(numKnown, numKnown + most)
        return kind === 'right' ? right : right.map((token) => (token === 1 ? 2 : 1))
      },
    }
  }
}

/** In turn, so that a machine that is busy for a while is so for all of them. Throws where guesses have changed an answer. */
export async function benchGuessed(
  client: EngineClient,
  script: ScriptedGuesses,
): Promise<GuessRates> {
  script.kind = 'off'
  script.truth = (await answer(client)).tokens
  const rates: Record<Kind, number[]> = { off: [], right: [], wrong: [] }
  for (let round = 0; round < ROUNDS; round++)
    for (const kind of KINDS) {
      script.kind = kind
      const { tokens, rate } = await answer(client)
      if (tokens.some((token, i) => token !== script.truth[i]))
        throw new Error(`guesses that were ${kind} changed the answer`)
      rates[kind].push(rate)
    }
  script.kind = 'off'
  // Neighbours make a machine slower, never faster.
  const best = (kind: Kind) => Math.max(...rates[kind])
  return { off: best('off'), right: best('right'), wrong: best('wrong') }
}

async function answer(client: EngineClient) {
  const tokens: number[] = []
  let begin = 0
  for await (const event of client.generate(REQUEST)) {
    if (event.type !== 'text') continue
    if (tokens.length === 0) begin = performance.now()
    tokens.push(...event.tokens)
  }
  return { tokens, rate: (1000 * (tokens.length - 1)) / (performance.now() - begin) }
}

const REQUEST: GenerateRequest = {
  id: 'guessed',
  prompt: Int32Array.of(1, 2, 3),
  n: 1,
  maxTokens: NUM_TOKENS,
  sampling: { ...PLAIN_SAMPLING, topP: 0.5, seed: 1n },
  stop: { strings: [], tokens: [], ignoreEos: true },
  logprobs: null,
  promptLogprobs: null,
  cache: 'no-store',
}
