/** Where guesses of an answer's next tokens come from. Wrong ones cost time and change nothing. */
import type { Matcher } from '../../grammar/matcher.ts'
import type { SampleSpec } from '../../model/runner.ts'
import type { GenerateRequest } from '../messages.ts'
import type { ProposerName } from '../stats.ts'

export interface Proposer {
  /** The answer has one token more. */
  add(token: number): void
  /** Whether something may be proposed when the next token is known, so that a row should wait for it. Asked for every row. */
  readonly isPromising: boolean
  /** The next propose() asks for so many. All answers of a step are told before the first is asked, so that theirs can be made together. */
  expect?(most: number): void
  /** Tokens that may come next, at most so many; none where nothing is known. */
  propose(most: number): readonly number[]
  /**
   * Tokens that come next whatever would be drawn, returned once. They are taken without a draw and fed with the token after
   * which the next is drawn, so the answer's draws are the same whether or not they were proposed.
   */
  certain?(): readonly number[]
  /** The answer is over: what is kept for it may go. */
  close?(): void
}

export interface ProposerSource {
  readonly name: ProposerName
  /**
   * For one choice of a request; null where it has nothing to go by. `prompt`: all that is read before its first token, a
   * session's earlier text included. `draw`: how the first one is drawn. `matcher`: of an answer held to a grammar.
   */
  open(
    prompt: Int32Array,
    request: GenerateRequest,
    choice: number,
    draw: SampleSpec,
    matcher: Matcher | null,
  ): Proposer | null
  /** How often guesses are right depends on who makes them more than on the answer. */
  readonly isAlike?: true
  /** Answers of a step beyond which it guesses for none. */
  readonly mostAnswers?: number
  /** Milliseconds that a guess takes to make. Absent: no time that counts, so guesses may be asked for only to see whether they are right. */
  readonly guessMs?: number | undefined
}
