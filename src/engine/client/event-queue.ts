/**
 * The events of one request on their way to one consumer, which gets them when it asks, or when `wake` is called. A
 * consumer slower than the engine costs bounded memory: text that waits here is packed, and a consumer that is too far
 * behind (some 300 tokens with 20 log-probabilities each, thousands without) loses the request.
 * Leaving the loop early, or aborting, calls `onCancel` once. It does not know where events come from.
 */
import { SkeinError } from '../../errors.ts'
import type { EngineEvent } from '../messages.ts'
import { PackedTexts } from './packed-texts.ts'

/** What may wait here: of a request with few choices, of each choice of one with many, and of any. */
const QUEUE_BYTES = 2 ** 17
const CHOICE_BYTES = 2 ** 14
const MAX_QUEUE_BYTES = 2 ** 21

interface Waiter {
  resolve(result: IteratorResult<EngineEvent>): void
  reject(error: SkeinError): void
}

export class EventQueue implements AsyncIterableIterator<EngineEvent> {
  readonly #onCancel: () => void
  readonly #signal: AbortSignal | undefined
  readonly #onAbort = () => this.#abort()
  readonly #maxBytes: number
  #queued: (Exclude<EngineEvent, { type: 'text' }> | PackedTexts)[] = []
  /** Text in #queued that later text of the same choice is added to. */
  readonly #queuedText = new Map<number, PackedTexts>()
  readonly #waiters: Waiter[] = []
  #queuedBytes = 0
  #unfinished: number
  #isOver = false
  #failure: SkeinError | null = null

  constructor(numChoices: number, onCancel: () => void, signal?: AbortSignal) {
    this.#unfinished = numChoices
    this.#maxBytes = Math.min(MAX_QUEUE_BYTES, Math.max(QUEUE_BYTES, CHOICE_BYTES * numChoices))
    this.#onCancel = onCancel
    this.#signal = signal
    if (signal?.aborted) this.fail(abortedError())
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
    this.fail(abortedError())
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

function abortedError(): SkeinError {
  return new SkeinError('aborted', 'the request was cancelled by its caller')
}
