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
