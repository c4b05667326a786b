/** Who has which slot of a runner. Half of them are for states; each has a spare for a copy of itself. */
import { SkeinError } from '../errors.ts'
import type { Runner } from '../model/runner.ts'

export class Slots {
  readonly #runner: Runner
  readonly #numStates: number
  readonly #free: number[]

  /** The runner has twice as many slots as there may be states. */
  constructor(runner: Runner) {
    this.#runner = runner
    this.#numStates = runner.numSlots / 2
    this.#free = Array.from({ length: this.#numStates }, (_, i) => i)
  }

  /** As the state before any token. */
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
