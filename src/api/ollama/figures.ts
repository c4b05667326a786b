/** What the last object of an answer counts: tokens, and nanoseconds of reading and answering. */
import type { FinishReason } from '../../engine/messages.ts'

export class Figures {
  readonly #began = performance.now()
  #readAt: number | null = null
  promptTokens = 0

  read(promptTokens: number): void {
    this.promptTokens = promptTokens
    this.#readAt = performance.now()
  }

  end(reason: FinishReason | 'calls', completionTokens: number): object {
    const ended = performance.now()
    const readAt = this.#readAt ?? ended
    return {
      done: true,
      done_reason: reason === 'length' ? 'length' : 'stop',
      total_duration: nanoseconds(ended - this.#began),
      load_duration: 0,
      prompt_eval_count: this.promptTokens,
      prompt_eval_duration: nanoseconds(readAt - this.#began),
      eval_count: completionTokens,
      eval_duration: nanoseconds(ended - readAt),
    }
  }
}

function nanoseconds(milliseconds: number): number {
  return Math.round(1e6 * milliseconds)
}
