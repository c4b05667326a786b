/** Requests that ask for a score of their prompt: its state is read out of the slot, which is free then, and scored. */
import { assert } from '../../errors.ts'
import type { StateData } from '../../model/runner.ts'
import type { Sequence } from '../sequence.ts'
import type { StateTransfers } from '../state-transfers.ts'

/** Scores states of the model; the engine's own. */
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

  /** Takes the slot of a sequence whose prompt has been read. `isWanted` is asked when the state has come. */
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
