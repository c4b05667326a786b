/** A draw with nothing special about it, to begin a bench's own from. */
import type { SampleSpec } from '../model/runner.ts'

export function sampleSpec(fields: Partial<SampleSpec> & Pick<SampleSpec, 'slot'>): SampleSpec {
  return {
    temperature: 1,
    topK: 0,
    topP: 1,
    minP: 0,
    presencePenalty: 0,
    frequencyPenalty: 0,
    penaltyDecay: 1,
    repetitionPenalty: 1,
    seed: 1n,
    position: 0,
    stream: 0,
    logprobs: null,
    bias: null,
    ...fields,
  }
}
