/**
 * A token bucket per minute: full at first, refilled evenly, and allowed into debt, because what an answer will cost is known
 * only when it is there. Whoever is in debt waits until it is paid. It knows neither keys nor HTTP.
 */

const MINUTE_MS = 60_000

export class Bucket {
  readonly #now: () => number
  #capacity: number
  #level: number
  #at: number
  #unsettled = 0

  /** `capacity` of whatever it counts, per minute. */
  constructor(capacity: number, now: () => number) {
    this.#now = now
    this.#capacity = capacity
    this.#level = capacity
    this.#at = now()
  }

  get capacity(): number {
    return this.#capacity
  }

  /** The allowance was changed: what is left stays, as far as there is room for it. */
  set capacity(capacity: number) {
    if (capacity === this.#capacity) return
    this.#level = Math.min(this.level, capacity)
    this.#capacity = capacity
  }

  /** What is left; negative while in debt. */
  get level(): number {
    const now = this.#now()
    const gained = ((now - this.#at) * this.#capacity) / MINUTE_MS
    this.#level = Math.min(this.#capacity, this.#level + gained)
    this.#at = now
    return this.#level
  }

  take(count: number): void {
    this.#level = this.level - count
    this.#unsettled += count
  }

  /** Taken since it was settled last, where others take from the same allowance. */
  get unsettled(): number {
    return this.#unsettled
  }

  /** `count` of that is known to the others, and with it so much was left to all. */
  settle(count: number, level: number): void {
    this.#unsettled -= count
    this.#level = level - this.#unsettled
    this.#at = this.#now()
  }

  /** Until `count` are there. */
  msUntil(count: number): number {
    return (Math.max(0, count - this.level) * MINUTE_MS) / this.#capacity
  }

  get msUntilFull(): number {
    return this.msUntil(this.#capacity)
  }
}

interface Waiter {
  readonly numRows: number
  grant(): void
}

/**
 * The rows that one key has running, and the line of those that wait for its other rows to end. First come, first served:
 * nothing holds rows while it waits for more, so nothing waits for ever.
 */
export class RowLine {
  /** How many may run at once; changes take effect with the next row that ends. */
  limit: number
  readonly #waiting: Waiter[] = []
  #numRunning = 0

  constructor(limit: number) {
    this.limit = limit
  }

  get numRunning(): number {
    return this.#numRunning
  }

  get isIdle(): boolean {
    return this.#numRunning === 0 && this.#waiting.length === 0
  }

  hasRoomFor(numRows: number): boolean {
    return this.#waiting.length === 0 && this.#numRunning + numRows <= this.limit
  }

  /** Resolves when the rows are the caller's, who must `release` them; rejects with the signal's reason. */
  take(numRows: number, signal?: AbortSignal): Promise<void> {
    if (this.hasRoomFor(numRows)) {
      this.#numRunning += numRows
      return Promise.resolve()
    }
    return new Promise((resolve, reject) => {
      const leave = () => {
        this.#waiting.splice(this.#waiting.indexOf(waiter), 1)
        reject(signal!.reason)
        this.#advance()
      }
      const waiter: Waiter = {
        numRows,
        grant: () => {
          signal?.removeEventListener('abort', leave)
          resolve()
        },
      }
      this.#waiting.push(waiter)
      if (signal?.aborted) leave()
      else signal?.addEventListener('abort', leave, { once: true })
    })
  }

  release(numRows: number): void {
    this.#numRunning -= numRows
    this.#advance()
  }

  #advance(): void {
    for (;;) {
      const next = this.#waiting[0]
      // A request larger than a limit that was lowered meanwhile runs alone.
      const fits = next !== undefined && (this.#numRunning + next.numRows <= this.limit || this.#numRunning === 0)
      if (!fits) return
      this.#waiting.shift()
      this.#numRunning += next.numRows
      next.grant()
    }
  }
}
