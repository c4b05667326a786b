/** One answer's position in a grammar, as the engine reads it and matchers.ts moves it. */
import type { Constraint } from './constraint.ts'
import type { Step, ToRows } from './matcher-rows.ts'
import type { SharedMasks } from './shared-masks.ts'

export interface Grammar {
  readonly key: string
  readonly constraint: Constraint
  readonly isSlow: boolean
}

export class Matcher {
  /** Whether a thread of slow grammars follows it. */
  isSlow: boolean
  /** Each thread has rows of its own: a thread may still write one that was closed. */
  readonly #rows: readonly [quick: number, slow: number]
  readonly #grammar: Grammar
  readonly #forces: boolean
  readonly #masks: SharedMasks
  /** All tokens of the answer so far, including accepted forced ones. */
  readonly #tokens: number[] = []
  /** The turn that it waits for, and since when. */
  #turn = 0
  #since = performance.now()
  #hasTaken = false
  #hasFailed = false

  constructor(rows: readonly [number, number], grammar: Grammar, forces: boolean, masks: SharedMasks) {
    this.#rows = rows
    this.isSlow = grammar.isSlow
    this.#grammar = grammar
    this.#forces = forces
    this.#masks = masks
  }

  get row(): number {
    return this.#rows[this.isSlow ? 1 : 0]
  }

  get turn(): number {
    return this.#turn
  }

  /** Whether its mask and forced tokens are up to date with the last token. */
  get isReady(): boolean {
    return this.#hasFailed || this.#masks.turnOf(this.row) === this.#turn
  }

  get hasFailed(): boolean {
    return this.#hasFailed || (this.isReady && this.#masks.statusOf(this.row) === 'failed')
  }

  /** Whether its forced tokens were taken, so that the next token may be drawn with its mask. */
  get hasTaken(): boolean {
    return this.#hasTaken
  }

  get waitsMs(): number {
    return this.isReady ? 0 : performance.now() - this.#since
  }

  /** Tokens that may come next. Valid once it is ready. */
  get mask(): Uint32Array {
    return this.#masks.maskOf(this.row)
  }

  /** Required next tokens, which are returned once; the mask is for the token after them. */
  takeForced(): readonly number[] {
    this.#hasTaken = true
    const forced = this.#masks.forcedOf(this.row)
    this.#tokens.push(...forced)
    return forced
  }

  /** Its answer cannot continue. */
  fail(): void {
    this.#hasFailed = true
  }

  /** Used by matchers.ts: what its thread must do for another token. */
  next(token: number, turn: number): Step {
    this.#tokens.push(token)
    this.#hasTaken = false
    this.#since = performance.now()
    this.#turn = turn
    return { row: this.row, turn, token }
  }

  /** Used by matchers.ts: what a new thread must know. What the old one may have written is as if it were not. */
  opening(turn: number): ToRows {
    this.#since = performance.now()
    this.#turn = turn
    const tokens = [...this.#tokens]
    const [row, forces] = [this.row, this.#forces]
    const { key, constraint } = this.#grammar
    // The first token is drawn, because the prompt may not have been read; what was taken is not taken again.
    const mayForce = tokens.length > 0 && !this.#hasTaken
    return { type: 'open', row, turn, key, constraint, tokens, mayForce, forces }
  }
}
