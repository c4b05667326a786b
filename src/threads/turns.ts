/**
 * Runs small pieces of work that many clients may request at once: together, and with what their callers do with the results,
 * they take about a millisecond of each turn of the event loop, so that streams continue between them.
 */

/** The piece that exceeds this is the last of its turn. */
const TURN_MS = 1

export class Turns {
  readonly #waiting: (() => void)[] = []
  /** When the first piece of this turn began; null before it. */
  #beganAt: number | null = null

  /** In the order of the calls. */
  async do<T>(work: () => T): Promise<T> {
    this.#enter()
    if (this.#isSpent || this.#waiting.length > 0) await new Promise<void>((resolve) => this.#waiting.push(resolve))
    try {
      return work()
    } finally {
      // The caller's continuation runs before the next piece, so it is counted.
      queueMicrotask(() => this.#next())
    }
  }

  get #isSpent(): boolean {
    return this.#beganAt !== null && performance.now() - this.#beganAt >= TURN_MS
  }

  #enter(): void {
    if (this.#beganAt !== null) return
    this.#beganAt = performance.now()
    setImmediate(() => this.#leave())
  }

  #leave(): void {
    this.#beganAt = null
    if (this.#waiting.length === 0) return
    this.#enter()
    this.#next()
  }

  #next(): void {
    if (!this.#isSpent) this.#waiting.shift()?.()
  }
}

export const turns = new Turns()
