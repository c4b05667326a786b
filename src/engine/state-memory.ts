/**
 * Memory of states that were dropped, for the next copy. Fresh memory of many megabytes is three times as slow to read into,
 * since every page of it faults, and giving it back wakes the garbage collector in the middle of a step.
 */
import type { ModelInfo, StateData } from '../model/runner.ts'

/** States; copies are made one or two at a time. */
const MAX_KEPT = 2

export class StateMemory {
  readonly #shiftLength: number
  readonly #wkvLength: number
  readonly #free: StateData[] = []
  /** Dropped, and perhaps still on their way into a slot. */
  #dropped: StateData[] = []

  constructor({ stateShape: { layers, channels, heads, headSize } }: ModelInfo) {
    this.#shiftLength = layers * 2 * channels
    this.#wkvLength = layers * heads * headSize ** 2
  }

  /** Arrays for a state, with any numbers in them. */
  take(): StateData {
    return (
      this.#free.pop() ?? {
        shift: new Float32Array(this.#shiftLength),
        wkv: new Float32Array(this.#wkvLength),
      }
    )
  }

  get hasFree(): boolean {
    return this.#free.length > 0
  }

  /** Nobody will begin to read these any more. */
  drop(state: StateData): void {
    if (this.#free.length + this.#dropped.length >= MAX_KEPT) return
    const isOwn = (array: Float32Array) => array.byteLength === array.buffer.byteLength
    const isOfModel =
      state.shift.length === this.#shiftLength && state.wkv.length === this.#wkvLength
    // One from the store is a view of its file.
    if (isOfModel && isOwn(state.shift) && isOwn(state.wkv)) this.#dropped.push(state)
  }

  /** No state is on its way into a slot: what was dropped can be had. */
  settle(): void {
    this.#free.push(...this.#dropped)
    this.#dropped = []
  }
}
