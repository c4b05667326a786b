/**
 * Copies of the states of turns from before a stop string. A state cannot be rewound, so one is taken at the end of the
 * prompt, and another where the text begins to look like a stop string: if it becomes one, the turn keeps the copy. Where
 * the token is on its way into the state already, it is taken where the text has ceased to look like one: what follows is
 * fed again. Most copies are never needed, so they stay in spare slots of the device while there are any.
 */
import { assert } from '../../errors.ts'
import type { Runner, StateData } from '../../model/runner.ts'
import type { LiveRequest, Sequence } from '../sequence.ts'
import type { SlotPool } from '../slots.ts'
import type { Read, StateTransfers } from '../state-transfers.ts'

/** A copy of a state: in a spare slot, else in memory. */
interface SpareCopy {
  slot: number | null
  state: StateData | null
  /** The copy is on its way to memory because its slot is needed. */
  read: Read | null
}

interface Checkpoint {
  /** Drawn tokens that the copied state has consumed. */
  readonly count: number
  readonly copy: SpareCopy
}

interface Watched {
  /** The first checkpoint, which always serves, and the latest one after it. */
  readonly checkpoints: Checkpoint[]
  /** Set while the first checkpoint is copied to memory because no slot was spare. */
  read: Read | null
  wasHolding: boolean
}

export class Checkpoints {
  readonly #runner: Runner
  readonly #slots: SlotPool
  readonly #transfers: StateTransfers
  readonly #watched = new Map<LiveRequest, Watched>()
  /** Copies in spare slots, oldest first. */
  readonly #spare = new Set<SpareCopy>()

  constructor(runner: Runner, slots: SlotPool, transfers: StateTransfers) {
    this.#runner = runner
    this.#slots = slots
    this.#transfers = transfers
  }

  /** Spare slots in use; they can be taken back. */
  get numSlots(): number {
    return this.#spare.size
  }

  /** How many of these slots will be free soon. */
  get numLeaving(): number {
    return [...this.#spare].filter(({ read }) => read !== null).length
  }

  /** After a draw of an answer that may end with a stop string. */
  drew(sequence: Sequence): void {
    const { owner, numDrawn, numFed, text } = sequence
    const watched = this.#watched.get(owner) ?? { checkpoints: [], read: null, wasHolding: false }
    this.#watched.set(owner, watched)
    const hasTurned = text.isHolding !== watched.wasHolding
    watched.wasHolding = text.isHolding
    if (numDrawn === 1) {
      this.#takeFirst(sequence, watched)
      return
    }
    const isAhead = numFed === numDrawn
    if (!hasTurned || text.isHolding === isAhead) return
    const slot = this.#slotOf(watched.checkpoints[1]) ?? this.#acquire()
    if (slot === null) return
    watched.checkpoints[1] = { count: numFed, copy: this.#copy(sequence.slot!, slot) }
  }

  /** The latest copy that has consumed no more than `count` of the drawn tokens. */
  before(owner: LiveRequest, count: number): Checkpoint {
    const { checkpoints } = this.#watched.get(owner) ?? { checkpoints: [] }
    const found = checkpoints.findLast((checkpoint) => checkpoint.count <= count)
    assert(found, 'a stop string was fed and no copy from before it was taken')
    return found
  }

  /** Gives the copy to the caller, with its slot where it has one. */
  claim(copy: SpareCopy): SpareCopy {
    copy.read?.cancel()
    this.#spare.delete(copy)
    return copy
  }

  /** The request is over: drops its copies, except those that were claimed. */
  drop(owner: LiveRequest): void {
    const watched = this.#watched.get(owner)
    if (watched === undefined) return
    this.#watched.delete(owner)
    watched.read?.cancel()
    for (const checkpoint of watched.checkpoints) {
      const slot = this.#slotOf(checkpoint)
      if (slot !== null) this.#slots.release(slot)
    }
  }

  /** Moves the oldest copies out of their slots. */
  giveUpSlots(count: number): void {
    const staying = [...this.#spare].filter(({ read }) => read === null)
    for (const copy of staying.slice(0, Math.max(0, count))) this.#leave(copy)
  }

  /**
   * Takes the copy at the end of the prompt, when nothing of the request is in flight. Without a spare slot the request
   * waits for it.
   */
  #takeFirst(sequence: Sequence, watched: Watched): void {
    const from = sequence.slot!
    const count = sequence.numFed
    const slot = this.#acquire()
    if (slot !== null) {
      watched.checkpoints[0] = { count, copy: this.#copy(from, slot) }
      return
    }
    sequence.isCopying = true
    watched.read = this.#transfers.read(from, {
      whole: (state) => {
        sequence.isCopying = false
        watched.checkpoints[0] = { count, copy: { slot: null, state, read: null } }
      },
    })
  }

  #acquire(): number | null {
    return this.#slots.numFree > 0 ? this.#slots.acquire() : null
  }

  #copy(from: number, slot: number): SpareCopy {
    this.#runner.copySlot(from, slot)
    const copy: SpareCopy = { slot, state: null, read: null }
    this.#spare.add(copy)
    return copy
  }

  #leave(copy: SpareCopy): void {
    const slot = copy.slot!
    copy.read = this.#transfers.read(slot, {
      whole: (state) => {
        this.#spare.delete(copy)
        copy.state = state
        copy.slot = null
        this.#slots.release(slot)
      },
    })
  }

  /** The spare slot of a copy that is not needed any more, if it still is in one; it is the caller's from here on. */
  #slotOf(checkpoint: Checkpoint | undefined): number | null {
    if (checkpoint === undefined || !this.#spare.has(checkpoint.copy)) return null
    return this.claim(checkpoint.copy).slot
  }
}
