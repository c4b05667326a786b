/**
 * How long a step may spend on filling slots and on copies of states, so that streams do not stall behind them. What is
 * likely to take longer than what is left of the step is left to the next one. The first of a step is always done: a piece
 * that takes longer than the budget would never be otherwise.
 */

/** What is done at a time, by how long it takes: to a slot, with a piece of a state in one, and for the store. */
export type CopyKind = 'clear' | 'slot' | 'write' | 'begin' | 'read' | 'save'

/** Steps in which what requests wait for may take all the time before something is read out of a slot all the same. */
const MAX_STARVED_STEPS = 4
/** How much of an unusually long copy is still expected of the next. */
const REMEMBERED_SHARE = 0.75

export class CopyBudget {
  readonly #limitMs: number
  readonly #now: () => number
  readonly #usualMs = new Map<CopyKind, number>()
  #spentMs = 0
  #hasCopied = false
  #starvedSteps = 0

  constructor(limitMs: number, now = () => performance.now()) {
    this.#limitMs = limitMs
    this.#now = now
  }

  beginStep(): void {
    this.#spentMs = 0
    this.#hasCopied = false
    this.#starvedSteps++
  }

  /** From here to the end of the step nobody waits for what is copied. */
  beginBackground(): void {
    if (this.#starvedSteps > MAX_STARVED_STEPS) this.#hasCopied = false
  }

  allows(kind: CopyKind): boolean {
    return !this.#hasCopied || this.#spentMs + (this.#usualMs.get(kind) ?? 0) <= this.#limitMs
  }

  /** Does it and counts its time, whether the budget allows it or not. */
  spend<T>(kind: CopyKind, copy: () => T): T {
    const started = this.#now()
    const result = copy()
    const ms = this.#now() - started
    const usual = this.#usualMs.get(kind) ?? ms
    this.#usualMs.set(kind, Math.max(ms, usual + (1 - REMEMBERED_SHARE) * (ms - usual)))
    this.#spentMs += ms
    this.#hasCopied = true
    if (kind === 'begin' || kind === 'read') this.#starvedSteps = 0
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
