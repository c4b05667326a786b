/** Recurrent states and penalty counts of the reference backend: one plain object per slot. */
import { assert } from '../../errors.ts'
import type { PenaltyPool, StateData, StatePool, StateShape } from '../backend.ts'

export interface RefState {
  /** [L, 2, C] */
  readonly shift: Float64Array
  /** [L, H, N, N], row = value channel, column = key channel */
  readonly wkv: Float64Array
}

export class RefStatePool implements StatePool {
  readonly shape: StateShape
  readonly numSlots: number
  readonly bytesPerSlot: number
  readonly #slots: RefState[]

  constructor(shape: StateShape, numSlots: number) {
    this.shape = shape
    this.numSlots = numSlots
    const { layers, channels, heads, headSize } = shape
    const shiftSize = layers * 2 * channels
    const wkvSize = layers * heads * headSize * headSize
    this.bytesPerSlot = 8 * (shiftSize + wkvSize)
    this.#slots = Array.from({ length: numSlots }, () => ({
      shift: new Float64Array(shiftSize),
      wkv: new Float64Array(wkvSize),
    }))
  }

  state(slot: number): RefState {
    const state = this.#slots[slot]
    assert(state, `slot ${slot} of ${this.numSlots}`)
    return state
  }

  clear(slot: number): void {
    this.#fill(slot, 0)
  }

  poison(slot: number): void {
    this.#fill(slot, Number.NaN)
  }

  copy(from: number, to: number): void {
    const source = this.state(from)
    const target = this.state(to)
    target.shift.set(source.shift)
    target.wkv.set(source.wkv)
  }

  read(slot: number): StateData {
    const { shift, wkv } = this.state(slot)
    return { shift: Float32Array.from(shift), wkv: Float32Array.from(wkv) }
  }

  readLayers(slot: number, from: number, to: number, into: StateData): void {
    const state = this.state(slot)
    assert(0 <= from && from <= to && to <= this.shape.layers, `layers ${from} to ${to}`)
    for (const kind of ['shift', 'wkv'] as const) {
      const layer = state[kind].length / this.shape.layers
      into[kind].set(state[kind].subarray(from * layer, to * layer), from * layer)
    }
  }

  write(slot: number, data: StateData): void {
    this.writeLayers(slot, 0, this.shape.layers, data)
  }

  writeLayers(slot: number, from: number, to: number, data: StateData): void {
    const state = this.state(slot)
    assert(0 <= from && from <= to && to <= this.shape.layers, `layers ${from} to ${to}`)
    for (const kind of ['shift', 'wkv'] as const) {
      const { length } = state[kind]
      assert(data[kind].length === length, 'state data of another shape')
      const layer = length / this.shape.layers
      state[kind].set(data[kind].subarray(from * layer, to * layer), from * layer)
    }
  }

  #fill(slot: number, value: number): void {
    const { shift, wkv } = this.state(slot)
    shift.fill(value)
    wkv.fill(value)
  }
}

/** What one slot's sampler has seen. */
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
