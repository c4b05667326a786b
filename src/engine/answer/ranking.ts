/** Scores prompts: it reads the state out of the slot, frees the slot, and gives the state to the reranker. */
import { assert } from '../../errors.ts'
import type { StateData } from '../../model/runner.ts'
import type { Sequence } from '../sequence.ts'
import type { StateTransfers } from '../state-transfers.ts'

/** Scores states of one model, the engine's own. */
export interface Reranker {
  score(state: StateData): number
}

export class Ranking {
  readonly #transfers: StateTransfers
  readonly #reranker: Reranker

  constructor(transfers: StateTransfers, reranker: Reranker) {
    this.#transfers = transfers
    this.#reranker = reranker
  }

  /** Takes over the slot of a sequence whose prompt has been read. It calls `isWanted` when the state has arrived. */
  rank(sequence: Sequence, isWanted: () => boolean, done: (score: number) => void): void {
    const { slot } = sequence
    assert(slot !== null, 'a prompt was read without a slot')
    sequence.slot = null
    this.#transfers.readAndFree(slot, {
      whole: (state) => {
        const score = isWanted() ? this.#reranker.score(state) : null
        this.#transfers.giveBack(state)
        if (score !== null) done(score)
      },
    })
  }
}
