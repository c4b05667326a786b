/**
 * A token bucket per minute: full at first, refilled evenly, and allowed into debt, because the cost of an answer is
 * known only afterwards. A caller in debt waits until it is paid. It knows neither keys nor HTTP.
 */

const MINUTE_MS = 60_000

export class Bucket {
  readonly #now: () => number
  #capacity: number
  #level: number
  #at: number
  #unsettled = 0

  /** `capacity` per minute, of whatever it counts. */
  constructor(capacity: number, now: () => number) {
    this.#now = now
    this.#capacity = capacity
    this.#level = capacity
    this.#at = now()
  }

  get capacity(): number {
    return this.#capacity
  }

  /** Changes the allowance; the current level stays, up to the new capacity. */
  set capacity(capacity: number) {
    if (capacity === this.#capacity) return
    this.#level = Math.min(this.level, capacity)
    this.#capacity = capacity
  }

  /** The current level; negative while in debt. */
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

  /** Amount taken since the last settlement, if the allowance is shared. */
  get unsettled(): number {
    return this.#unsettled
  }

  /** Records that others know of `count`, and that `level` was left with it. */
  settle(count: number, level: number): void {
    this.#unsettled -= count
    this.#level = level - this.#unsettled
    this.#at = this.#now()
  }

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
 * The running rows of one key, and the queue of those that wait for them. First come, first served: a waiting request
 * holds no rows, so there is no deadlock.
 */
export class RowLine {
  /** Maximum running rows. A change applies when the next row ends. */
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

  /** Resolves when the caller has its rows, which it must `release`; rejects with the signal's reason. */
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
      // A request that exceeds a lowered limit runs alone.
      const fits = next !== undefined && (this.#numRunning + next.numRows <= this.limit || this.#numRunning === 0)
      if (!fits) return
      this.#waiting.shift()
      this.#numRunning += next.numRows
      next.grant()
    }
  }
}
