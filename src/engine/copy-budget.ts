/**
 * How long a step may spend on copies of states, so that streams do not stall behind them. The first copy of a step, or
 * piece of one, is always made: a piece that takes longer than the budget would never be otherwise.
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

/** Of all time, what goes to copies that may turn out to be of use. */
const SPARE_SHARE = 0.1
/** So many milliseconds may be spent before they have been saved: one copy of a large state. */
const CREDIT_MS = 25

/**
 * Time for copies that nobody waits for. A large state takes longer to copy than a step of many rows on a GPU, and while it
 * is copied nothing is launched, so a bound for each step is none: what was spent has to pass ten times over first.
 */
export class SpareTime {
  readonly #now: () => number
  #debtMs = 0
  #since: number

  constructor(now = () => performance.now()) {
    this.#now = now
    this.#since = now()
  }

  get allows(): boolean {
    this.#settle()
    return this.#debtMs < CREDIT_MS
  }

  spend<T>(copy: () => T): T {
    this.#settle()
    const result = copy()
    const now = this.#now()
    this.#debtMs += now - this.#since
    this.#since = now
    return result
  }

  #settle(): void {
    const now = this.#now()
    this.#debtMs = Math.max(0, this.#debtMs - SPARE_SHARE * (now - this.#since))
    this.#since = now
  }
}
