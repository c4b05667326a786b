import { type Batch, maskWords, SAMPLE_INTS, SampleInt } from '../../src/backend/batch.ts'

/** Sampling parameters that every backend's sampler is compared with the reference on. */
export const DRAWS = [
  ['plain', {}],
  ['hot', { temperature: 5 }],
  ['cold', { temperature: 0.05 }],
  ['top-k', { topK: 7 }],
  ['top-p', { topP: 0.6 }],
  ['min-p', { minP: 0.1 }],
  ['min-p beside a top-k', { minP: 0.3, topK: 90 }],
  ['all three', { topK: 50, topP: 0.9, minP: 0.01, temperature: 1.3 }],
  ['top-k beyond the vocabulary', { topK: 100_000 }],
  ['a top-p that keeps one', { topP: 1e-6 }],
  ['noise', { noise: 1.5 }],
  ['noise on cold scores', { noise: 3, temperature: 0.3, topK: 40, topP: 0.2 }],
  ['greedy in spite of noise', { noise: 3, topK: 1 }],
] as const

/** One of them. */
export const drawOf = (name: (typeof DRAWS)[number][0]) => DRAWS.find(([known]) => known === name)![1]

/** Tokens that a draw favours, and those that it may give; absent: none and all. */
export interface Limited {
  readonly bias?: readonly (readonly [token: number, value: number])[]
  readonly allowed?: readonly number[]
}

export function packLimits(batch: Batch, specs: readonly Limited[], vocabSize: number): void {
  const words = maskWords(vocabSize)
  batch.masks = new Uint32Array(specs.length * words)
  const all: (readonly [token: number, value: number])[] = []
  for (const [s, { bias = [], allowed }] of specs.entries()) {
    all.push(...bias)
    batch.biasStarts[s + 1] = all.length
    if (allowed === undefined) continue
    const row = batch.masks.subarray(batch.numMasks * words)
    for (const id of allowed) row[id >> 5] = row[id >> 5]! | (1 << (id & 31))
    batch.sampleInts[s * SAMPLE_INTS + SampleInt.mask] = ++batch.numMasks
  }
  batch.biasIds = Int32Array.from(all, ([token]) => token)
  batch.biasValues = Float32Array.from(all, ([, value]) => value)
}
