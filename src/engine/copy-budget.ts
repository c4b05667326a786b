/**
 * How long a step may spend on copies of states, so that streams do not stall behind them. The first copy of a step is
 * always made: a copy larger than the budget would never be otherwise.
 */
export class CopyBudget {
  readonly #limitMs: number
  #spentMs = 0
  #hasCopied = false

  constructor(limitMs: number) {
    this.#limitMs = limitMs
  }

  beginStep(): void {
    this.#spentMs = 0
    this.#hasCopied = false
  }

  get allows(): boolean {
    return !this.#hasCopied || this.#spentMs < this.#limitMs
  }

  /** Runs a copy and counts its time, whether the budget allows it or not. */
  spend<T>(copy: () => T): T {
    const started = performance.now()
    const result = copy()
    this.#spentMs += performance.now() - started
    this.#hasCopied = true
    return result
  }
}
