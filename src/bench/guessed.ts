/**
 * What guesses of answers' next tokens are worth on a machine: answers without any, with guesses that are all right, as where
 * text is copied word for word, and with guesses that are all wrong. Right ones are known from answers to the same requests
 * before, so weights of random numbers serve as well as others. Knows the engine as a client does.
 */
import type { EngineClient } from '../engine/client.ts'
import { type GenerateRequest, PLAIN_SAMPLING } from '../engine/messages.ts'

const KINDS = ['off', 'right', 'wrong'] as const
type Kind = (typeof KINDS)[number]

/** Of so many answers at once, tokens a second by what is guessed, and the share of guesses that were drawn. */
export interface GuessRates extends Readonly<Record<Kind, number>> {
  readonly streams: number
  readonly accepted: number
}

/** Tokens of an answer; the time begins when all have their first. */
const NUM_TOKENS = 128
const ROUNDS = 3
/** Answers after which they are the same with right guesses as without, at the most. */
const SETTLED = 12
/** Answers are of these tokens: of so few the best seldom changes by rounding. Of a whole vocabulary's flat logits it often does. */
const DRAWN = [101, 202, 303, 404] as const
const MORE_LIKELY = 100

/** What the engine is opened with. */
export class ScriptedGuesses {
  kind: Kind = 'off'
  /** By the ids of requests. */
  truth = new Map<string, readonly number[]>()

  /** Of one answer. */
  readonly open = (_prompt: Int32Array, { id }: GenerateRequest) => {
    const { kind } = this
    const truth = this.truth.get(id) ?? []
    let numKnown = 0
    return {
      isPromising: kind !== 'off',
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

/** In turn, so that a machine that is busy for a while is so for all of them. */
export async function benchGuessed(
  client: EngineClient,
  script: ScriptedGuesses,
  streams: number,
): Promise<GuessRates> {
  script.kind = 'off'
  script.truth = (await answers(client, streams)).tokens
  await settle(client, script, streams)
  const rates: Record<Kind, number[]> = { off: [], right: [], wrong: [] }
  let accepted = 0
  for (let round = 0; round < ROUNDS; round++)
    for (const kind of KINDS) {
      script.kind = kind
      const ran = await answers(client, streams)
      rates[kind].push(ran.rate)
      if (kind === 'right') accepted = ran.accepted
    }
  script.kind = 'off'
  // Neighbours make a machine slower, never faster.
  const best = (kind: Kind) => Math.max(...rates[kind])
  return { streams, accepted, off: best('off'), right: best('right'), wrong: best('wrong') }
}

/** Where steps of several tokens add in another order, a draw may fall the other way; then that is what is guessed. */
async function settle(
  client: EngineClient,
  script: ScriptedGuesses,
  streams: number,
): Promise<void> {
  script.kind = 'right'
  for (let i = 0; i < SETTLED; i++) {
    const { tokens } = await answers(client, streams)
    const isSame = [...tokens].every(([id, own]) => `${own}` === `${script.truth.get(id)}`)
    if (isSame) return
    script.truth = tokens
  }
}

async function answers(client: EngineClient, streams: number) {
  const tokens = new Map<string, number[]>()
  let [begin, numBefore, accepted, guessed] = [0, 0, 0, 0]
  const count = () => [...tokens.values()].reduce((sum, { length }) => sum + length, 0)
  const one = async (index: number) => {
    const request = requestOf(index)
    for await (const event of client.generate(request)) {
      if (event.type === 'finish') {
        const { accepted: right, rejected } = event.guesses ?? { accepted: 0, rejected: 0 }
        accepted += right
        guessed += right + rejected
      }
      if (event.type !== 'text') continue
      const own = tokens.get(request.id) ?? []
      own.push(...event.tokens)
      tokens.set(request.id, own)
      if (begin === 0 && tokens.size === streams) [begin, numBefore] = [performance.now(), count()]
    }
  }
  await Promise.all(Array.from({ length: streams }, (_, i) => one(i)))
  const rate = (1000 * (count() - numBefore)) / (performance.now() - begin)
  return { tokens, rate, accepted: guessed === 0 ? 0 : accepted / guessed }
}

function requestOf(index: number): GenerateRequest {
  return {
    id: `guessed ${index}`,
    prompt: Int32Array.of(1, 2, 3, 4 + index),
    n: 1,
    maxTokens: NUM_TOKENS,
    sampling: {
      ...PLAIN_SAMPLING,
      temperature: 0,
      seed: BigInt(index + 1),
      logitBias: DRAWN.map((token) => [token, MORE_LIKELY] as const),
    },
    stop: { strings: [], tokens: [], ignoreEos: true },
    logprobs: null,
    promptLogprobs: null,
    cache: 'no-store',
  }
}
