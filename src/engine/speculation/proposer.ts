/** Where guesses of an answer's next tokens come from. Wrong ones cost time and change nothing. */
import type { GenerateRequest } from '../messages.ts'

export interface Proposer {
  /** The answer has one token more. */
  add(token: number): void
  /** Tokens that may come next, at most so many; none where nothing is known. */
  propose(most: number): readonly number[]
  /** Whether something may be proposed when the next token is known, so that a row should wait for it. Asked for every row. */
  readonly isPromising: boolean
}

/** Opens a proposer for one choice of a request. `prompt`: all that is read before its first token, a session's earlier text included. */
export type OpenProposer = (
  prompt: Int32Array,
  request: GenerateRequest,
  choice: number,
) => Proposer
