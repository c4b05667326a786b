/**
 * Which slots are free. A slot is acquired as the zero state or filled from a kept one, never "as it was", and in debug
 * builds a freed one is poisoned so that a use after free shows in the first logits. Knows nothing of requests.
 */
import { assert } from '../errors.ts'
import type { Runner } from '../model/runner.ts'

export class SlotPool {
  readonly numSlots: number
  readonly #runner: Runner
  readonly #poisonsFreed: boolean
  readonly #free: number[] = []
  readonly #isFree: boolean[] = []

  constructor(runner: Runner, numSlots: number, poisonsFreed: boolean) {
    this.#runner = runner
    this.numSlots = numSlots
    this.#poisonsFreed = poisonsFreed
    for (let slot = numSlots - 1; slot >= 0; slot--) {
      this.#isFree[slot] = false
      this.release(slot)
    }
  }

  get numFree(): number {
    return this.#free.length
  }

  /** A slot holding the state before any token. */
  acquireZero(): number {
    return this.acquire((slot) => this.#runner.clearSlot(slot))
  }

  /** A slot that `fill` writes as a whole. If it throws the slot is still free. */
  acquire(fill: (slot: number) => void): number {
    const slot = this.#free.at(-1)
    assert(slot !== undefined, 'a slot was acquired when none is free')
    fill(slot)
    this.#free.pop()
    this.#isFree[slot] = false
    return slot
  }

  release(slot: number): void {
    assert(this.#isFree[slot] === false, `slot ${slot} was freed twice or is not of this pool`)
    if (this.#poisonsFreed) this.#runner.poisonSlot(slot)
    this.#free.push(slot)
    this.#isFree[slot] = true
  }
}
