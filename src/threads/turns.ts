/**
 * Runs small pieces of work that many clients may request at once: together they take at most two milliseconds of each
 * turn of the event loop, so that streams continue between them.
 */

/** The piece that exceeds this is the last of its turn. */
const TURN_MS = 2

export class Turns {
  readonly #waiting: (() => void)[] = []
  #spentMs = 0
  #isScheduled = false

  /** In the order of the calls. */
  async do<T>(work: () => T): Promise<T> {
    if (this.#spentMs >= TURN_MS || this.#waiting.length > 0)
      await new Promise<void>((resolve) => this.#waiting.push(resolve))
    const start = performance.now()
    try {
      return work()
    } finally {
      this.#spend(performance.now() - start)
    }
  }

  #spend(ms: number): void {
    this.#spentMs += ms
    if (this.#spentMs < TURN_MS) this.#waiting.shift()?.()
    if (this.#isScheduled) return
    this.#isScheduled = true
    setImmediate(() => this.#begin())
  }

  #begin(): void {
    this.#isScheduled = false
    this.#spentMs = 0
    this.#waiting.shift()?.()
  }
}

/** The instance of this thread's event loop. */
export const turns = new Turns()
