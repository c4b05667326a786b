/**
 * For long-lives.test.ts: small models, dice, and an oracle that says what requests must be answered and what sessions
 * must have as states, whatever else an engine does.
 */
import { setImmediate } from 'node:timers/promises'
import { seededRandom } from '../../src/bench/serve/random.ts'
import type { EngineEvent, GenerateRequest } from '../../src/engine/messages.ts'
import { type Constraint, oneOf } from '../../src/grammar/constraint.ts'
import type { ModelRunner } from '../../src/model/run/model-runner.ts'
import type { Drawn, StateData } from '../../src/model/runner.ts'
import { joinTokens } from '../../src/state/snapshot.ts'
import { newFolder } from '../helpers/direct-store.ts'
import { directGrammars } from '../helpers/grammars.ts'
import { writeRandomRwkv6, writeRandomRwkv7 } from '../helpers/pth.ts'
import {
  type Answer,
  answerFrom,
  Collected,
  drain,
  engineOver,
  promptOf,
  specOf,
  textOf,
  tokenBytes,
  V,
} from './kit.ts'

export const grammars = await directGrammars()
const folder = newFolder()
const SIZES = { layers: 2, channels: 128, headSize: 64, vocab: V }
export const MODELS = [
  writeRandomRwkv7(`${folder}/7.pth`, SIZES),
  writeRandomRwkv7(`${folder}/7a.pth`, { ...SIZES, ranks: { s: 16 } }),
  writeRandomRwkv6(`${folder}/6.pth`, SIZES),
]
export const PATTERNS: readonly Constraint[] = [
  { type: 'regex', pattern: '[a-c]{3,12}' },
  oneOf(['abcabcabc', 'abba', 'cab', '世世a']),
  { type: 'sequence', parts: [{ type: 'text', text: 'abcabba' }, oneOf(['a', 'bc']), { type: 'text', text: 'caab' }] },
  { type: 'grammar', ebnf: 'root ::= "a" root "b" | "cc"' },
]
/** The same draws for the same seed. */
export function diceOf(seed: number) {
  const random = seededRandom(seed)
  const upTo = (most: number) => Math.floor(random() * (most + 1))
  return {
    upTo,
    of: <T>(...values: readonly T[]): T => values[upTo(values.length - 1)]!,
    /** Once in so many times. */
    in: (times: number) => upTo(times - 1) === 0,
  }
}

export const tokensOf = (drawn: readonly Drawn[]) => drawn.map(({ token }) => token)

/** What a client sees of a request, however it was cut into events: its prompt's scores, and each choice. */
export function outcomeOf(events: readonly EngineEvent[], { id, n }: GenerateRequest) {
  const collected = new Collected()
  collected.add(events)
  const choices = Array.from({ length: n }, (_, choice) => {
    const told = events.flatMap((one) => (one.type === 'text' && one.index === choice ? (one.logprobs ?? []) : []))
    const logprobs = told.map(({ token, logprob, top }) => ({ token, logprob, top }))
    return { answer: collected.answer(id, choice), logprobs }
  })
  return { scores: events.flatMap((event) => (event.type === 'prompt' ? (event.logprobs ?? []) : [])), choices }
}

/** What a slot says that has done nothing else. */
export class Oracle {
  readonly runner: ModelRunner
  readonly tuned: StateData
  readonly #known = new Map<string, readonly Drawn[]>()

  constructor(runner: ModelRunner) {
    this.runner = runner
    this.tuned = this.stateAfter(promptOf(9, 77)).map((array) => array.map((x, i) => x * (0.5 + (i % 7) / 7)))
  }

  drawn(request: GenerateRequest, stream = 0): readonly Drawn[] {
    const { prompt, sampling, maxTokens, logprobs, startState } = request
    const numbers = [prompt.join(), sampling, maxTokens, logprobs, startState, stream]
    const key = JSON.stringify(numbers, (_, x) => (typeof x === 'bigint' ? String(x) : x))
    const known = this.#known.get(key)
    if (known !== undefined) return known
    this.#feed(prompt.subarray(0, -1), startState)
    this.runner.resetPenalties(0, prompt)
    const drawn: Drawn[] = []
    for (let position = 0; position < maxTokens; position++) {
      const tokens = Int32Array.of(drawn.at(-1)?.token ?? prompt.at(-1)!)
      const spec = { ...specOf(request, stream, sampling.seed!), logprobs, position }
      drawn.push(structuredClone(this.runner.step([{ slot: 0, tokens, samples: [spec] }])[0]!.drawn[0]!))
    }
    this.#known.set(key, drawn)
    return drawn
  }

  stateAfter(tokens: Int32Array, startState?: string): StateData {
    this.#feed(tokens, startState)
    return this.runner.readState(0).result()
  }

  #feed(tokens: Int32Array, startState: string | undefined): void {
    if (startState !== undefined) this.runner.writeState(0, this.tuned).result()
    else this.runner.clearSlot(0)
    for (let at = 0; at < tokens.length; at += 90)
      this.runner.step([{ slot: 0, tokens: tokens.subarray(at, at + 90), samples: [] }])
  }

  /** Masks, mixtures and scores are left to an engine that has nothing else to do and keeps nothing. */
  async outcome(request: GenerateRequest): Promise<ReturnType<typeof outcomeOf>> {
    const { constraint, mixture, promptLogprobs, n, logprobs } = request
    if (constraint !== undefined || mixture !== undefined || promptLogprobs !== null) {
      const engine = engineOver(this.runner, {}, null, 'plain', tokenBytes, grammars)
      engine.startStates.add('tuned', this.tuned)
      engine.submit(request)
      await setImmediate()
      return outcomeOf(drain(engine).events, request)
    }
    const choices = Array.from({ length: n }, (_, stream) => {
      const drawn = this.drawn(request, stream)
      const answer = answerFrom(tokensOf(drawn), request)
      const shown = logprobs === null ? [] : drawn.slice(0, answer.tokens.length)
      return { answer, logprobs: shown.map(({ logprob }) => logprob!) }
    })
    return { scores: [], choices }
  }
}

/** A turn stands for the text that was shown: its drawn tokens as far as they are that, and the rest of it in tokens anew. */
export function transcriptAfter(prompt: Int32Array, { text, tokens, matched }: Answer): Int32Array {
  if (typeof matched !== 'string') return joinTokens(prompt, tokens)
  let count = tokens.length
  const whole = () => textOf(tokens.slice(0, count), true)
  while (!text.startsWith(whole())) count--
  const rest = tokenBytes.encode(text.slice(whole().length))
  return joinTokens(prompt, [...tokens.slice(0, count), ...rest])
}
