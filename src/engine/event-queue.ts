/**
 * The events of one request on their way to one consumer. A consumer slower than the engine costs bounded memory: text
 * of the same choice that waits here is merged, so at most one event of each kind and choice is queued, and one that is
 * too far behind (which takes log-probabilities: they are hundreds of times as large as text) loses the request.
 * Leaving the loop early, or aborting, calls `onCancel` once. It does not know where events come from.
 */
import { SkeinError } from '../errors.ts'
import type { EngineEvent, TokenText } from './messages.ts'

interface QueuedText {
  readonly type: 'text'
  readonly id: string
  readonly index: number
  text: string
  readonly tokens: number[]
  readonly logprobs: TokenText[] | null
}

/** What may wait here, roughly; text alone never comes to that. */
const MAX_QUEUED_BYTES = 2 ** 21
/** Of a token with its log-probability as objects, and of each of its alternatives. */
const LOGPROB_BYTES = 200

interface Waiter {
  resolve(result: IteratorResult<EngineEvent>): void
  reject(error: SkeinError): void
}

export class EventQueue implements AsyncIterableIterator<EngineEvent> {
  readonly #onCancel: () => void
  readonly #signal: AbortSignal | undefined
  readonly #onAbort = () => this.#abort()
  #queued: EngineEvent[] = []
  /** Text in #queued that later text of the same choice is added to. */
  readonly #queuedText = new Map<number, QueuedText>()
  readonly #waiters: Waiter[] = []
  #queuedBytes = 0
  #unfinished: number
  #isOver = false
  #failure: SkeinError | null = null

  constructor(numChoices: number, onCancel: () => void, signal?: AbortSignal) {
    this.#unfinished = numChoices
    this.#onCancel = onCancel
    this.#signal = signal
    if (signal?.aborted) this.fail(abortedError())
    else signal?.addEventListener('abort', this.#onAbort, { once: true })
  }

  /** Nothing more will come: every choice has finished, or the request failed or was cancelled. */
  get isOver(): boolean {
    return this.#isOver
  }

  push(event: EngineEvent): void {
    if (this.#isOver) return
    if (event.type === 'error') {
      this.fail(SkeinError.fromShape(event.error))
      return
    }
    const waiter = this.#waiters.shift()
    if (waiter !== undefined) waiter.resolve({ value: event, done: false })
    else this.#enqueue(event)
    if (this.#queuedBytes > MAX_QUEUED_BYTES) {
      this.#drop()
      this.fail(new SkeinError('aborted', 'the answer was not read as fast as it was generated'))
      this.#onCancel()
      return
    }
    if (event.type !== 'finish') return
    this.#unfinished--
    if (this.#unfinished === 0) this.#end()
  }

  /** Ends the request with an error, which the consumer gets after the events that came before it. */
  fail(error: SkeinError): void {
    if (this.#isOver) return
    const waiter = this.#waiters.shift()
    if (waiter !== undefined) waiter.reject(error)
    else this.#failure = error
    this.#end()
  }

  async next(): Promise<IteratorResult<EngineEvent>> {
    const event = this.#queued.shift()
    if (event !== undefined) {
      if (event.type === 'text') {
        this.#queuedText.delete(event.index)
        this.#queuedBytes -= bytesOf(event)
      }
      return { value: event, done: false }
    }
    if (this.#failure !== null) {
      const error = this.#failure
      this.#failure = null
      throw error
    }
    if (this.#isOver) return DONE
    return new Promise((resolve, reject) => this.#waiters.push({ resolve, reject }))
  }

  /** The consumer left its loop. */
  async return(): Promise<IteratorResult<EngineEvent>> {
    const wasOver = this.#isOver
    this.#drop()
    this.#end()
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
    this.#queuedBytes += bytesOf(event)
    const { text, tokens, logprobs } = event
    const earlier = this.#queuedText.get(event.index)
    if (earlier === undefined) {
      const queued = { ...event, tokens: [...tokens], logprobs: logprobs && [...logprobs] }
      this.#queuedText.set(event.index, queued)
      this.#queued.push(queued)
      return
    }
    earlier.text += text
    for (const token of tokens) earlier.tokens.push(token)
    for (const logprob of logprobs ?? []) earlier.logprobs?.push(logprob)
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
    for (const waiter of this.#waiters.splice(0)) waiter.resolve(DONE)
  }
}

/** Adds up: merged events have what they had apart. */
function bytesOf({ text, tokens, logprobs }: EngineEvent & { type: 'text' }): number {
  const numLogprobs = (logprobs ?? []).reduce((sum, { top }) => sum + 1 + top.length, 0)
  return text.length + 8 * tokens.length + LOGPROB_BYTES * numLogprobs
}

const DONE: IteratorResult<EngineEvent> = { value: undefined, done: true }

function abortedError(): SkeinError {
  return new SkeinError('aborted', 'the request was cancelled by its caller')
}
