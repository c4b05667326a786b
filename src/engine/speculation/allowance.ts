/**
 * The time that guesses may lose: a small share of that of steps without. What they win pays for losses to come, up to a
 * point, so that text in which nothing is guessed right is never much slower than without.
 */

/** Of the time of steps without guesses. */
const SHARE = 0.015
/** What may be lost before any was earned, and what is kept at most, in steps. */
const FIRST = 1
const MOST = 8
/** What one step counts for at most, in steps: one of a new size has things to make that the next has not. */
const WORST = 3

export class Allowance {
  #ms = 0
  /** Of the last step without guesses; null: there was none. */
  #stepMs: number | null = null

  /** Nothing more may be lost for now. */
  get isSpent(): boolean {
    return this.#ms < 0
  }

  /** A step without guesses took so long. */
  earn(ms: number): void {
    if (this.#stepMs === null) this.#ms = FIRST * ms
    this.#stepMs = ms
    this.spend(-SHARE * ms)
  }

  /** A step with guesses took so much longer than what it brought takes without; less than 0: it was shorter. */
  spend(ms: number): void {
    if (this.#stepMs === null) return
    this.#ms -= Math.min(ms, WORST * this.#stepMs)
    this.#ms = Math.min(this.#ms, MOST * this.#stepMs)
  }
}
