/**
 * Sums the hidden states of a prompt into one embedding, in the order of the tokens, whatever the size of the chunks.
 */
import { assert } from '../../errors.ts'
import type { EmbeddingTask } from '../messages.ts'

/** For each task, a function from a final hidden state [C] to an embedding [C]. */
export type EmbeddingHeads = ReadonlyMap<EmbeddingTask, (hidden: Float32Array) => Float32Array>

export class EmbeddingSum {
  /** [C] */
  #sum = new Float64Array(0)
  #count = 0

  /** Adds the next tokens. hidden: [tokens, C] */
  add(hidden: Float32Array, channels: number): void {
    if (this.#count === 0) this.#sum = new Float64Array(channels)
    for (const [i, value] of hidden.entries()) this.#sum[i % channels]! += value
    this.#count += hidden.length / channels
  }

  /** [C] */
  mean(): Float32Array {
    assert(this.#count > 0, 'an embedding without hidden states')
    return Float32Array.from(this.#sum, (value) => value / this.#count)
  }

  /** The mean, passed through the head of the task where there is one. */
  through(heads: EmbeddingHeads, task: EmbeddingTask | undefined): Float32Array {
    const head = task === undefined ? undefined : heads.get(task)
    return head === undefined ? this.mean() : head(this.mean())
  }
}
