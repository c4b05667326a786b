/**
 * Which tokens an answer amounts to, so that a conversation kept as tokens reads as the client saw it. Where a stop
 * string or the end of the visible text falls inside a token, the part that shows is encoded anew.
 */
import { END_OF_TEXT, type TokenBytes } from '../answer/answer-text.ts'
import type { Sequence } from '../sequence.ts'

interface AnswerTokens {
  /** How many of the drawn tokens, from the first on, belong to the answer as they are. */
  readonly count: number
  /** Visible text after those. */
  readonly rest: string
}

/** Of a sequence that has ended. */
export function answerTokens(sequence: Sequence, tokenBytes: TokenBytes): AnswerTokens {
  const { drawn, finish, text } = sequence
  if (typeof finish?.matched === 'number') return { count: drawn.length - 1, rest: '' }
  if (typeof finish?.matched !== 'string') return { count: drawn.length, rest: '' }
  const shown = decode(drawn, tokenBytes).slice(0, text.numReleased)
  let count = drawn.length
  let whole = decode(drawn, tokenBytes)
  // A stop string spans a few tokens, so this goes a few steps back.
  while (!shown.startsWith(whole)) {
    count--
    whole = decode(drawn.slice(0, count), tokenBytes)
  }
  return { count, rest: shown.slice(whole.length) }
}

function decode(tokens: readonly number[], tokenBytes: TokenBytes): string {
  const bytes = tokens.map((token) =>
    token === END_OF_TEXT ? new Uint8Array(0) : tokenBytes.bytesOf(token),
  )
  return new TextDecoder('utf-8', { ignoreBOM: true }).decode(Buffer.concat(bytes))
}
