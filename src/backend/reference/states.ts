/** Recurrent states and penalty counts of the reference backend: one map of arrays per slot. */
import { assert } from '../../errors.ts'
import type { Flight, PenaltyPool, StateData, StatePool, StateShape } from '../backend.ts'
import { doneFlight } from '../flight.ts'
import { arraysOf, checkState, createState, stateBytesOf } from '../state-shape.ts'

export class RefStatePool implements StatePool {
  readonly shape: StateShape
  readonly numSlots: number
  readonly bytesPerSlot: number
  readonly canMove = true
  /** Of each slot its arrays by name: [layers, …shape] f64. */
  readonly #slots: readonly ReadonlyMap<string, Float64Array>[]

  constructor(shape: StateShape, numSlots: number) {
    this.shape = shape
    this.numSlots = numSlots
    this.bytesPerSlot = 2 * stateBytesOf(shape)
    this.#slots = Array.from(
      { length: numSlots },
      () => new Map(arraysOf(shape).map(({ name, size }) => [name, new Float64Array(shape.layers * size)])),
    )
  }

  /** One array of a slot, where kernels work on it. */
  array(slot: number, name: string): Float64Array {
    const array = this.#state(slot).get(name)
    assert(array, `a state has no array ${name}`)
    return array
  }

  clear(slot: number): void {
    for (const array of this.#state(slot).values()) array.fill(0)
  }

  poison(slot: number): void {
    for (const array of this.#state(slot).values()) array.fill(Number.NaN)
  }

  copy(from: number, to: number): void {
    const source = this.#state(from)
    for (const [name, array] of this.#state(to)) array.set(source.get(name)!)
  }

  read(slot: number, into = createState(this.shape)): Flight<StateData> {
    checkState(this.shape, into)
    for (const [i, array] of [...this.#state(slot).values()].entries()) into[i]!.set(array)
    return doneFlight(into)
  }

  write(slot: number, state: StateData): Flight<void> {
    checkState(this.shape, state)
    for (const [i, array] of [...this.#state(slot).values()].entries()) array.set(state[i]!)
    return doneFlight(undefined)
  }

  #state(slot: number): ReadonlyMap<string, Float64Array> {
    const state = this.#slots[slot]
    assert(state, `slot ${slot} of ${this.numSlots}`)
    return state
  }
}

export interface Seen {
  readonly prompt: Set<number>
  /** Decayed count of each generated token; a token stays here however small its count. */
  readonly counts: Map<number, number>
}

export class RefPenaltyPool implements PenaltyPool {
  readonly numSlots: number
  readonly #slots: Seen[]

  constructor(numSlots: number) {
    this.numSlots = numSlots
    this.#slots = Array.from({ length: numSlots }, () => ({ prompt: new Set(), counts: new Map() }))
  }

  seen(slot: number): Seen {
    const seen = this.#slots[slot]
    assert(seen, `slot ${slot} of ${this.numSlots}`)
    return seen
  }

  reset(slot: number, promptTokens: Int32Array): void {
    const { prompt, counts } = this.seen(slot)
    prompt.clear()
    counts.clear()
    for (const token of promptTokens) prompt.add(token)
  }
}
