/**
 * Shared by the engine's tests: a small vocabulary with every kind of token, requests, an oracle that answers a request
 * without an engine, and a run of many steps.
 */
import { plainRequest, SEEDED_SAMPLING } from '../../src/bench/plain-request.ts'
import type { TokenBytes } from '../../src/engine/answer/answer-text.ts'
import { Engine } from '../../src/engine/engine.ts'
import type { EngineLimits } from '../../src/engine/limits.ts'
import type { EngineEvent, GenerateRequest } from '../../src/engine/messages.ts'
import type { StateOptions } from '../../src/engine/states.ts'
import type { StartThread } from '../../src/grammar/matchers.ts'
import type { Runner, SampleSpec } from '../../src/model/runner.ts'
import { DeferredRunner } from '../helpers/deferred-runner.ts'
import { answerOf } from '../helpers/fake-runner.ts'

export const V = 97

const utf8 = (text: string) => new TextEncoder().encode(text)

/**
 * id 0 must show no text whatever bytes it has; then letters, pairs, partial characters, invalid bytes, whole
 * characters, a token without bytes.
 */
function vocabulary(): Uint8Array[] {
  const smile = utf8('🙂')
  const world = utf8('世')
  const tokens = [
    utf8('<|endoftext|>'),
    smile.slice(0, 1),
    smile.slice(1, 3),
    smile.slice(3),
    world.slice(0, 2),
    world.slice(2),
    Uint8Array.of(0xff),
    Uint8Array.of(0xed, 0xa0),
    Uint8Array.of(...world.slice(2), 0x61, ...smile.slice(0, 2)),
    utf8('\uFEFF'),
    utf8('\uFFFD'),
    new Uint8Array(0),
    utf8('é'),
    utf8('世界'),
  ]
  const letters = 'abc'
  for (const a of letters) tokens.push(utf8(a))
  for (const a of letters) for (const b of letters) tokens.push(utf8(a + b))
  while (tokens.length < V) tokens.push(utf8(`${letters[tokens.length % 3]}${tokens.length}`))
  return tokens
}

const VOCABULARY = vocabulary()

/** Longest match; bytes without a token become U+FFFD. */
function encode(text: string): Int32Array {
  const bytes = utf8(text)
  const tokens: number[] = []
  for (let at = 0; at < bytes.length; ) {
    const rest = Buffer.from(bytes.subarray(at))
    const fits = (entry: Uint8Array) => entry.length > 0 && rest.subarray(0, entry.length).equals(entry)
    const ids = [...VOCABULARY.keys()].filter((id) => id > 0 && fits(VOCABULARY[id]!))
    const best = ids.sort((a, b) => VOCABULARY[b]!.length - VOCABULARY[a]!.length)[0]
    tokens.push(best ?? 10)
    at += best === undefined ? 1 : VOCABULARY[best]!.length
  }
  return Int32Array.from(tokens)
}

export const tokenBytes = { bytesOf: (token: number) => VOCABULARY[token]!, encode }

export { plainRequest as requestOf, SEEDED_SAMPLING as SAMPLING }

/** A prompt of a given length, its tokens chosen by a seed. */
export function promptOf(length: number, seed = 1): Int32Array {
  return Int32Array.from({ length }, (_, i) => (i * 31 + seed * 17 + (i >> 5)) % V)
}

/** Everything that a client knows about one choice. */
export interface Answer {
  readonly text: string
  readonly tokens: readonly number[]
  readonly reason: string
  readonly matched: string | number | null
  readonly completionTokens: number
}

/** By definition: of the matches that end first, the longest. */
export function firstMatch(text: string, stops: readonly string[]): { stop: string; at: number } | null {
  for (let end = 1; end <= text.length; end++) {
    const ending = stops.filter((stop) => text.slice(0, end).endsWith(stop))
    const stop = ending.sort((a, b) => b.length - a.length)[0]
    if (stop !== undefined) return { stop, at: end - stop.length }
  }
  return null
}

/** Decoded text of some tokens; `isWhole` false leaves out an unfinished character at the end. */
export function textOf(tokens: readonly number[], isWhole: boolean): string {
  const bytes = tokens.flatMap((token) => (token === 0 ? [] : [...tokenBytes.bytesOf(token)]))
  const decoder = new TextDecoder('utf-8', { ignoreBOM: true })
  return decoder.decode(Uint8Array.from(bytes), { stream: !isWhole })
}

/** The visible tokens if the text is cut at `end`; null: not cut. */
export function shownTokens(tokens: readonly number[], end: number | null): number[] {
  const shown: number[] = []
  for (const [i, token] of tokens.entries()) {
    const start = textOf(tokens.slice(0, i), false).length
    const isBlank = token === 0 || tokenBytes.bytesOf(token).length === 0
    if (end !== null && (isBlank ? start > end : start >= end)) break
    shown.push(token)
  }
  return shown
}

