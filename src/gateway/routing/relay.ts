/**
 * Passes the events of one request on as they come. It is an iterator and not a generator: every generator costs a
 * token a few turns of promises, and a token passes several of these.
 */
import type { EngineEvent } from '../../engine/messages.ts'

type Result = IteratorResult<EngineEvent>

/** The events of a request, from its first event on. */
export interface Opened {
  readonly first: Result
  readonly rest: AsyncIterator<EngineEvent>
}

/** How the events ended: all came, the consumer left, or there was an error. */
export type Ending =
  | { readonly how: 'done' | 'left' }
  | { readonly how: 'failed'; readonly thrown: unknown; readonly hasBegun: boolean }

interface RelayHooks {
  /** Called at once, as callers of an engine expect; resolves with the events when the first one is there. */
  open(): Promise<Opened>
  /** Sees each event, and returns the one that the consumer gets. */
  event(event: EngineEvent): EngineEvent
  /** Called once, after `open` has settled. */
  end(ending: Ending): void
}

export class Relay implements AsyncIterableIterator<EngineEvent> {
  readonly #hooks: RelayHooks
  readonly #opening: Promise<Opened>
  #rest: AsyncIterator<EngineEvent> | null = null
  #isOver = false

  constructor(hooks: RelayHooks) {
    this.#hooks = hooks
    this.#opening = hooks.open()
    // The consumer gets the error when it iterates. Until then it must not count as unhandled.
    this.#opening.catch(() => {})
  }

  [Symbol.asyncIterator](): this {
    return this
  }

  next(): Promise<Result> {
    if (this.#isOver) return Promise.resolve(DONE)
    if (this.#rest !== null) return this.#rest.next().then(this.#pass, this.#fail)
    return this.#opening.then(
      ({ first, rest }) => {
        if (this.#isOver) return DONE
        // next() was called twice before the first event.
        if (this.#rest !== null) return this.next()
        this.#rest = rest
        return this.#pass(first)
      },
      (thrown) => this.#fail(thrown, false),
    )
  }

  /** The consumer left: close the source as soon as it is open. */
  async return(): Promise<Result> {
    if (this.#isOver) return DONE
    this.#isOver = true
    try {
      const { rest } = await this.#opening
      await rest.return?.()
    } catch {
      // Nobody is left to report this to.
    }
    this.#hooks.end({ how: 'left' })
    return DONE
  }

  readonly #pass = (result: Result): Result => {
    if (this.#isOver) return DONE
    if (result.done) {
      this.#isOver = true
      this.#hooks.end({ how: 'done' })
      return DONE
    }
    try {
      const event = this.#hooks.event(result.value)
      return event === result.value ? result : { value: event, done: false }
    } catch (thrown) {
      this.#rest?.return?.().catch(() => {})
      return this.#fail(thrown)
    }
  }

  readonly #fail = (thrown: unknown, hasBegun = true): Result => {
    if (this.#isOver) return DONE
    this.#isOver = true
    this.#hooks.end({ how: 'failed', thrown, hasBegun })
    throw thrown
  }
}

const DONE: Result = { value: undefined, done: true }

export async function opened(events: AsyncIterable<EngineEvent>): Promise<Opened> {
  const rest = events[Symbol.asyncIterator]()
  return { first: await rest.next(), rest }
}
