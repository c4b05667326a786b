/**
 * Copies of states out of slots, a few layers at a time, so that one of many megabytes does not hold up a step. A state
 * whose sequence goes on is first copied into a spare slot, which is quick, and read from there. It knows neither
 * requests nor what a copy is for.
 */
import { assert } from '../errors.ts'
import type { Runner, StateData } from '../model/runner.ts'
import type { CopyBudget, CopyKind } from './copy-budget.ts'
import { layersOf } from './slot-fills.ts'
import type { SlotPool } from './slots.ts'
import { StateMemory } from './state-memory.ts'

/** A copy on its way; nobody may write the slot until it is whole. */
export interface StateCopy {
  /** What its next piece is: memory for it, or a part of the state. */
  readonly next: 'begin' | 'read'
  /** Reads the next piece. The copy, once it is whole. */
  readSome(): StateData | null
}

/** The state of a slot as it was at one moment: in a spare slot, then in memory. */
export interface TakenState {
  /** Null until the copy is whole. */
  readonly arrays: StateData | null
}

/** With fewer slots free than these, copies do not stay in any. */
const MIN_SPARE = 2

/** Counts the time of a piece. */
export type Spend = (kind: CopyKind, copy: () => void) => void

interface Taken extends TakenState {
  /** It may stay in its slot as long as others are spare. */
  readonly mayStay: boolean
  arrays: StateData | null
  slot: number | null
  readonly copy: StateCopy
  readonly spend: Spend
  readonly onWhole: (arrays: StateData) => void
}

export class StateCopies {
  readonly budget: CopyBudget
  /** Of a state, read or written at a time. */
  readonly layersAtOnce: number
  readonly memory: StateMemory
  readonly #runner: Runner
  readonly #slots: SlotPool
  readonly #spend: Spend = (kind, copy) => this.budget.spend(kind, copy)
  /** Those in spare slots, in order of age. */
  readonly #taken = new Set<Taken>()

  constructor(runner: Runner, slots: SlotPool, budget: CopyBudget, pieceBytes: number) {
    this.budget = budget
    this.#runner = runner
    this.#slots = slots
    this.memory = new StateMemory(runner.info)
    this.layersAtOnce = layersOf(runner.info, pieceBytes)
  }

  /** Spare slots that are being read: they will be free. */
  get numTaken(): number {
    return this.#taken.size
  }

  /** A state is one piece. */
  get #isSmall(): boolean {
    return this.layersAtOnce === this.#runner.info.stateShape.layers
  }

  /** A copy of a state that stays in its slot until it is whole. */
  copyOf(slot: number): StateCopy {
    const runner = this.#runner
    if (this.#isSmall) return { next: 'read', readSome: () => runner.readState(slot) }
    const { layers } = runner.info.stateShape
    const { layersAtOnce, memory } = this
    let arrays: StateData | null = null
    let numRead = 0
    return {
      get next() {
        return arrays === null && !memory.hasFree ? 'begin' : 'read'
      },
      readSome() {
        if (arrays === null) {
          const isQuick = memory.hasFree
          arrays = memory.take()
          // A piece by itself: fresh memory takes as long as several, since it is when that of earlier copies is given back.
          if (!isQuick) return null
        }
        const end = Math.min(layers, numRead + layersAtOnce)
        runner.readLayers(slot, numRead, end, arrays)
        numRead = end
        return numRead === layers ? arrays : null
      },
    }
  }

  /** The state of a slot that goes on to be used can be copied without reading all of it at once. */
  get canTake(): boolean {
    return this.#isSmall || this.#slots.numFree > 0
  }

  /** Likewise, and this step has the time. */
  get canTakeNow(): boolean {
    return this.canTake && this.budget.allows(this.#isSmall ? 'read' : 'slot')
  }

  /**
   * The state of a slot as it is now. `onWhole` is called when the copy is: at once where the state is small, else in a
   * later step, and never if it is let go of before.
   */
  take(
    from: number,
    onWhole: (arrays: StateData) => void,
    spend: Spend = this.#spend,
    mayStay = false,
  ): TakenState {
    if (this.#isSmall) return this.#takeSmall(from, onWhole, spend)
    const slot = this.#slots.acquire()
    spend('slot', () => this.#runner.copySlot(from, slot))
    return this.#add(slot, onWhole, spend, mayStay)
  }

  /** Likewise, of which most are let go of before they are needed: it is read only when its slot is. */
  takeToStay(from: number): TakenState {
    return this.take(from, () => {}, this.#spend, true)
  }

  /** A slot's state can be kept without a copy into a spare one: nothing is done at once, or this step has the time. */
  get canTakeOverNow(): boolean {
    return !this.#isSmall || this.budget.allows('read')
  }

  /** Likewise of a slot that its owner gives up: it is free when the copy is whole. */
  takeOver(
    slot: number,
    onWhole: (arrays: StateData) => void,
    spend: Spend = this.#spend,
  ): TakenState {
    if (!this.#isSmall) return this.#add(slot, onWhole, spend, false)
    const taken = this.#takeSmall(slot, onWhole, spend)
    this.#slots.release(slot)
    return taken
  }

  #takeSmall(slot: number, onWhole: (arrays: StateData) => void, spend: Spend): TakenState {
    let arrays: StateData | null = null
    spend('read', () => {
      arrays = this.#runner.readState(slot)
    })
    onWhole(arrays!)
    return { arrays }
  }

  #add(
    slot: number,
    onWhole: (arrays: StateData) => void,
    spend: Spend,
    mayStay: boolean,
  ): TakenState {
    const taken = { arrays: null, slot, copy: this.copyOf(slot), spend, onWhole, mayStay }
    this.#taken.add(taken)
    return taken
  }

  /** It is not needed any more. */
  letGo(taken: TakenState): void {
    const slot = this.claimSlot(taken)
    if (slot !== null) this.#slots.release(slot)
  }

  /** The spare slot with the state, the caller's from here on; null when it is in memory or was let go of. */
  claimSlot(state: TakenState): number | null {
    const taken = state as Taken
    if (!this.#taken.delete(taken)) return null
    const { slot } = taken
    taken.slot = null
    return slot
  }

  /** A spare slot is to be read now, whether or not somebody waits for it. */
  get isNextDue(): boolean {
    const isScarce = this.#slots.numFree < MIN_SPARE
    return this.#taken.size > 0 && (isScarce || !this.#next.mayStay)
  }

  /** The oldest that cannot stay, or else the oldest. */
  get #next(): Taken {
    const [oldest] = this.#taken
    assert(oldest, 'no spare slot is being read')
    for (const taken of this.#taken) if (!taken.mayStay) return taken
    return oldest
  }

  /** Goes on with the next one, as far as the step's time goes; true when that has freed a slot. */
  readNext(): boolean {
    const taken = this.#next
    while (taken.arrays === null) {
      const { next } = taken.copy
      if (!this.budget.allows(next)) return false
      taken.spend(next, () => {
        taken.arrays = taken.copy.readSome()
      })
    }
    this.letGo(taken)
    taken.onWhole(taken.arrays)
    return true
  }
}