/** The result of the drawn tokens under the request's stops, derived from whole prefixes. */
export function answerFrom(drawn: readonly number[], request: GenerateRequest): Answer {
  const { strings, tokens: stopTokens, ignoreEos } = request.stop
  const isStop = (token: number) => (token === 0 ? !ignoreEos : stopTokens.includes(token))
  const cut = (kept: readonly number[], text: string, completionTokens: number): Answer | null => {
    const match = firstMatch(text, strings)
    if (match === null) return null
    const tokens = shownTokens(kept, match.at)
    return { text: text.slice(0, match.at), tokens, reason: 'stop', matched: match.stop, completionTokens }
  }
  for (let count = 1; count <= request.maxTokens; count++) {
    const last = drawn[count - 1]!
    const kept = drawn.slice(0, isStop(last) ? count - 1 : count)
    const isEnd = isStop(last) || count === request.maxTokens
    const text = textOf(kept, isEnd)
    const found = cut(kept, textOf(kept, false), count) ?? cut(kept, text, count)
    if (found !== null) return found
    if (!isEnd) continue
    const [reason, matched] = isStop(last) ? ['stop', last] : ['length', null]
    return { text, tokens: kept, reason: reason as string, matched: matched as number | null, completionTokens: count }
  }
  return { text: '', tokens: [], reason: 'length', matched: null, completionTokens: 0 }
}

export function specOf(request: GenerateRequest, stream: number, seed: bigint): SampleSpec {
  const { logitBias, bannedTokens, seed: _, ...numbers } = request.sampling
  const banned = bannedTokens.map((token) => [token, -Infinity] as const)
  const bias = new Map([...logitBias, ...banned])
  return { ...numbers, slot: 0, seed, position: 0, stream, logprobs: null, bias }
}

/** The answer of choice `stream`, from the fake language alone. */
export function soloAnswer(request: GenerateRequest, stream = 0): Answer {
  const spec = specOf(request, stream, request.sampling.seed ?? 0n)
  return answerFrom(answerOf(request.prompt, spec, request.maxTokens, V), request)
}

/** Combines events into a whole reply; checks their order. */
export class Collected {
  readonly events: EngineEvent[] = []

  add(events: readonly EngineEvent[]): void {
    this.events.push(...events)
  }

  of(id: string): EngineEvent[] {
    return this.events.filter((event) => event.id === id)
  }

  error(id: string): string | null {
    const event = this.of(id).find((candidate) => candidate.type === 'error')
    return event?.type === 'error' ? event.error.code : null
  }

  answer(id: string, index = 0): Answer | null {
    let text = ''
    const tokens: number[] = []
    let answer: Answer | null = null
    let hasPrompt = false
    for (const event of this.of(id)) {
      if (event.type === 'prompt') hasPrompt = true
      else if (!hasPrompt) throw new Error(`${event.type} of ${id} before its prompt event`)
      if ((event.type !== 'text' && event.type !== 'finish') || event.index !== index) continue
      if (answer !== null) throw new Error(`${event.type} of ${id}/${index} after its finish`)
      if (event.type === 'text') {
        text += event.text
        tokens.push(...event.tokens)
      } else {
        const { reason, matched, completionTokens } = event
        answer = { text, tokens, reason, matched, completionTokens }
      }
    }
    return answer
  }
}

/** An engine stepped by its tests that launches the next step before it reads the last one. */
class OverlappedEngine extends Engine {
  override step(): EngineEvent[] {
    return this.turn() ?? []
  }
}

/** The same where turn() is step() in part. */
class EarlyEngine extends Engine {
  #isTurning = false

  override step(overlaps?: boolean): EngineEvent[] {
    if (this.#isTurning) return super.step(overlaps)
    this.#isTurning = true
    const events = this.turn() ?? []
    this.#isTurning = false
    return events
  }
}

/**
 * How a test engine runs: plainly; with late steps (DeferredRunner), each feeding the draws of the previous one or, in
 * parts, each with sequences of its own; or with steps launched early, as on a runner that overlaps.
 */
export const LOOPS = ['plain', 'overlapped', 'in parts', 'early'] as const
export type Loop = (typeof LOOPS)[number]

/** SKEIN_TEST_LOOP=overlapped runs every test of the folder that way, and so does early; tests that count steps then fail. */
const DEFAULT_LOOP = LOOPS.find((loop) => loop === process.env.SKEIN_TEST_LOOP) ?? 'plain'

export function engineOver(
  runner: Runner,
  limits: Partial<EngineLimits> = {},
  states: StateOptions | null = null,
  loop: Loop = DEFAULT_LOOP,
  bytes: TokenBytes = tokenBytes,
  grammars?: StartThread,
): Engine {
  // Whether guesses pay must not depend on how long scripted steps take.
  const own = limits.proposers === undefined ? limits : { now: () => 0, ...limits }
  if (loop === 'plain') return new Engine(runner, bytes, own, states, grammars)
  if (loop === 'early') {
    Object.defineProperty(runner, 'overlaps', { value: true })
    return new EarlyEngine(runner, bytes, { now: () => 0, ...own }, states, grammars)
  }
  const late = loop === 'overlapped' ? new DeferredRunner(runner) : new DeferredRunner(runner, 3, false)
  return new OverlappedEngine(late, bytes, own, states, grammars)
}

/** Steps until nothing is left to do. */
export function drain(engine: Engine, collected = new Collected(), maxSteps = 100_000): Collected {
  for (let i = 0; engine.hasWork; i++) {
    if (i === maxSteps) throw new Error(`not idle after ${maxSteps} steps`)
    collected.add(engine.step())
  }
  return collected
}
