/** Token counts of a reply, in OpenAI's shape. */

/** `reasoning` is null where the route knows no thoughts; `cached` are prompt tokens that a kept state had already read. */
export function usageOf(
  prompt: number,
  completion: number,
  reasoning: number | null,
  cached = 0,
): object {
  return {
    prompt_tokens: prompt,
    completion_tokens: completion,
    total_tokens: prompt + completion,
    prompt_tokens_details: { cached_tokens: cached },
    ...(reasoning === null ? {} : { completion_tokens_details: { reasoning_tokens: reasoning } }),
  }
}

/** Names the weights an answer came from, as OpenAI's system_fingerprint does. */
export function systemFingerprint(fingerprint: string): string {
  return `fp_${fingerprint.slice(0, 12)}`
}
