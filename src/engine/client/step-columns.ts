/**
 * The texts of a step as columns, which is how a large step crosses between processes: written and read in a fifth of
 * the time that as many objects take; log-probabilities as bytes. What comes out is what went in, with the prompts first,
 * then plain texts, then the rest; so the events of one answer stay in order.
 */
import type { EngineEvent, FromWorker, TokenText } from '../messages.ts'
import { TokenReader, tokensAsBytes } from './token-bytes.ts'

type Step = FromWorker & { readonly type: 'step' }
type TextEvent = EngineEvent & { readonly type: 'text' }

/** A step with the events that are no plain text in `before` and `after`, and their log-probabilities beside them. */
export interface StepColumns extends Pick<Step, 'stats'> {
  readonly type: 'step-columns'
  readonly before: readonly EngineEvent[]
  readonly after: readonly EngineEvent[]
  /** One of each for every text. */
  readonly ids: readonly string[]
  readonly texts: readonly string[]
  readonly indexes: Int32Array
  readonly numTokens: Int32Array
  /** Tokens of all texts, one text after the other. */
  readonly tokens: Int32Array
  /** Of the events in `before` and `after` that have any, one event after the other; null where they came ahead. */
  readonly logprobs: Uint8Array | null
  readonly numLogprobs: Int32Array
}

/** With fewer texts there is nothing to gain. */
const LEAST_TEXTS = 8

export function packStep(step: Step): Step | StepColumns {
  const { events } = step
  if (events.length < LEAST_TEXTS && !events.some(hasLogprobs)) return step
  const { columns, lists } = columnsOf(step)
  return { ...columns, logprobs: tokensAsBytes(lists) }
}

/** Columns without log-probabilities, and these, in the order of the columns. */
export function columnsOf({ events, stats }: Step) {
  const plain = events.filter(isPlainText)
  const before = events.filter(({ type }) => type === 'prompt')
  const after = events.filter((event) => event.type !== 'prompt' && !isPlainText(event))
  const lists = [...before, ...after].filter(hasLogprobs).map(({ logprobs }) => logprobs)
  const without = (event: EngineEvent) => (hasLogprobs(event) ? { ...event, logprobs: [] } : event)
  const columns: StepColumns = {
    type: 'step-columns',
    stats,
    before: before.map(without),
    after: after.map(without),
    ids: plain.map(({ id }) => id),
    texts: plain.map(({ text }) => text),
    indexes: Int32Array.from(plain, ({ index }) => index),
    numTokens: Int32Array.from(plain, ({ tokens }) => tokens.length),
    tokens: Int32Array.from(plain.flatMap(({ tokens }) => tokens)),
    logprobs: null,
    numLogprobs: Int32Array.from(lists, (list) => list.length),
  }
  return { columns, lists }
}

/** `ahead`: the log-probabilities that came before it. */
export function unpackStep(message: StepColumns, ahead: readonly (TokenText | null)[] = []): Step {
  const { stats, before, after, ids, texts, indexes, numTokens, tokens } = message
  let at = 0
  const plain = ids.map((id, i): TextEvent => {
    const own = Array.from(tokens.subarray(at, at + numTokens[i]!))
    at += own.length
    return { type: 'text', id, index: indexes[i]!, text: texts[i]!, tokens: own, logprobs: null }
  })
  const reader = message.logprobs === null ? null : new TokenReader(message.logprobs)
  const counts = message.numLogprobs.values()
  let taken = 0
  const whole = (event: EngineEvent): EngineEvent => {
    if (!hasLogprobs(event)) return event
    const count = counts.next().value!
    taken += count
    const logprobs = reader?.tokens(count) ?? ahead.slice(taken - count, taken)
    // A list of what was packed: only prompts begin with a token that has none.
    return { ...event, logprobs } as EngineEvent
  }
  return { type: 'step', stats, events: [...before.map(whole), ...plain, ...after.map(whole)] }
}

type Scored = EngineEvent & { readonly logprobs: readonly (TokenText | null)[] }

function hasLogprobs(event: EngineEvent): event is Scored {
  return 'logprobs' in event && event.logprobs !== null
}

function isPlainText(event: EngineEvent): event is TextEvent {
  return event.type === 'text' && event.logprobs === null
}
