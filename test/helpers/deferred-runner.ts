/**
 * Wraps any runner and delays its flights: a launched step runs only when its results are requested, or when another
 * call on the runner must see its effect. So a loop that reads a draw too early, or relies on a slot's content before a
 * launch, fails in every test and not only on a GPU. States are delayed as well, arrive in another order than
 * requested, and cannot be waited for.
 */
import type { BatchRow, Flight, GuessCosts, ModelInfo, RowResult, Runner, StateData } from '../../src/model/runner.ts'

/** State flights at once. */
const MAX_MOVES = 2
/** A state flight is done after fewer than this many polls. */
const MAX_LOOKS = 7

interface Move {
  readonly slot: number
  readonly kind: 'read' | 'write'
}

/** A step that runs when its result is needed. */
class LateFlight implements Flight<RowResult[]> {
  readonly #runner: Runner
  readonly #rows: readonly BatchRow[]
  readonly #before: () => void
  #flight: Flight<RowResult[]> | null = null
  /** Masks that have arrived, for the draws when the step runs. */
  #masks: readonly (Uint32Array | null)[] | null = null
  /** Its draws are late. */
  isUndrawn: boolean
  #looksLeft: number

  constructor(runner: Runner, rows: readonly BatchRow[], before: () => void, patience: number) {
    this.#runner = runner
    this.#rows = rows
    this.#before = before
    this.#looksLeft = patience
    this.isUndrawn = rows.some(({ drawsLater }) => drawsLater === true)
  }

  get isDone(): boolean {
    return !this.isUndrawn && this.#looksLeft-- <= 0
  }

  get isComputed(): boolean {
    return this.#looksLeft-- <= 0
  }

