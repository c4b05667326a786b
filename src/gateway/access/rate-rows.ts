/**
 * The rows that one key has running, and the line of those that wait for its other rows to end. First come, first served:
 * nothing holds rows while it waits for more, so nothing waits for ever.
 */

interface Waiter {
  readonly numRows: number
  grant(): void
}

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
      // One that is larger than a limit lowered meanwhile runs alone.
      const fits =
        next !== undefined &&
        (this.#numRunning + next.numRows <= this.limit || this.#numRunning === 0)
      if (!fits) return
      this.#waiting.shift()
      this.#numRunning += next.numRows
      next.grant()
    }
  }
}
