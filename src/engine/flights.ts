/**
 * Steps on their way: which rows each one has, oldest first. It marks what is awaited, so that the next step can be
 * planned before this one is looked at. What results mean is engine.ts.
 */
import { assert } from '../errors.ts'
import type { Flight, RowResult, Runner } from '../model/runner.ts'
import type { PlannedRow } from './scheduler.ts'
import type { Sequence } from './sequence.ts'

interface Launched {
  readonly plan: PlannedRow[]
  readonly flight: Flight<RowResult[]>
  /** When its launch began. */
  readonly time: number
}

/** Told of each step how many milliseconds it took, after the one before. */
type StepTimes = (plan: readonly PlannedRow[], ms: number) => void

/** No row feeds its draws. */
const NO_FLIGHT = 0

/** Flights whose durations say how long the next one takes at least. */
const REMEMBERED = 8

export class Flights {
  readonly #runner: Runner
  readonly #onStep: StepTimes
  readonly #launched: Launched[] = []
  #last = 0
  /** Where in the plan of the last one the rows are whose draws are left. */
  #undrawn: readonly number[] = []
  /** Milliseconds that the last few took, each after the one before. */
  readonly #durations: number[] = []
  #landedAt = 0

  /** `onStep` is told how long each step took that followed another, or began with nothing on its way. */
  constructor(runner: Runner, onStep: StepTimes = () => {}) {
    this.#runner = runner
    this.#onStep = onStep
  }

  get count(): number {
    return this.#launched.length
  }

  get hasRoom(): boolean {
    return this.count < this.#runner.maxFlights
  }

  /** Number of the last one launched; its draws can be fed by the next. */
  get last(): number {
    return this.#last
  }

  /** The oldest can be landed without waiting. */
  get isOldestDone(): boolean {
    return this.#launched[0]?.flight.isDone === true
  }

  /** Milliseconds for which the oldest is not over yet, if it takes as long as the shortest of the last few. */
  get restMs(): number {
    const [oldest] = this.#launched
    if (oldest === undefined || this.#durations.length === 0) return 0
    if (this.#undrawn.length > 0 && this.count === 1) return 0
    const begin = Math.max(this.#landedAt, oldest.time)
    return Math.max(0, begin + Math.min(...this.#durations) - performance.now())
  }

  launch(plan: readonly PlannedRow[]): void {
    const time = performance.now()
    const flight = this.#runner.launch(plan.map(({ row }) => row))
    this.#last++
    let draw = 0
    for (const { owner, row, takers, numPrompt } of plan) {
      if (numPrompt > 0) owner.sent(numPrompt)
      // How many draws after guesses there are, and so what comes next, is known when they have landed.
      const flight = row.guesses === undefined ? this.#last : NO_FLIGHT
      for (const [i, sequence] of takers.entries()) sequence.awaits(flight, draw + i)
      draw += row.samples.length
    }
    this.#launched.push({ plan: [...plan], flight, time })
    this.#undrawn = [...plan.keys()].filter((at) => plan[at]!.row.drawsLater === true)
  }

  /**
   * Makes the draws that are left of the last one, once their masks have come; those whose masks are late are left to a later
   * step where `othersWait`, and the device does. True: none are left.
   */
  drawLater(othersWait: (late: ReadonlySet<Sequence>) => boolean): boolean {
    if (this.#undrawn.length === 0) return true
    // What they feed is not known.
    if (this.count > 1) return false
    const { plan } = this.#launched[0]!
    const takers = this.#undrawn.map((at) => plan[at]!.takers[0]!)
    const late = new Set(takers.filter(({ lacksMask }) => lacksMask))
    if (late.size > 0 && !(this.#runner.waitsForDraws && othersWait(late))) return false
    this.#runner.drawLater(
      takers.map((one) => (late.has(one) ? null : (one.matcher?.mask ?? null))),
    )
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

  /** The rows of the oldest and their results, one after another; waits for it. A row is awaited until its turn. */
  *land(): Generator<[PlannedRow, RowResult]> {
    const oldest = this.#launched.shift()
    assert(oldest !== undefined, 'nothing is on its way')
    const { plan, flight, time } = oldest
    const results = flight.result()
    const now = performance.now()
    const duration = now - Math.max(this.#landedAt, time)
    this.#onStep(plan, duration)
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
