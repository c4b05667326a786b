/**
 * Measures the gain of speculative decoding on a machine: answers without guesses, and with guesses of which a known
 * share is right. Those of a draft model take its time: its steps run, too. All answers are one token again and again, so right
 * guesses are known, and random weights serve as well. It uses the engine as a client does.
 */
import type { EngineClient } from '../engine/client.ts'
import { type GenerateRequest, PLAIN_SAMPLING } from '../engine/messages.ts'
import type { SampleSpec } from '../model/runner.ts'
import { plainRequest } from './plain-request.ts'
import { seededRandom } from './serve/random.ts'

interface Source {
  readonly guessMs?: number | undefined
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

/** Tokens per second of this many answers: without guesses, and with guesses by their likelihood of being right. */
export interface GuessRates {
  readonly streams: number
  readonly off: number
  readonly guessed: readonly GuessedRate[]
}

interface GuessedRate {
  /** Probability that a guess is right if those before it were. */
  readonly likely: number
  readonly tokensPerSecond: number
  readonly accepted: number
}

/** Tokens of an answer; the time starts when all have their first. */
const NUM_TOKENS = 128
const ROUNDS = 3
/** Between several tokens, steps of other sizes may draw another one by rounding, and then right guesses would be wrong. */
const DRAWN = 101
const MORE_LIKELY = 1000

/** The sources that the engine is opened with, one for each case. They compute a draft model's guesses, but return scripted ones. */
export class ScriptedGuesses {
  /** Null: nothing is guessed. */
  likely: number | null = null
  readonly cases: readonly number[]
  readonly sources: readonly CaseSource[]

  constructor(draft: Source | null = null) {
    this.cases = draft === null ? [0, 0.3, 0.6, 0.9, 1] : [0, 0.3, 0.6, 0.9]
    this.sources = this.cases.map((likely) => new CaseSource(this, draft, likely))
  }
}

class CaseSource {
  readonly name = 'draft'
  readonly isAlike = true
  readonly #script: ScriptedGuesses
  readonly #draft: Source | null
  readonly #likely: number
  /** Decides which guesses are right. */
  readonly #random = seededRandom(1)

  constructor(script: ScriptedGuesses, draft: Source | null, likely: number) {
    this.#script = script
    this.#draft = draft
    this.#likely = likely
  }

  get guessMs(): number | undefined {
    return this.#draft?.guessMs
  }

  get mostAnswers(): number {
    return this.#draft?.mostAnswers ?? Number.POSITIVE_INFINITY
  }

  /** Opens the guesses of one answer; null in other cases. */
  open(prompt: Int32Array, request: GenerateRequest, choice: number, draw: SampleSpec) {
    const likely = this.#likely
    if (this.#script.likely !== likely) return null
    const own = this.#draft?.open(prompt, request, choice, draw)
    return {
      isPromising: true,
      add: (token: number) => own?.add(token),
      expect: (most: number) => own?.expect(most),
      propose: (most: number) => {
        const length = own?.propose(most).length ?? most
        return Array.from({ length }, () => (this.#random() < likely ? DRAWN : DRAWN + 1))
      },
      close: () => own?.close(),
    }
  }
}

/** Measures the cases in turn, so that a busy machine affects all of them. */
export async function benchGuessed(
  client: EngineClient,
  script: ScriptedGuesses,
  streams: number,
): Promise<GuessRates> {
  script.likely = null
  await answers(client, streams)
  const cases = [null, ...script.cases]
  // Neighbours make a machine slower, never faster.
  const best = new Map(cases.map((likely) => [likely, { rate: 0, accepted: 0 }]))
  for (let round = 0; round < ROUNDS; round++)
    for (const likely of cases) {
      script.likely = likely
      // Each answer starts from the previous one's end, which had other guesses.
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

async function answers(client: EngineClient, streams: number) {
  const begun = new Set<string>()
  let [count, begin, numBefore, accepted, guessed] = [0, 0, 0, 0, 0]
  const one = async (index: number) => {
    const request = plainRequest({
      id: `guessed ${index}`,
      prompt: Int32Array.of(1, 2, 3, 4 + index),
      maxTokens: NUM_TOKENS,
      sampling: { ...PLAIN_SAMPLING, temperature: 0, seed: BigInt(index + 1), logitBias: [[DRAWN, MORE_LIKELY]] },
      cache: 'no-store',
    })
    for await (const event of client.generate(request)) {
      if (event.type === 'finish') {
        const { accepted: right, rejected } = event.guesses?.draft ?? { accepted: 0, rejected: 0 }
        accepted += right
        guessed += right + rejected
      }
      if (event.type !== 'text') continue
      begun.add(request.id)
      count += event.tokens.length
      if (begin === 0 && begun.size === streams) [begin, numBefore] = [performance.now(), count]
    }
  }
  await Promise.all(Array.from({ length: streams }, (_, i) => one(i)))
  const rate = (1000 * (count - numBefore)) / (performance.now() - begin)
  return { rate, accepted: guessed === 0 ? 0 : accepted / guessed }
}
