/** A plain request, as a base for those of benches and tests. */
import { type GenerateRequest, PLAIN_REQUEST, PLAIN_SAMPLING, type SamplingParams } from '../engine/messages.ts'
import type { SampleSpec } from '../model/runner.ts'
import { samplingNumbers } from '../sampling.ts'

export const SEEDED_SAMPLING: SamplingParams = { ...PLAIN_SAMPLING, seed: 1n }

/** By default a short prompt, no stops, token 0 ignored. */
export function plainRequest(parts: Partial<GenerateRequest> = {}): GenerateRequest {
  return {
    ...PLAIN_REQUEST,
    id: 'a',
    prompt: Int32Array.of(1, 2, 3),
    maxTokens: 8,
    sampling: SEEDED_SAMPLING,
    stop: { strings: [], tokens: [], ignoreEos: true },
    ...parts,
  }
}

/** A plain draw, as a base for those of benches. */
export function sampleSpec(fields: Partial<SampleSpec> & Pick<SampleSpec, 'slot'>): SampleSpec {
  return {
    ...samplingNumbers((_, { off }) => off),
    seed: 1n,
    position: 0,
    stream: 0,
    logprobs: null,
    bias: null,
    ...fields,
  }
}
