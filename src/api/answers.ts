/**
 * The events of all prompts of one call as one stream: prompts run side by side in the engine, and whichever has
 * something new comes next. Cancels every one of them as soon as the consumer leaves, the client goes, or one fails.
 *
 * A long list is not handed over at once: no more prompts than fill the engine's slots are under way, the next one
 * starts when one is done. So a list longer than the waiting line can still be served, and others find room in it.
 */
import { setMaxListeners } from 'node:events'
import { setTimeout as delay, setImmediate as nextTurn } from 'node:timers/promises'
import type { EngineClient } from '../engine/client.ts'
import type { EngineEvent, GenerateRequest } from '../engine/messages.ts'
import { SkeinError } from '../errors.ts'
import { turns } from '../threads/turns.ts'

export interface Answered {
  readonly prompt: number
  readonly event: Exclude<EngineEvent, { type: 'error' }>
}

interface Unanswered {
  readonly prompt: number
  readonly error: SkeinError
}

/** A call under way. Once one of its prompts has been admitted the others wait for room rather than fail it. */
interface Run<T> {
  readonly client: EngineClient
  readonly signal: AbortSignal
  /** The value for a prompt that failed. */
  readonly failed: (unanswered: Unanswered) => T
  isAdmitted: boolean
}

const ROOM_POLL_MS = 50
/** One for all: an error of its own, with a stack, would be made for the end of every call. */
const LEFT = new SkeinError('aborted', 'whoever asked has left')

/** Runs all requests; ends when every choice of every one has finished, and not otherwise: the first failure fails all. */
export function runAll(
  client: EngineClient,
  requests: readonly GenerateRequest[],
  signal: AbortSignal,
): AsyncIterableIterator<Answered> {
  return new Call(client, requests, signal, ({ error }): never => {
    throw error
  })
}

/** Runs all requests; one that fails is reported and the others go on. Throws only when the client has gone. */
export function runEach(
  client: EngineClient,
  requests: readonly GenerateRequest[],
  signal: AbortSignal,
): AsyncIterableIterator<Answered | Unanswered> {
  return new Call(client, requests, signal, (unanswered) => unanswered)
}

/** Not a generator: every generator that a token passes costs it a few turns of promises. */
class Call<T> implements AsyncIterableIterator<Answered | T> {
  readonly #leaving = new AbortController()
  readonly #streams: readonly AsyncGenerator<Answered | T>[]
  readonly #source: AsyncGenerator<Answered | T>
  readonly #clientSignal: AbortSignal

  constructor(
    client: EngineClient,
    requests: readonly GenerateRequest[],
    clientSignal: AbortSignal,
    failed: (unanswered: Unanswered) => T,
  ) {
    this.#clientSignal = clientSignal
    const { signal } = this.#leaving
    // AbortSignal.any() takes ten times as long, and every request comes here.
    if (clientSignal.aborted) this.#clientLeft()
    else clientSignal.addEventListener('abort', this.#clientLeft)
    // Every prompt listens; that is no leak, whatever Node's warning at eleven of them thinks.
    setMaxListeners(0, signal)
    const run: Run<T> = { client, signal, failed, isAdmitted: false }
    const streams = requests.map((request, prompt) => answerOf(run, request, prompt))
    this.#streams = streams
    // Most calls are one prompt, and its events need no merging.
    const isOne = streams.length === 1
    this.#source = isOne ? streams[0]! : merge(streams, widthOf(client, requests))
  }

  [Symbol.asyncIterator](): this {
    return this
  }

  next(): Promise<IteratorResult<Answered | T>> {
    return this.#source.next().then(this.#passOn, this.#leaveAfter)
  }

  async return(): Promise<IteratorResult<Answered | T>> {
    await this.#leave()
    return { value: undefined, done: true }
  }

  readonly #clientLeft = () => this.#leaving.abort(this.#clientSignal.reason)

  readonly #passOn = (result: IteratorResult<Answered | T>): IteratorResult<Answered | T> => {
    if (result.done) this.#clientSignal.removeEventListener('abort', this.#clientLeft)
    return result
  }

  readonly #leaveAfter = async (thrown: unknown): Promise<never> => {
    await this.#leave()
    throw thrown
  }

  async #leave(): Promise<void> {
    // Before return(): a generator that waits for its next event only hears the signal.
    this.#clientSignal.removeEventListener('abort', this.#clientLeft)
    this.#leaving.abort(LEFT)
    await Promise.allSettled(this.#streams.map((stream) => stream.return(undefined)))
  }
}

