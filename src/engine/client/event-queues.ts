/**
 * Events of an engine on their way to the consumers of a client: LiveQueues has one EventQueue for each live request. It
 * does not know where events come from.
 */
import { SkeinError } from '../../errors.ts'
import type { EngineEvent } from '../messages.ts'
import { PackedTexts } from './packed-texts.ts'

/** What may wait here: of a request with few choices, of each choice of one with many, and of any. */
const QUEUE_BYTES = 2 ** 17
const CHOICE_BYTES = 2 ** 14
const MAX_QUEUE_BYTES = 2 ** 21

interface Entry {
  readonly queue: EventQueue
  /** The id that the caller gave. */
  readonly callerId: string
  readonly tenant: string
}

/**
 * The queues of a client's live requests, by the id that the engine knows each by. An event of a request that is no
 * longer here, because its consumer left, is dropped.
 *
 * A step has something for every consumer, and each has work to do with it. So only some are woken at a time, and the
 * event loop turns before the next are, one of each tenant in turn: whoever has few does not wait for whoever has many.
 * What comes meanwhile joins what they wait for: if there is more than this process can do, consumers get several
 * tokens at once instead of every one later and later.
 */
export class LiveQueues {
  readonly #entries = new Map<string, Entry>()
  readonly #perTenant = new Map<string, number>()
  readonly #atOnce: number
  /** By tenant, both in turn: queues whose consumers have not been woken since something came. */
  readonly #unread = new Map<string, Set<EventQueue>>()
  #isWaking = false

  /** `atOnce`: consumers woken in one turn of the event loop. */
  constructor(atOnce = Number.POSITIVE_INFINITY) {
    this.#atOnce = atOnce
  }

  get size(): number {
    return this.#entries.size
  }

  /** Of those that are here. */
  numOf(tenant: string): number {
    return this.#perTenant.get(tenant) ?? 0
  }

  add(engineId: string, callerId: string, queue: EventQueue, tenant = ''): void {
    this.#entries.set(engineId, { queue, callerId, tenant })
    this.#perTenant.set(tenant, this.numOf(tenant) + 1)
  }

  /** Forgets a queue; false when it is not here under this id. */
  remove(engineId: string, queue: EventQueue): boolean {
    const isHere = this.#entries.get(engineId)?.queue === queue
    if (isHere) this.#forget(engineId)
    return isHere
  }

  deliver(events: readonly EngineEvent[]): void {
    for (const event of events) {
      const { id: engineId } = event
      const entry = this.#entries.get(engineId)
      if (entry === undefined) continue
      const { queue, callerId, tenant } = entry
      // An event is nobody else's, and a copy of every one would take as long as all of this.
      if (callerId !== engineId) (event as { id: string }).id = callerId
      queue.push(event)
      const unread = this.#unread.get(tenant)
      if (unread === undefined) this.#unread.set(tenant, new Set([queue]))
      else unread.add(queue)
      if (queue.isOver) this.#forget(engineId)
    }
    if (!this.#isWaking) this.#wake()
  }

  failAll(error: SkeinError): void {
    for (const { queue } of this.#entries.values()) queue.fail(error)
    this.#entries.clear()
    this.#perTenant.clear()
  }

  #forget(engineId: string): void {
    const entry = this.#entries.get(engineId)
    if (entry === undefined) return
    this.#entries.delete(engineId)
    const { tenant } = entry
    const left = this.numOf(tenant) - 1
    if (left > 0) this.#perTenant.set(tenant, left)
    else this.#perTenant.delete(tenant)
  }

  #wake(): void {
    for (let count = 0; count < this.#atOnce && this.#unread.size > 0; count++) {
      const [tenant, queues] = this.#unread.entries().next().value!
      const queue = queues.values().next().value!
      queues.delete(queue)
      // Moves the tenant to the end.
      this.#unread.delete(tenant)
      if (queues.size > 0) this.#unread.set(tenant, queues)
      queue.wake()
    }
    this.#isWaking = this.#unread.size > 0
    if (this.#isWaking) setImmediate(() => this.#wake())
  }
}

/**
 * The events of one request, which its consumer gets when it asks, or when `wake` is called. A consumer slower than the
 * engine costs bounded memory: text that waits here is packed, and a consumer that is too far behind (some 300 tokens
 * with 20 log-probabilities each, thousands without) loses the request. Leaving the loop early, or aborting, calls
 * `onCancel` once.
 */
export class EventQueue implements AsyncIterableIterator<EngineEvent> {
  readonly #onCancel: () => void
  readonly #signal: AbortSignal | undefined
  readonly #onAbort = () => this.#abort()
  readonly #maxBytes: number
  #queued: (Exclude<EngineEvent, { type: 'text' }> | PackedTexts)[] = []
  /** Text in #queued that later text of the same choice is added to. */
  readonly #queuedText = new Map<number, PackedTexts>()
  readonly #waiters: { resolve(result: IteratorResult<EngineEvent>): void; reject(error: SkeinError): void }[] = []
  #queuedBytes = 0
  #unfinished: number
  #isOver = false
  #failure: SkeinError | null = null

