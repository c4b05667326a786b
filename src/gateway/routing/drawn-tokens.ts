/** The tokens of one request's answers, as its events tell of them: also of answers that never come to their end. */
import type { EngineEvent } from '../../engine/messages.ts'

export class DrawnTokens {
  /** By choice, so far. */
  readonly #told: number[]

  constructor(n: number) {
    this.#told = new Array<number>(n).fill(0)
  }

  /** Those that no event before this one has told of. */
  toldBy(event: EngineEvent): number {
    if (event.type === 'text') {
      this.#told[event.index]! += event.tokens.length
      return event.tokens.length
    }
    if (event.type !== 'finish') return 0
    // Stopping tokens, and those that a stop string swallowed, show only here. A counter never goes down.
    return Math.max(0, event.completionTokens - this.#told[event.index]!)
  }
}
