/** A request with nothing special about it, to begin a bench's or a test's own from. */
import type { GenerateRequest, SamplingParams } from '../engine/messages.ts'

export const PLAIN_SAMPLING: SamplingParams = {
  temperature: 1,
  topK: 0,
  topP: 1,
  minP: 0,
  presencePenalty: 0,
  frequencyPenalty: 0,
  penaltyDecay: 1,
  repetitionPenalty: 1,
  seed: 1n,
  logitBias: [],
  bannedTokens: [],
}

/** By default a short prompt, no stops, token 0 ignored. */
export function plainRequest(parts: Partial<GenerateRequest> = {}): GenerateRequest {
  return {
    id: 'a',
    prompt: Int32Array.of(1, 2, 3),
    n: 1,
    maxTokens: 8,
    sampling: PLAIN_SAMPLING,
    stop: { strings: [], tokens: [], ignoreEos: true },
    logprobs: null,
    promptLogprobs: null,
    ...parts,
  }
}
