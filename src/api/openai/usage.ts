/** Token counts of a reply, in OpenAI's shape. */
import { type GuessCounts, type GuessesBy, PROPOSERS, type ProposerName } from '../../engine/stats.ts'

/**
 * `reasoning` is null where the route knows no thoughts; `cached` are prompt tokens that a kept state had already read; `guesses`
 * are told of where there were any, those of all proposers together and then of each. Certain text of a grammar is no prediction: it is
 * only among the latter. Rejected ones are not among the completion's tokens.
 */
export function usageOf(
  prompt: number,
  completion: number,
  reasoning: number | null,
  cached = 0,
  guesses: GuessesBy = {},
): object {
  const { grammar, ...predicted } = guesses
  const all = Object.values(predicted)
  const details = {
    ...(reasoning === null ? {} : { reasoning_tokens: reasoning }),
    ...(all.length === 0
      ? {}
      : {
          accepted_prediction_tokens: all.reduce((sum, { accepted }) => sum + accepted, 0),
          rejected_prediction_tokens: all.reduce((sum, { rejected }) => sum + rejected, 0),
        }),
    ...(grammar === undefined && all.length === 0 ? {} : { guesses }),
  }
  return {
    prompt_tokens: prompt,
    completion_tokens: completion,
    total_tokens: prompt + completion,
    prompt_tokens_details: { cached_tokens: cached },
    ...(Object.keys(details).length === 0 ? {} : { completion_tokens_details: details }),
  }
}

/** The sum over several choices. Given when a prediction was sent, even if nothing was guessed. */
export function allGuesses(choices: readonly { readonly guesses: GuessesBy }[], isPredicted = false): GuessesBy {
  const sums: { [name in ProposerName]?: GuessCounts } = isPredicted ? { prediction: { accepted: 0, rejected: 0 } } : {}
  for (const { guesses } of choices)
    for (const name of PROPOSERS) {
      const own = guesses[name]
      if (own === undefined) continue
      const { accepted, rejected } = sums[name] ?? { accepted: 0, rejected: 0 }
      sums[name] = { accepted: accepted + own.accepted, rejected: rejected + own.rejected }
    }
  return sums
}

/** Names the weights an answer came from, as OpenAI's system_fingerprint does. */
export function systemFingerprint(fingerprint: string): string {
  return `fp_${fingerprint.slice(0, 12)}`
}
