/**
 * Defaults of lightning requests. rwkv_lightning changed its defaults between revisions and has others per route, so
 * each family of routes has a table; none is shared with the OpenAI routes.
 */
import type { SamplingDefaults } from '../openai/sampling.ts'

export interface Family extends SamplingDefaults {
  readonly maxTokens: number
  /** Tokens of a row that a stream gathers before it sends them. */
  readonly chunkSize: number
}

/** /v1, /v2, /state and /multi_state: raw prompts (rwkv_lightning of April 2026). */
export const CONTENTS: Family = {
  maxTokens: 8192,
  chunkSize: 4,
  topK: 50,
  topP: 0.6,
  presencePenalty: 2,
  frequencyPenalty: 0.2,
  penaltyDecay: 0.996,
}

/** /v3 and FIM (January 2026): greedy unless asked otherwise, and short. */
export const SHORT: Family = {
  maxTokens: 50,
  chunkSize: 4,
  topK: 1,
  topP: 0.3,
  presencePenalty: 0.5,
  frequencyPenalty: 0.5,
  penaltyDecay: 0.996,
}

/** /big_batch: the model's own distribution at a temperature, nothing cut, no penalties. */
export const BIG_BATCH: Family = {
  maxTokens: 8192,
  chunkSize: 4,
  penaltyDecay: 1,
}

/** /v1/batch/completions of rwkv_lightning_cuda. */
export const CUDA_BATCH: Family = {
  maxTokens: 8192,
  chunkSize: 8,
  topK: 20,
  topP: 0.3,
  presencePenalty: 2,
  frequencyPenalty: 0.2,
  penaltyDecay: 0.996,
}

/** /openai/v1/chat/completions. */
export const OPENAI_ROUTE: Family = {
  maxTokens: 4096,
  chunkSize: 1,
  topK: 20,
  topP: 0.6,
  presencePenalty: 1,
  frequencyPenalty: 0.1,
  penaltyDecay: 0.996,
}
