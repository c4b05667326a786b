/**
 * What guesses of answers' next tokens are worth on a machine: answers without any, and with guesses of which a known share is
 * right: all, as where text is copied word for word, none, or that of a draft model whose steps are run too. Right ones
 * are known from answers to the same requests before, so weights of random numbers serve as well as others. Knows the
 * engine as a client does.
 */
import type { EngineClient } from '../engine/client.ts'
import { type GenerateRequest, PLAIN_SAMPLING } from '../engine/messages.ts'
import type { SampleSpec } from '../model/runner.ts'

/** As the engine's sources of guesses are. */
interface Source {
  readonly guessMs?: number
  readonly mostAnswers?: number
  open(prompt: Int32Array, request: GenerateRequest, choice: number, draw: SampleSpec): Guesses
}

interface Guesses {
  readonly isPromising: boolean
  add(token: number): void
  expect(most: number): void
  propose(most: number): readonly number[]
  close(): void
}

/** Of so many answers at once, tokens a second without guesses, and with guesses by how likely each was right. */
export interface GuessRates {
  readonly streams: number
  readonly off: number
  readonly guessed: readonly GuessedRate[]
}

interface GuessedRate {
  /** That a guess was right where those before it were. */
  readonly likely: number
  readonly tokensPerSecond: number
  /** The share of all guesses that were drawn. */
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

/** What the engine is opened with. A draft model's guesses are made, and others are said in their place. */
export class ScriptedGuesses {
  readonly name = 'draft'
  readonly isAlike = true
  /** Null: nothing is guessed. */
  likely: number | null = null
  /** By the ids of requests. */
  truth = new Map<string, readonly number[]>()
  readonly #draft: Source | null
  /** Of the generator by which guesses are right or wrong. */
  #seed = 1

  constructor(draft: Source | null = null) {
    this.#draft = draft
  }

  get guessMs(): number {
    return this.#draft?.guessMs ?? 0
  }

  get mostAnswers(): number {
    return this.#draft?.mostAnswers ?? Number.POSITIVE_INFINITY
  }

  /** Likelihoods to measure. */
  get cases(): readonly number[] {
    return this.#draft === null ? [1, 0] : [0, 0.5, 0.6, 0.7, 0.8, 0.9]
  }

  /** Of one answer. */
  open(prompt: Int32Array, request: GenerateRequest, choice: number, draw: SampleSpec) {
    const own = this.#draft?.open(prompt, request, choice, draw)
    const truth = this.truth.get(request.id) ?? []
    const { likely } = this
    let numKnown = 0
    return {
      isPromising: likely !== null,
      add: (token: number) => {
        numKnown++
        own?.add(token)
      },
      expect: (most: number) => own?.expect(most),
      propose: (most: number) => {
        if (likely === null) return []
        const guesses = truth.slice(numKnown, numKnown + (own?.propose(most).length ?? most))
        return guesses.map((token) => (this.#next() < likely ? token : token === 1 ? 2 : 1))
      },
      close: () => own?.close(),
    }
  }

  #next(): number {
    this.#seed = (Math.imul(this.#seed, 1_664_525) + 1_013_904_223) >>> 0
    return this.#seed / 2 ** 32
  }
}

/** In turn, so that a machine that is busy for a while is so for all of them. */
export async function benchGuessed(
  client: EngineClient,
  script: ScriptedGuesses,
  streams: number,
): Promise<GuessRates> {
  script.likely = null
  script.truth = (await answers(client, streams)).tokens
  await settle(client, script, streams)
  const cases = [null, ...script.cases]
  // Neighbours make a machine slower, never faster.
  const best = new Map(cases.map((likely) => [likely, { rate: 0, accepted: 0 }]))
  for (let round = 0; round < ROUNDS; round++)
    for (const likely of cases) {
      script.likely = likely
      // An answer begins as the one before ended, which had other guesses.
      if (likely !== null) await answers(client, streams)
      const { rate, accepted } = await answers(client, streams)
      if (rate > best.get(likely)!.rate) best.set(likely, { rate, accepted })
    }
  script.likely = null
  const guessed = script.cases.map((likely): GuessedRate => {
    const { rate, accepted } = best.get(likely)!
    return { likely, tokensPerSecond: rate, accepted }
  })
  return { streams, off: best.get(null)!.rate, guessed }
}

/** Where steps of several tokens add in another order, a draw may fall the other way; then that is what is guessed. */
async function settle(client: EngineClient, script: ScriptedGuesses, streams: number): Promise<void> {
  script.likely = 1
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
        const { accepted: right, rejected } = event.guesses?.draft ?? { accepted: 0, rejected: 0 }
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