  constructor(numChoices: number, onCancel: () => void, signal?: AbortSignal) {
    this.#unfinished = numChoices
    this.#maxBytes = Math.min(MAX_QUEUE_BYTES, Math.max(QUEUE_BYTES, CHOICE_BYTES * numChoices))
    this.#onCancel = onCancel
    this.#signal = signal
    if (signal?.aborted) this.fail(ABORTED)
    else signal?.addEventListener('abort', this.#onAbort, { once: true })
  }

  /** Nothing more will come: every choice has finished, or the request failed or was cancelled. */
  get isOver(): boolean {
    return this.#isOver
  }

  /** A consumer that waits goes on waiting until `wake`, except for an error. */
  push(event: EngineEvent): void {
    if (this.#isOver) return
    if (event.type === 'error') {
      this.fail(SkeinError.fromShape(event.error))
      return
    }
    this.#enqueue(event)
    if (this.#queuedBytes > this.#maxBytes && this.#waiters.length === 0) {
      this.#drop()
      this.fail(new SkeinError('aborted', 'the answer was not read as fast as it was generated'))
      this.#onCancel()
      return
    }
    if (event.type !== 'finish') return
    this.#unfinished--
    if (this.#unfinished === 0) this.#end()
  }

  /** Gives what is here to a consumer that waits for it, or packs it. */
  wake(): void {
    if (this.#waiters.length === 0) {
      for (const texts of this.#queuedText.values()) this.#count(texts, () => texts.pack())
      return
    }
    while (this.#waiters.length > 0 && (this.#queued.length > 0 || this.#isOver)) {
      const { resolve, reject } = this.#waiters.shift()!
      const [queued] = this.#queued
      if (queued !== undefined) resolve({ value: this.#take(queued), done: false })
      else if (this.#failure !== null) reject(this.#takeFailure(this.#failure))
      else resolve(DONE)
    }
  }

  /** Ends the request with an error, which the consumer gets after the events that came before it. */
  fail(error: SkeinError): void {
    if (this.#isOver) return
    this.#failure = error
    this.#end()
    this.wake()
  }

  async next(): Promise<IteratorResult<EngineEvent>> {
    const [queued] = this.#queued
    if (queued !== undefined) return { value: this.#take(queued), done: false }
    if (this.#failure !== null) throw this.#takeFailure(this.#failure)
    if (this.#isOver) return DONE
    return new Promise((resolve, reject) => this.#waiters.push({ resolve, reject }))
  }

  /** The consumer left its loop. */
  async return(): Promise<IteratorResult<EngineEvent>> {
    const wasOver = this.#isOver
    this.#drop()
    this.#end()
    this.wake()
    if (!wasOver) this.#onCancel()
    return DONE
  }

  [Symbol.asyncIterator](): this {
    return this
  }

  /** What is queued is dropped: whoever aborts does not want the rest. */
  #abort(): void {
    this.#drop()
    this.fail(ABORTED)
    this.#onCancel()
  }

  #enqueue(event: EngineEvent): void {
    if (event.type !== 'text') {
      this.#queued.push(event)
      return
    }
    const earlier = this.#queuedText.get(event.index)
    if (earlier === undefined) {
      const texts = new PackedTexts(event)
      this.#queuedText.set(event.index, texts)
      this.#queued.push(texts)
      this.#queuedBytes += texts.bytes
      return
    }
    this.#count(earlier, () => {
      if (this.#waiters.length === 0) earlier.pack()
      earlier.add(event)
    })
  }

  /** From the first in line, which stays there as long as it has more. */
  #take(queued: Exclude<EngineEvent, { type: 'text' }> | PackedTexts): EngineEvent {
    if (!(queued instanceof PackedTexts)) {
      this.#queued.shift()
      return queued
    }
    const event = this.#count(queued, () => queued.take())
    if (queued.isEmpty) {
      this.#queued.shift()
      this.#queuedText.delete(event.index)
    }
    return event
  }

  #count<T>(texts: PackedTexts, change: () => T): T {
    const before = texts.bytes
    const result = change()
    this.#queuedBytes += texts.bytes - before
    return result
  }

  #drop(): void {
    this.#queued = []
    this.#queuedBytes = 0
    this.#queuedText.clear()
    this.#failure = null
  }

  #end(): void {
    this.#isOver = true
    this.#signal?.removeEventListener('abort', this.#onAbort)
  }

  #takeFailure(failure: SkeinError): SkeinError {
    this.#failure = null
    return failure
  }
}

const DONE: IteratorResult<EngineEvent> = { value: undefined, done: true }

/** One for all: a call may have a thousand rows, and each error of its own would take as long as ending the row. */
const ABORTED = new SkeinError('aborted', 'the request was cancelled by its caller')
