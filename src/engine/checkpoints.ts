/**
 * Copies of the states of turns from before a stop string. A state cannot be rewound, so one is taken at the end of the
 * prompt, and another where the text begins to look like a stop string: if it becomes one, the turn keeps the copy. Where
 * the token is on its way into the state already, it is taken where the text has ceased to look like one: what follows is
 * fed again. Knows nothing of sessions.
 */
import { assert } from '../errors.ts'
import type { LiveRequest, Sequence } from './sequence.ts'
import type { StateCopies, StateCopy, TakenState } from './state-copies.ts'

export interface Checkpoint {
  /** Drawn tokens that it has consumed. */
  readonly count: number
  readonly taken: TakenState
}

interface Watched {
  readonly sequence: Sequence
  /** The first, which always serves; of the later ones the last. */
  readonly checkpoints: Checkpoint[]
  wasHolding: boolean
}

export class Checkpoints {
  readonly #copies: StateCopies
  readonly #watched = new Map<LiveRequest, Watched>()
  /** Held until their first copy is taken; what has been read of it where no slot is spare. */
  readonly #owed = new Map<Sequence, StateCopy | null>()

  constructor(copies: StateCopies) {
    this.#copies = copies
  }

  /** After a draw of an answer that may end with a stop string. */
  drew(sequence: Sequence): void {
    const { owner, numDrawn, numFed, text } = sequence
    const watched = this.#watched.get(owner) ?? { sequence, checkpoints: [], wasHolding: false }
    this.#watched.set(owner, watched)
    const hasTurned = text.isHolding !== watched.wasHolding
    watched.wasHolding = text.isHolding
    if (numDrawn === 1) {
      this.#owe(sequence)
      return
    }
    const isAhead = numFed === numDrawn
    if (!hasTurned || text.isHolding === isAhead || !this.#copies.canTakeNow) return
    const replaced = watched.checkpoints[1]
    if (replaced !== undefined) this.#copies.letGo(replaced.taken)
    watched.checkpoints[1] = { count: numFed, taken: this.#copies.takeToStay(sequence.slot!) }
  }

  /** Takes what sequences are held for, as far as the step's time goes; where nobody else runs, to the end. */
  takeOwed(isAlone: boolean): void {
    for (const sequence of this.#owed.keys()) {
      const taken = this.#takeFirst(sequence, isAlone)
      if (taken === null) return
      this.#owed.delete(sequence)
      sequence.isHeld = false
      this.#watched.get(sequence.owner)!.checkpoints[0] = { count: sequence.numFed, taken }
    }
  }

  /** The latest copy that has consumed no more than `count` of the drawn tokens. */
  before(owner: LiveRequest, count: number): Checkpoint {
    const { checkpoints } = this.#watched.get(owner) ?? { checkpoints: [] }
    const found = checkpoints.findLast((checkpoint) => checkpoint.count <= count)
    assert(found, 'a stop string was fed and no copy from before it was taken')
    return found
  }

  /** The request is over. */
  drop(owner: LiveRequest): void {
    const watched = this.#watched.get(owner)
    if (watched === undefined) return
    this.#watched.delete(owner)
    this.#owed.delete(watched.sequence)
    for (const { taken } of watched.checkpoints) this.#copies.letGo(taken)
  }

  /** Nothing of it is on its way: the end of a prompt is looked at before more is fed. */
  #owe(sequence: Sequence): void {
    sequence.isHeld = true
    this.#owed.set(sequence, null)
    if (this.#copies.canTakeNow) this.takeOwed(false)
  }

  #takeFirst(sequence: Sequence, isAlone: boolean): TakenState | null {
    const { budget } = this.#copies
    const slot = sequence.slot!
    let copy = this.#owed.get(sequence) ?? null
    if (copy === null && this.#copies.canTake) {
      return isAlone || this.#copies.canTakeNow ? this.#copies.takeToStay(slot) : null
    }
    copy ??= this.#copies.copyOf(slot)
    this.#owed.set(sequence, copy)
    for (;;) {
      if (!isAlone && !budget.allows(copy.next)) return null
      const reading = copy
      const arrays = budget.spend(copy.next, () => reading.readSome())
      if (arrays !== null) return { arrays }
    }
  }
}
