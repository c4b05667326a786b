/**
 * Which slots are free. What an acquired one holds is nobody's business until it has been cleared or a kept state was put
 * there (scheduler.ts), never "as it was". In tests and with SKEIN_DEBUG a freed one is poisoned, so that a use
 * after free, or before its fill is over, shows in the first logits. Knows nothing of requests.
 */
import { assert } from '../errors.ts'
import type { Runner } from '../model/runner.ts'

/** Places for the penalty counts of answers: which are free. */
export class Places {
  readonly #free: number[]

  constructor(count: number) {
    this.#free = Array.from({ length: count }, (_, i) => count - 1 - i)
  }

  get numFree(): number {
    return this.#free.length
  }

  acquire(): number {
    const place = this.#free.pop()
    assert(place !== undefined, 'more answers than places for their penalty counts')
    return place
  }

  release(place: number): void {
    this.#free.push(place)
  }
}

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

  acquire(): number {
    const slot = this.#free.pop()
    assert(slot !== undefined, 'a slot was acquired when none is free')
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
