/**
 * Text that a grammar leaves no choice about: the names and marks of a JSON schema, the end of an answer. Its tokens are the
 * only guesses that are certain. Which they are is found beside the mask, by the grammar's thread.
 */
import type { Matcher } from '../../grammar/matcher.ts'
import type { Proposer, ProposerSource } from './proposer.ts'

class GrammarText implements Proposer {
  readonly #matcher: Matcher
  /** Nothing else is guessed: what follows must be allowed, and each token would need a mask of its own. */
  readonly isPromising = false

  constructor(matcher: Matcher) {
    this.#matcher = matcher
  }

  /** The matcher was told. */
  add(): void {}

  propose(): readonly number[] {
    return []
  }

  certain(): readonly number[] {
    return this.#matcher.takeForced()
  }
}

export const GRAMMAR: ProposerSource = {
  name: 'grammar',
  open: (_prompt, _request, _choice, _draw, matcher) => (matcher === null ? null : new GrammarText(matcher)),
}
