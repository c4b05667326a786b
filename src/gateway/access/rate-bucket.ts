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

  /** What is left; below zero in debt. */
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
