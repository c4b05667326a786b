/**
 * What of a message crosses between processes at once, and what in parts. The socket between two processes holds some
 * 200 KB: whatever is behind a large message waits until both of them have had several turns. So a message is at most
 * 64 KB, or it is parts of that size, which a queue sends a few at a time (large-messages.ts). Log-probabilities, the most
 * that a step can hold, are written and read part by part. Knows nothing of how anything is carried.
 */
import { deserialize, serialize } from 'node:v8'
import type { EngineEvent, FromWorker, TokenText, ToWorker } from '../messages.ts'
import { columnsOf, packStep, type StepColumns, unpackStep } from './step-columns.ts'
import { sizeOfToken, TokenReader, tokensAsBytes } from './token-bytes.ts'

const PART_BYTES = 2 ** 16
/** An alternative of a token, as an object. */
const OBJECT_BYTES = 64

type Message = ToWorker | FromWorker
type Step = FromWorker & { readonly type: 'step' }
/** Of a request or of a call. */
export type Id = string | number

/** What is behind in a queue: of whom, and what it takes there. */
export interface Large {
  readonly ids: ReadonlySet<Id>
  readonly bytes: number
  readonly parts: Iterator<Part>
}

/** A message follows its bytes and its log-probabilities; where it is null, the bytes are the message. */
export type Part =
  | { readonly type: 'part'; readonly size: number; readonly at: number; readonly part: Uint8Array }
  | { readonly type: 'scores'; readonly part: Uint8Array }
  | { readonly type: 'rest'; readonly message: Message | StepColumns | null }

interface Divided {
  readonly now: Message | StepColumns | null
  readonly later: Large | null
}

/** `isBehind`: whether something of a request or call is still to be sent; of anybody, without an id. */
export function divide(message: Message, isBehind: (id?: Id) => boolean): Divided {
  switch (message.type) {
    case 'step':
      return divideStep(message, isBehind)
    case 'generate':
      return divideOther(message, message.request.id, isBehind)
    case 'cancel':
      return divideCancel(message.ids, isBehind)
    case 'call':
    case 'result':
      return divideOther(message, message.id, isBehind)
    case 'shutdown':
      // The last word.
      return isBehind() ? { now: null, later: large([], 0, whole(message)) } : at(message)
    case 'fatal':
    case 'ready':
    case 'progress':
    case 'stage':
    case 'ping':
      return at(message)
    default:
      return message satisfies never
  }
}

function divideCancel(all: readonly string[], isBehind: (id: Id) => boolean): Divided {
  const behind = all.filter((id) => isBehind(id))
  const ids = all.filter((id) => !isBehind(id))
  return {
    now: ids.length === 0 ? null : { type: 'cancel', ids },
    later: behind.length === 0 ? null : large(behind, 0, whole({ type: 'cancel', ids: behind })),
  }
}

function at(now: Message | StepColumns): Divided {
  return { now, later: null }
}

function large(ids: Iterable<Id>, bytes: number, parts: Iterator<Part>): Large {
  return { ids: new Set(ids), bytes, parts }
}

function divideOther(message: Message, id: Id, isBehind: (id?: Id) => boolean): Divided {
  const bytes = bytesOf(message)
  if (bytes !== null && bytes.length > PART_BYTES) {
    const parts = partsOf(bytes, withBytes(message, new Uint8Array(0)))
    return { now: null, later: large([id], bytes.length, parts) }
  }
  const packed = serialize(message)
  if (packed.length > PART_BYTES) return { now: null, later: large([id], packed.length, partsOf(packed, null)) }
  if (isBehind(id)) return { now: null, later: large([id], packed.length, whole(message)) }
  return at(message)
}

/** Bytes that a message is mostly made of: a file of a session. */
function bytesOf(message: Message): Uint8Array | null {
  if (message.type === 'call' && 'bytes' in message.params) return message.params.bytes
  if (message.type !== 'result' || 'error' in message) return null
  return message.value instanceof Uint8Array ? message.value : null
}

