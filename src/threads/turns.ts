/**
 * Small pieces of work that many clients can ask for at once: together they take two milliseconds of each turn of the event
 * loop, and the others wait for the next, so that streams go on between them.
 */

/** Of a turn; the piece that passes it is the last. */
const TURN_MS = 2

export class Turns {
  readonly #waiting: (() => void)[] = []
  #spentMs = 0
  #isScheduled = false

  /** In the order of asking. */
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

/** Those of this thread's event loop. */
export const turns = new Turns()
