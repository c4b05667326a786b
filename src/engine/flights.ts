/**
 * Steps in flight, oldest first, with the rows of each. It marks which draws are awaited, so that the next step can be
 * planned before this one has landed. engine.ts decides what results mean.
 */
import { assert } from '../errors.ts'
import type { Flight, RowResult, Runner } from '../model/runner.ts'
import type { PlannedRow } from './scheduler.ts'
import type { Sequence } from './sequence.ts'

interface Launched {
  readonly number: number
  readonly plan: PlannedRow[]
  readonly flight: Flight<RowResult[]>
  /** When its launch began. */
  readonly time: number
}

/** Receives, for each step, the milliseconds that it took after the step before it, and those between both. */
type StepTimes = (plan: readonly PlannedRow[], ms: number, gapMs: number, number: number) => void

/** The row feeds no draw of an earlier step. */
const NO_FLIGHT = 0

/** Number of past steps whose durations predict the next one. */
const REMEMBERED = 8

/**
 * Milliseconds, on average. What the engine does takes 0.2 to 0.4. Where steps overlap, a new request waits for one
 * more of them. One row of 10 to 16 ms gains 0 to 6 % (docs/dev/cpu-kernels.md).
 */
const SHORT_MS = 20
/** Tokens of a step. More rows gain nothing that was measured, and take as long as all of them together. */
const FEW_TOKENS = 8

/**
 * How long before the end of a step it is looked at again: timers are late by a millisecond or two. A device whose next
 * step is queued loses nothing by that; where it would be idle, nothing was lost with this at steps of 3 to 14 ms.
 */
const WAKE_EARLY_MS = { isQueued: 0.5, isLast: 2.5 }

export class Flights {
  readonly #runner: Runner
  readonly #onStep: StepTimes
  readonly #now: () => number
  readonly #launched: Launched[] = []
  #last = 0
  /** Rows of the last step whose draws have not been made, as positions in its plan. */
  #undrawn: readonly number[] = []
  /** Milliseconds that each of the last few steps took after the one before it. */
  readonly #durations: number[] = []
  #landedAt = 0
  /** In the last step. */
  #numTokens = 0

  /** `onStep` receives the duration of each step that followed another one or began with nothing in flight. */
  constructor(runner: Runner, onStep: StepTimes = () => {}, now: () => number = () => performance.now()) {
    this.#now = now
    this.#runner = runner
    this.#onStep = onStep
  }

  get count(): number {
    return this.#launched.length
  }

  get hasRoom(): boolean {
    return this.count < this.#runner.maxFlights
  }

  /** Steps are so short that what the engine does between two of them is a part of their time, and may overlap. */
  get mayOverlap(): boolean {
    if (this.#runner.overlaps !== true || this.#numTokens > FEW_TOKENS) return false
    const sum = this.#durations.reduce((all, ms) => all + ms, 0)
    return this.#durations.length === REMEMBERED && sum < REMEMBERED * SHORT_MS
  }

  /** Number of the last launched step; the next step can feed its draws. */
  get last(): number {
    return this.#last
  }

  /** The oldest step can be landed without waiting. */
  get isOldestDone(): boolean {
    return this.#launched[0]?.flight.isDone === true
  }

  /** Milliseconds until the oldest step is nearly done, if it takes as long as the shortest of the last few. */
  get restMs(): number {
    const [oldest] = this.#launched
    if (oldest === undefined || this.#durations.length === 0) return 0
    if (this.#undrawn.length > 0 && this.count === 1) return 0
    const begin = Math.max(this.#landedAt, oldest.time)
    const early = this.count > 1 ? WAKE_EARLY_MS.isQueued : WAKE_EARLY_MS.isLast
    return Math.max(0, begin + Math.min(...this.#durations) - early - this.#now())
  }

  launch(plan: readonly PlannedRow[]): void {
    const time = this.#now()
    const flight = this.#runner.launch(plan.map(({ row }) => row))
    this.#last++
    this.#numTokens = plan.reduce((sum, { row }) => sum + row.tokens.length, 0)
    let draw = 0
    for (const { owner, row, takers, numPrompt } of plan) {
      if (numPrompt > 0) owner.sent(numPrompt)
      // How many guesses hold, and so what comes next, is known only when the step has landed.
      const flight = row.guesses === undefined ? this.#last : NO_FLIGHT
      for (const [i, sequence] of takers.entries()) sequence.awaits(flight, draw + i)
      draw += row.samples.length
    }
    this.#launched.push({ number: this.#last, plan: [...plan], flight, time })
    this.#undrawn = [...plan.keys()].filter((at) => plan[at]!.row.drawsLater === true)
  }

  /**
   * Makes the draws that the last step left, once their masks have come. Where `othersWait` and the device is idle,
   * draws whose masks are late are left to a later step. True: none are left.
   */
  drawLater(othersWait: (late: ReadonlySet<Sequence>) => boolean): boolean {
    if (this.#undrawn.length === 0) return true
    // What these draws would feed is not known yet.
    if (this.count > 1) return false
    const { plan } = this.#launched[0]!
    const takers = this.#undrawn.map((at) => plan[at]!.takers[0]!)
    const late = new Set(takers.filter(({ lacksMask }) => lacksMask))
    if (late.size > 0 && !(this.#runner.waitsForDraws && othersWait(late))) return false
    this.#runner.drawLater(takers.map((one) => (late.has(one) ? null : (one.matcher?.mask ?? null))))
    for (const [i, at] of this.#undrawn.entries()) {
      const sequence = takers[i]!
      const { finish, owner, isOvertaken } = sequence
      const isForgone = late.has(sequence) || (isOvertaken && finish === null)
      if (isForgone) sequence.forgoes()
      if (isForgone) plan[at] = { ...plan[at]!, takers: [] }
      else if (owner.isLeaving) plan[at] = { ...plan[at]!, isMoot: true }
    }
    this.#undrawn = []
    return true
  }

  /**
   * Yields the rows of the oldest step with their results, one after another; waits for the step. A row counts as
   * awaited until it is yielded.
   */
  *land(): Generator<[PlannedRow, RowResult]> {
    const oldest = this.#launched.shift()
    assert(oldest !== undefined, 'nothing is on its way')
    const { number, plan, flight, time } = oldest
    const results = flight.result()
    const now = this.#now()
    const duration = now - Math.max(this.#landedAt, time)
    this.#onStep(plan, duration, Math.max(0, time - this.#landedAt), number)
    this.#durations.push(duration)
    if (this.#durations.length > REMEMBERED) this.#durations.shift()
    this.#landedAt = now
    assert(results.length === plan.length, `${results.length} results for ${plan.length} rows`)
    for (const [i, planned] of plan.entries()) {
      if (planned.numPrompt > 0) planned.owner.numChunksSent--
      for (const sequence of planned.takers) sequence.numAwaited--
      yield [planned, results[i]!]
    }
  }
}
