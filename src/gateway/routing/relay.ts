/**
 * Hands the events of one request on as they come. It is an iterator and not a generator: every generator that a token
 * passes costs it a few turns of promises, and a token passes several of these.
 */
import type { EngineEvent } from '../../engine/messages.ts'

type Result = IteratorResult<EngineEvent>

/** Events that have begun to come. */
export interface Opened {
  readonly first: Result
  readonly rest: AsyncIterator<EngineEvent>
}

/** How the events ended: all came, their consumer left, or something failed. */
export type Ending =
  | { readonly how: 'done' | 'left' }
  | { readonly how: 'failed'; readonly thrown: unknown; readonly hasBegun: boolean }

interface RelayHooks {
  /** Called at once, as callers of an engine expect: gives the events when the first of them is there. */
  open(): Promise<Opened>
  /** Sees each event, and gives what the consumer gets for it. */
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
    // Whoever iterates gets the error; until then it is nobody's.
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
        // Asked twice before anything was there.
        if (this.#rest !== null) return this.next()
        this.#rest = rest
        return this.#pass(first)
      },
      (thrown) => this.#fail(thrown, false),
    )
  }

  /** The consumer leaves. What is being opened is let go of when it is there. */
  async return(): Promise<Result> {
    if (this.#isOver) return DONE
    this.#isOver = true
    try {
      const { rest } = await this.#opening
      await rest.return?.()
    } catch {
      // Nobody is there any more who could be told.
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