/** The same iterator with something made of each item, again without a generator. */
export function mapped<A, B>(source: AsyncIterableIterator<A>, map: (item: A) => B): AsyncIterableIterator<B> {
  const result = (one: IteratorResult<A>): IteratorResult<B> => {
    if (one.done) return one
    try {
      return { value: map(one.value), done: false }
    } catch (thrown) {
      source.return?.().catch(() => {})
      throw thrown
    }
  }
  return {
    [Symbol.asyncIterator]() {
      return this
    },
    next: () => source.next().then(result),
    return: async () => {
      await source.return?.()
      return { value: undefined, done: true }
    },
  }
}

/** What a generator returns in the end, whatever it yields before. */
export async function drained<T>(source: AsyncGenerator<unknown, T>): Promise<T> {
  for (;;) {
    const { done, value } = await source.next()
    // The type of what is returned holds with `done`.
    if (done) return value as T
  }
}

/** How many prompts are under way at once. */
function widthOf({ info }: EngineClient, requests: readonly GenerateRequest[]): number {
  const fill = Math.ceil(info.numSlots / (requests[0]?.n ?? 1))
  return Math.max(1, Math.min(fill, info.maxWaiting))
}

async function* answerOf<T>(run: Run<T>, request: GenerateRequest, prompt: number): AsyncGenerator<Answered | T> {
  const { client, signal } = run
  for (;;) {
    let unfinished = request.n
    try {
      for await (const event of client.generate(request, signal)) {
        if (event.type === 'error') throw SkeinError.fromShape(event.error)
        run.isAdmitted = true
        if (event.type === 'finish') unfinished--
        yield { prompt, event }
      }
      if (signal.aborted) throw new SkeinError('aborted', 'the client went away')
      // A short answer that looks complete would be worse than an error.
      if (unfinished > 0) throw new SkeinError('internal', 'the engine ended an answer unfinished')
      return
    } catch (thrown) {
      if (signal.aborted) throw thrown
      const error = SkeinError.from(thrown)
      // The engine says that it is full before it gives any event, so nothing is repeated.
      if (error.code !== 'queue_full' || !run.isAdmitted) {
        yield run.failed({ prompt, error })
        return
      }
    }
    // An abort ends the wait early; the next attempt then says so.
    await delay(ROOM_POLL_MS, undefined, { signal }).catch(() => {})
  }
}

/**
 * The same as `runAll`, in groups of what arrived together: a step of the engine answers many rows at once, and batch
 * streams send them as one event.
 */
export async function* runGroups(
  client: EngineClient,
  requests: readonly GenerateRequest[],
  signal: AbortSignal,
): AsyncGenerator<readonly Answered[]> {
  const leaving = new AbortController()
  const all = runAll(client, requests, AbortSignal.any([signal, leaving.signal]))
  try {
    yield* groups(all)
  } finally {
    leaving.abort(LEFT)
    await all.return?.().catch(() => {})
  }
}

async function* groups<T>(source: AsyncIterator<T>): AsyncGenerator<readonly T[]> {
  let pending = source.next()
  while (true) {
    const first = await pending
    if (first.done) return
    const group = [first.value]
    // All that is already here resolves before the event loop turns.
    const turn = nextTurn(null)
    let more: IteratorResult<T> | null
    do {
      pending = source.next()
      // It is awaited again in the next round, unless the consumer leaves.
      pending.catch(() => {})
      more = await Promise.race([pending.catch(() => null), turn])
      if (more !== null && !more.done) group.push(more.value)
    } while (more !== null && !more.done)
    yield group
  }
}

type Arrival<T> =
  | { readonly stream: AsyncGenerator<T>; readonly result: IteratorResult<T, unknown> }
  | { readonly failure: unknown }

/** Whatever arrives first comes first; `width` streams are open at a time, none more than one item ahead. */
async function* merge<T>(streams: readonly AsyncGenerator<T>[], width: number): AsyncGenerator<T> {
  let arrivals: Arrival<T>[] = []
  let wake = () => {}
  const arrive = (arrival: Arrival<T>) => {
    arrivals.push(arrival)
    wake()
  }
  const pull = (stream: AsyncGenerator<T>) => {
    stream.next().then(
      (result) => arrive({ stream, result }),
      (failure) => arrive({ failure }),
    )
  }
  const waiting = streams.slice(width)
  let open = streams.length
  for (const stream of streams.slice(0, width)) void turns.do(() => pull(stream))
  while (open > 0) {
    if (arrivals.length === 0) {
      await new Promise<void>((resolve) => {
        wake = resolve
      })
    }
    const batch = arrivals
    arrivals = []
    for (const arrival of batch) {
      if ('failure' in arrival) throw arrival.failure
      if (!arrival.result.done) {
        yield arrival.result.value
        pull(arrival.stream)
        continue
      }
      open--
      const next = waiting.shift()
      if (next !== undefined) pull(next)
    }
  }
}
