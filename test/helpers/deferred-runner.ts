/**
 * Any runner, with flights that are late: nothing that is launched runs before its results are asked for, or before
 * something else is asked of the runner, which must see what the flight did. So a loop that looks at a draw too early,
 * or relies on a slot being as it was before a launch, fails in every test and not only on a GPU.
 */
import type {
  BatchRow,
  Flight,
  ModelInfo,
  RowResult,
  Runner,
  StateData,
} from '../../src/model/runner.ts'

/** A step that runs when somebody needs it. */
class LateFlight implements Flight {
  readonly #step: () => RowResult[]
  readonly #before: () => void
  #results: RowResult[] | null = null
  #looksLeft: number

  constructor(step: () => RowResult[], before: () => void, patience: number) {
    this.#step = step
    this.#before = before
    this.#looksLeft = patience
  }

  get isDone(): boolean {
    return this.#looksLeft-- <= 0
  }

  run(): RowResult[] {
    this.#results ??= this.#step()
    return this.#results
  }

  results(): RowResult[] {
    this.#before()
    return this.run()
  }
}

export class DeferredRunner implements Runner {
  readonly info: ModelInfo
  readonly maxFlights: number
  readonly feedsDraws: boolean
  readonly numSlots: number
  readonly maxTokens: number
  readonly maxLogits: number
  readonly maxSamples: number
  /** Most flights that were on their way at once. */
  deepest = 0
  /** How often a flight says that it is not done. */
  patience = 1
  readonly #runner: Runner
  /** Launched, and not asked for its results. */
  readonly #waiting: LateFlight[] = []

  constructor(runner: Runner, maxFlights = 2, feedsDraws = true) {
    const { info, numSlots, maxTokens, maxLogits, maxSamples } = runner
    this.info = info
    this.numSlots = numSlots
    this.maxTokens = maxTokens
    this.maxLogits = maxLogits
    this.maxSamples = maxSamples
    this.maxFlights = maxFlights
    this.feedsDraws = feedsDraws
    this.#runner = runner
  }

  launch(rows: readonly BatchRow[]): Flight {
    if (this.#waiting.length >= this.maxFlights) throw new Error('too many flights')
    if (!this.feedsDraws && rows.some(({ tokens }) => tokens[0]! < 0))
      throw new Error('a row feeds a draw')
    const copies = rows.map((row) => ({
      ...row,
      tokens: row.tokens.slice(),
      samples: row.samples.map((spec) => ({ ...spec })),
    }))
    const before = () => this.#end(flight)
    const flight = new LateFlight(() => this.#runner.step(copies), before, this.patience)
    this.#waiting.push(flight)
    this.deepest = Math.max(this.deepest, this.#waiting.length)
    return flight
  }

  step(rows: readonly BatchRow[]): RowResult[] {
    return this.launch(rows).results()
  }

  clearSlot(slot: number): void {
    this.#settled.clearSlot(slot)
  }

  copySlot(from: number, to: number): void {
    this.#settled.copySlot(from, to)
  }

  poisonSlot(slot: number): void {
    this.#settled.poisonSlot(slot)
  }

  resetPenalties(slot: number, promptTokens: Int32Array): void {
    this.#settled.resetPenalties(slot, promptTokens)
  }

  readState(slot: number): StateData {
    return this.#settled.readState(slot)
  }

  readLayers(slot: number, from: number, to: number, into: StateData): void {
    this.#settled.readLayers(slot, from, to, into)
  }

  writeState(slot: number, state: StateData): void {
    this.#settled.writeState(slot, state)
  }

  writeLayers(slot: number, from: number, to: number, state: StateData): void {
    this.#settled.writeLayers(slot, from, to, state)
  }

  dispose(): void {
    this.#runner.dispose()
  }

  /** The runner, once everything launched has run. */
  get #settled(): Runner {
    for (const flight of this.#waiting) flight.run()
    return this.#runner
  }

  /** Runs what was launched before a flight; it and they are over. */
  #end(flight: LateFlight): void {
    if (!this.#waiting.includes(flight)) return
    for (let next = this.#waiting.shift(); next !== flight; next = this.#waiting.shift())
      next!.run()
  }
}
