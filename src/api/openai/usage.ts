/** Token counts of a reply, in OpenAI's shape. */
import type { GuessCounts } from '../../engine/messages.ts'

/**
 * `reasoning` is null where the route knows no thoughts; `cached` are prompt tokens that a kept state had already read; `guesses`
 * are told of where there were any. Rejected ones are not among the completion's tokens.
 */
export function usageOf(
  prompt: number,
  completion: number,
  reasoning: number | null,
  cached = 0,
  guesses: GuessCounts = NO_GUESSES,
): object {
  const { accepted, rejected } = guesses
  const details = {
    ...(reasoning === null ? {} : { reasoning_tokens: reasoning }),
    ...(accepted + rejected === 0
      ? {}
      : { accepted_prediction_tokens: accepted, rejected_prediction_tokens: rejected }),
  }
  return {
    prompt_tokens: prompt,
    completion_tokens: completion,
    total_tokens: prompt + completion,
    prompt_tokens_details: { cached_tokens: cached },
    ...(Object.keys(details).length === 0 ? {} : { completion_tokens_details: details }),
  }
}

const NO_GUESSES: GuessCounts = { accepted: 0, rejected: 0 }

/** Of several choices together. */
export function allGuesses(
  choices: readonly { readonly guesses: GuessCounts | null }[],
): GuessCounts {
  return choices.reduce<GuessCounts>(
    (sum, { guesses }) => ({
      accepted: sum.accepted + (guesses?.accepted ?? 0),
      rejected: sum.rejected + (guesses?.rejected ?? 0),
    }),
    NO_GUESSES,
  )
}

/** Names the weights an answer came from, as OpenAI's system_fingerprint does. */
export function systemFingerprint(fingerprint: string): string {
  return `fp_${fingerprint.slice(0, 12)}`
}
