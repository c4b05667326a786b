/** A draw with nothing special about it, to begin a bench's own from. */
import type { SampleSpec } from '../model/runner.ts'
import { samplingNumbers } from '../sampling.ts'

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
