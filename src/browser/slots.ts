/** Assigns the slots of a runner. Half of them are for states, and each has a spare for a copy of its state. */
import { SkeinError } from '../errors.ts'
import type { Runner } from '../model/runner.ts'

export class Slots {
  readonly #runner: Runner
  readonly #numStates: number
  readonly #free: number[]

  /** The runner must have twice as many slots as there may be states. */
  constructor(runner: Runner) {
    this.#runner = runner
    this.#numStates = runner.numSlots / 2
    this.#free = Array.from({ length: this.#numStates }, (_, i) => i)
  }

  /** Returns a slot with the zero state. */
  take(): number {
    const slot = this.#free.shift()
    if (slot === undefined)
      throw new SkeinError('queue_full', `all ${this.#numStates} states are in use: close one, or load with more slots`)
    this.#runner.clearSlot(slot)
    return slot
  }

  give(slot: number): void {
    this.#free.push(slot)
  }

  spareOf(slot: number): number {
    return slot + this.#numStates
  }
}
