/**
 * Short steps while a newcomer is answered. On a CPU a step takes as long as its rows together, so somebody with one answer
 * beside another's sixty waits for all sixty at each token. While a tenant with far less than its part of the slots has
 * its first tokens, the rows of all that have more wait, and so do long prompts, whoever has them.
 *
 * A short step takes longer per row, so this costs the others. What it may cost is bounded in time, whatever the device: when
 * half of that is used up, they do not wait altogether, but take turns: each is in one step of a few.
 */
import type { LiveRequest, Sequence } from '../sequence.ts'

/** What a newcomer has at most, as a fraction of its part of the slots. Who has more waits, even with less than its part: twenty rows and their prompts take 10 ms. */
const SMALL_PART = 1 / 8
/** It is one for so many tokens of an answer, after a prompt of at most so many. */
const FIRST_TOKENS = 64
const SHORT_PROMPT = 512
/** So many rows of the others always go at once; more in two turns, and twice as many in four. */
const MOST_AT_ONCE = 16
const MOST_TURNS = 4
/** Tokens of others' prompts in a short step: some take as long as the rows there. */
const MOST_PROMPT_TOKENS = 16
/** The fraction of all time that short steps may cost, and the most that may be spent at once. */
const COST = 0.25
const MOST_SPARE_MS = 500
/** With more than so many of these the others wait altogether. */
const WAIT_SPARE_MS = 250
/** After so many short steps with prompts one is not, to measure what they cost: answers alone do not tell. Rare enough for a p99. */
const LOOK_EVERY = 256

export class RowTurns {
  /** Milliseconds that short steps may cost from here on. */
  #spareMs = MOST_SPARE_MS
  /** Milliseconds for each token in the last two other steps. */
  #tokenMs: readonly [number, number] = [0, 0]
  /** In how many turns those with more go; 1: all at once, 0: none goes. */
  #numTurns = 1
  /** Rows that wait for their turn. */
  #numWaiting = 0
  #newcomers: readonly LiveRequest[] = []
  /** Numbers of the short steps that have not been learnt. */
  readonly #short = new Set<number>()
  /** Short steps with prompts since the last other one. */
  #numShort = 0

  /** The step that is planned is a short one. */
  get isShort(): boolean {
    return this.#numTurns !== 1
  }

  /** The rows of step `number`, of all that can run. `fullness`: what each tenant holds of its part of the slots. */
  among(
    ready: readonly Sequence[],
    running: readonly LiveRequest[],
    fullness: ReadonlyMap<string, number>,
    number: number,
  ): readonly Sequence[] {
    this.#numTurns = 1
    this.#numWaiting = 0
    this.#short.delete(number)
    if (fullness.size < 2 || this.#spareMs <= 0) return ready
    const fullnessOf = ({ request }: LiveRequest) => fullness.get(request.tenant ?? '') ?? 0
    this.#newcomers = running.filter((live) => fullnessOf(live) <= SMALL_PART && isFresh(live))
    if (this.#newcomers.length === 0) return ready
    const isHeavy = (live: LiveRequest) => fullnessOf(live) > SMALL_PART
    const light = ready.filter(({ owner }) => !isHeavy(owner))
    const numHeavy = ready.length - light.length
    const readsPrompts = running.some((live) => live.canSendChunk && (isHeavy(live) || live.promptLeft > SHORT_PROMPT))
    if (numHeavy === 0 && !readsPrompts) return ready
    if (readsPrompts && this.#numShort >= LOOK_EVERY) return ready
    if (readsPrompts) this.#numShort++
    if (this.#spareMs > WAIT_SPARE_MS && this.#newcomers.some(isGoingOn)) return this.#shorten(number, 0, ready, light)
    if (numHeavy <= MOST_AT_ONCE && !readsPrompts) return ready
    // Powers of two: a row is in one step of four even where this changes.
    const numTurns = numHeavy <= 2 * MOST_AT_ONCE && !readsPrompts ? 2 : MOST_TURNS
    const isOn = ({ owner, slot }: Sequence) => !isHeavy(owner) || (slot! + number) % numTurns === 0
    const rows = numHeavy <= MOST_AT_ONCE ? ready : ready.filter(isOn)
    if (rows.length === 0) return ready
    return this.#shorten(number, numTurns, ready, rows)
  }

  #shorten(number: number, numTurns: number, ready: readonly Sequence[], rows: readonly Sequence[]) {
    this.#short.add(number)
    this.#numTurns = numTurns
    this.#numWaiting = ready.length - rows.length
    return rows
  }

  /**
   * The prompts of that step, newcomers' first, and how many of their tokens it takes, where one with all rows would take
   * `room`. Newcomers' tokens may also take the places of rows that wait.
   */
  prompts(all: readonly LiveRequest[], room: number): readonly [readonly LiveRequest[], number] {
    if (!this.isShort) return [all, room]
    const first = all.filter((live) => this.#newcomers.includes(live))
    const own = first.reduce((sum, { promptLeft, width }) => sum + promptLeft * width, 0)
    const most = Math.min(own, room + this.#numWaiting)
    const others = all.filter((live) => !this.#newcomers.includes(live))
    if (this.#numTurns === 0 || others.length === 0) return [first, most]
    return [[...first, ...others], most + Math.min(MOST_PROMPT_TOKENS, Math.ceil(room / this.#numTurns))]
  }

  /** Step `number`, with so many tokens, took `ms` milliseconds, with what the host did before it. True: it was a short one. */
  learn(number: number, ms: number, answers: number, prompts: number): boolean {
    const wasShort = this.#short.delete(number)
    const tokens = answers + prompts
    this.#spareMs = Math.min(MOST_SPARE_MS, this.#spareMs + COST * ms)
    if (wasShort) this.#spareMs -= Math.max(0, ms - tokens * Math.min(...this.#tokenMs))
    if (wasShort || answers === 0) return wasShort
    this.#numShort = 0
    this.#tokenMs = [this.#tokenMs[1], ms / tokens]
    return false
  }
}

/** It has its slots, and has read and drawn little. */
function isFresh({ prompt, sequences }: LiveRequest): boolean {
  const isNew = ({ slot, finish, numDrawn }: Sequence) => slot !== null && finish === null && numDrawn < FIRST_TOKENS
  return prompt.length <= SHORT_PROMPT && sequences.some(isNew)
}

/** It has a row in the next step, or in one that is on its way. */
function isGoingOn({ canSendChunk, numChunksSent, sequences }: LiveRequest): boolean {
  const isNext = ({ canGoOn, isSettled, numAwaited }: Sequence) => (canGoOn && isSettled) || numAwaited > 0
  return canSendChunk || numChunksSent > 0 || sequences.some(isNext)
}