function withBytes(message: Message, bytes: Uint8Array): Message {
  if (message.type === 'result') return { ...message, value: bytes }
  // One with bytes among its parameters, as `bytesOf` found.
  const call = message as Extract<ToWorker, { readonly method: 'sessions.import' }>
  return { ...call, params: { ...call.params, bytes } }
}

function* partsOf(bytes: Uint8Array, message: Message | null): Generator<Part> {
  for (let start = 0; start < bytes.length; start += PART_BYTES) {
    const part = bytes.subarray(start, start + PART_BYTES)
    yield { type: 'part', size: bytes.length, at: start, part }
  }
  yield { type: 'rest', message }
}

function* whole(message: Message): Generator<Part> {
  yield { type: 'rest', message }
}

/** What is large, or behind something of the same request, waits; the counters go at once. */
function divideStep(step: Step, isBehind: (id?: Id) => boolean): Divided {
  const ids = new Set<Id>()
  let room = PART_BYTES
  for (const event of step.events) {
    const size = sizeWithin(event, room)
    if (isBehind(event.id) || size > room) ids.add(event.id)
    else room -= size
  }
  if (ids.size === 0) return at(packStep(step))
  const now = step.events.filter(({ id }) => !ids.has(id))
  const events = step.events.filter(({ id }) => ids.has(id))
  const later = large(ids, sizeHeld(events), partsOfStep({ ...step, events, stats: null }))
  return { now: packStep({ ...step, events: now }), later }
}

/** Not counted further than `most`. Plain text and ends are small, however many. */
function sizeWithin(event: EngineEvent, most: number): number {
  let size = 'embedding' in event ? (event.embedding?.byteLength ?? 0) : 0
  if (!('logprobs' in event)) return size
  for (const token of event.logprobs ?? []) {
    size += sizeOfToken(token)
    if (size > most) break
  }
  return size
}

function sizeHeld(events: readonly EngineEvent[]): number {
  let size = 0
  for (const event of events) {
    const lists = 'logprobs' in event ? (event.logprobs ?? []) : []
    size += lists.length * OBJECT_BYTES * (1 + (lists.at(-1)?.top.length ?? 0))
    if ('embedding' in event) size += event.embedding?.byteLength ?? 0
  }
  return size
}

function* partsOfStep(step: Step): Generator<Part> {
  const { columns, lists } = columnsOf(step)
  let part: (TokenText | null)[] = []
  let size = 0
  for (const list of lists)
    for (const token of list) {
      const more = sizeOfToken(token)
      if (size + more > PART_BYTES && part.length > 0) {
        yield { type: 'scores', part: tokensAsBytes([part]) }
        ;[part, size] = [[], 0]
      }
      part.push(token)
      size += more
    }
  if (part.length > 0) yield { type: 'scores', part: tokensAsBytes([part]) }
  // Embeddings are in it.
  const packed = serialize(columns)
  if (packed.length > PART_BYTES) yield* partsOf(packed, null)
  else yield { type: 'rest', message: columns }
}

/** Makes messages of what has come. Parts of one message come before those of the next. */
export class WireReader<In extends Message> {
  #bytes: Uint8Array | null = null
  #scores: (TokenText | null)[] = []

  /** Null: more of it will come. */
  read(wire: Message | StepColumns | Part): In | null {
    switch (wire.type) {
      case 'part':
        this.#bytes ??= new Uint8Array(wire.size)
        this.#bytes.set(wire.part, wire.at)
        return null
      case 'scores':
        for (const reader = new TokenReader(wire.part); reader.hasMore; ) this.#scores.push(reader.token())
        return null
      case 'rest':
        return this.#rest(wire.message)
      case 'step-columns':
        return unpackStep(wire) as In
      default:
        // The peer speaks this protocol: both ends are started from one installation.
        return wire as In
    }
  }

  #rest(message: Message | StepColumns | null): In {
    const [bytes, scores] = [this.#bytes, this.#scores]
    ;[this.#bytes, this.#scores] = [null, []]
    // As above. Bytes come with a message that lacks them, or are the message.
    const known = message ?? (deserialize(bytes!) as Message | StepColumns)
    if (known.type === 'step-columns') return unpackStep(known, scores) as In
    return (message === null || bytes === null ? known : withBytes(message as Message, bytes)) as In
  }
}
