/**
 * What a lightning request that says nothing gets. rwkv_lightning changed its defaults between revisions and has
 * others per route, so each family of routes has a table of its own; none is shared with the OpenAI routes.
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
  temperature: 1,
  topK: 50,
  topP: 0.6,
  presence: 2,
  frequency: 0.2,
  decay: 0.996,
}

/** /v3 and FIM (January 2026): greedy unless asked otherwise, and short. */
export const SHORT: Family = {
  maxTokens: 50,
  chunkSize: 4,
  temperature: 1,
  topK: 1,
  topP: 0.3,
  presence: 0.5,
  frequency: 0.5,
  decay: 0.996,
}

/** /big_batch: the model's own distribution at a temperature, nothing cut, no penalties. */
export const BIG_BATCH: Family = {
  maxTokens: 8192,
  chunkSize: 4,
  temperature: 1,
  topK: 0,
  topP: 1,
  presence: 0,
  frequency: 0,
  decay: 1,
}

/** /v1/batch/completions of rwkv_lightning_cuda. */
export const CUDA_BATCH: Family = {
  maxTokens: 8192,
  chunkSize: 8,
  temperature: 1,
  topK: 20,
  topP: 0.3,
  presence: 2,
  frequency: 0.2,
  decay: 0.996,
}

/** /openai/v1/chat/completions. */
export const OPENAI_ROUTE: Family = {
  maxTokens: 4096,
  chunkSize: 1,
  temperature: 1,
  topK: 20,
  topP: 0.6,
  presence: 1,
  frequency: 0.1,
  decay: 0.996,
}