  drawLater(masks: readonly (Uint32Array | null)[]): void {
    if (!this.isUndrawn) throw new Error('no draws are left')
    this.isUndrawn = false
    const copies = masks.map((mask) => mask?.slice() ?? null)
    if (this.#flight === null) this.#masks = copies
    else this.#runner.drawLater(copies)
  }

  /** Calls so far. */
  run(): void {
    this.#flight ??= this.#runner.launch(this.#rows)
    if (this.#masks !== null) this.#runner.drawLater(this.#masks)
    this.#masks = null
  }

  result(): RowResult[] {
    if (this.isUndrawn) throw new Error('a step asked for its results before its draws')
    this.#before()
    this.run()
    return this.#flight!.result()
  }
}

export class DeferredRunner implements Runner {
  readonly info: ModelInfo
  readonly maxFlights: number
  readonly feedsDraws: boolean
  readonly numSlots: number
  readonly numPlaces: number
  readonly maxTokens: number
  readonly maxLogits: number
  readonly maxSamples: number
  readonly numSpares: number
  readonly numKept: number
  readonly keptRow: number
  readonly guessCosts: GuessCosts
  readonly drawsLater: boolean
  /** The most flights at once. */
  deepest = 0
  /** How often a flight reports that it is not done. */
  patience = 1
  readonly #runner: Runner
  readonly #moves = new Set<Move>()
  #numMoves = 0
  /** Launched, with results not yet requested. */
  readonly #waiting: LateFlight[] = []

  constructor(runner: Runner, maxFlights = 2, feedsDraws = true) {
    const { info, numSlots, numPlaces, maxTokens, maxLogits, maxSamples, numSpares } = runner
    this.info = info
    this.numSlots = numSlots
    this.numPlaces = numPlaces
    this.maxTokens = maxTokens
    this.maxLogits = maxLogits
    this.maxSamples = maxSamples
    this.numSpares = numSpares
    this.numKept = runner.numKept
    this.keptRow = runner.keptRow
    this.guessCosts = runner.guessCosts
    this.maxFlights = maxFlights
    this.feedsDraws = feedsDraws
    this.drawsLater = feedsDraws && runner.drawsLater
    this.#runner = runner
  }

  launch(rows: readonly BatchRow[]): Flight<RowResult[]> {
    if (this.#waiting.length >= this.maxFlights) throw new Error('too many flights')
    if (this.#waiting.at(-1)?.isUndrawn) throw new Error('a launch before the draws of the last')
    if (!this.feedsDraws && rows.some(({ tokens }) => tokens[0]! < 0)) throw new Error('a row feeds a draw')
    const others = rows.flatMap(({ blend }) => blend?.others ?? [])
    this.#refuseWritten([...rows, ...others].map(({ slot }) => slot))
    const copies = rows.map((row) => ({
      ...row,
      tokens: row.tokens.slice(),
      samples: row.samples.map((spec) => ({ ...spec })),
    }))
    const before = () => this.#end(flight)
    const flight = new LateFlight(this.#runner, copies, before, this.patience)
    this.#waiting.push(flight)
    this.deepest = Math.max(this.deepest, this.#waiting.length)
    return flight
  }

  drawLater(masks: readonly (Uint32Array | null)[]): void {
    const last = this.#waiting.at(-1)
    if (last === undefined) throw new Error('draws of a step that is over')
    last.drawLater(masks)
  }

  get waitsForDraws(): boolean {
    return this.#waiting.at(-1)?.isComputed === true
  }

  keptEvery(tokens: number): number {
    return this.#runner.keptEvery(tokens)
  }

  stepSize(tokens: number): number {
    return this.#runner.stepSize(tokens)
  }

  step(rows: readonly BatchRow[]): RowResult[] {
    return this.launch(rows).result()
  }

  clearSlot(slot: number): void {
    this.#settledFor(slot).clearSlot(slot)
  }

  copySlot(from: number, to: number): void {
    this.#settledFor(from, to).copySlot(from, to)
  }

  rewindSlot(slot: number, spare: number): void {
    this.#settledFor(slot).rewindSlot(slot, spare)
  }

  poisonSlot(slot: number): void {
    this.#settledFor(slot).poisonSlot(slot)
  }

  resetPenalties(place: number, promptTokens: Int32Array): void {
    this.#settled.resetPenalties(place, promptTokens)
  }

  get canMove(): boolean {
    return this.#moves.size < MAX_MOVES
  }

  /** The state as it is now, returned late. Until then the target memory has useless content. */
  readState(slot: number, into?: StateData): Flight<StateData> {
    const now = into?.map((array) => array.slice())
    const state = this.#settledFor(slot).readState(slot, now).result()
    if (into === undefined) return this.#move(slot, 'read', () => state)
    for (const array of into) array.fill(Number.NaN)
    return this.#move(slot, 'read', () => {
      for (const [i, array] of into.entries()) array.set(state[i]!)
      return into
    })
  }

  /** Until it arrives, the slot holds a state that makes every use fail. */
  writeState(slot: number, state: StateData): Flight<void> {
    const runner = this.#settledFor(slot)
    const given = state.map((array) => array.slice())
    const { numSlots } = this
    runner.poisonSlot(slot)
    return this.#move(slot, 'write', () => {
      const isSame = state.every((array, i) => array.every((value, j) => value === given[i]![j]))
      if (!isSame) throw new Error('a state was changed while it was on its way into a slot')
      if (slot >= numSlots) throw new Error(`no slot ${slot}`)
      this.#settled.writeState(slot, state).result()
    })
  }

  /** State flights end in any order, each after some polls, and cannot be waited for. */
  #move<T>(slot: number, kind: Move['kind'], land: () => T): Flight<T> {
    if (!this.canMove) throw new Error('too many states on their way')
    const move: Move = { slot, kind }
    this.#moves.add(move)
    this.#numMoves++
    let looksLeft = this.patience === 0 ? 0 : (this.#numMoves * 7919) % MAX_LOOKS
    let outcome: { readonly value: T } | null = null
    return {
      get isDone() {
        looksLeft--
        return looksLeft < 0
      },
      result: () => {
        if (looksLeft >= 0) throw new Error('a state was asked for before it had arrived')
        if (outcome === null) {
          this.#moves.delete(move)
          outcome = { value: land() }
        }
        return outcome.value
      },
    }
  }

  dispose(): void {
    this.#runner.dispose()
  }

  /** The same; no call may name a slot into which a state is in flight. */
  #settledFor(...slots: readonly number[]): Runner {
    this.#refuseWritten(slots)
    return this.#settled
  }

  #refuseWritten(slots: readonly number[]): void {
    for (const { slot, kind } of this.#moves)
      if (kind === 'write' && slots.includes(slot))
        throw new Error(`slot ${slot} was named while a state is on its way into it`)
  }

  /** The runner, once everything launched has run. */
  get #settled(): Runner {
    for (const flight of this.#waiting) flight.run()
    return this.#runner
  }

  /** Runs everything up to and including a flight. */
  #end(flight: LateFlight): void {
    if (!this.#waiting.includes(flight)) return
    for (let next = this.#waiting.shift(); next !== flight; next = this.#waiting.shift()) next!.run()
  }
}
