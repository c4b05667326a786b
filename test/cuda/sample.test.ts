import { expect, test } from 'vitest'
import type { Backend, PenaltyPool, Program } from '../../src/backend/backend.ts'
import {
  type Batch,
  createBatch,
  MAX_TOP_LOGPROBS,
  SAMPLE_FLOATS,
  SAMPLE_INTS,
  SampleFloat,
  SampleInt,
} from '../../src/backend/batch.ts'
import { createReferenceBackend } from '../../src/backend/reference/reference.ts'
import { philox } from '../../src/backend/reference/sample.ts'
import { DRAWS, type Limited, packLimits } from '../backend/draws.ts'
import { normals, uniforms } from '../backend/kit.ts'
import { backendOfGroup, describeCuda } from './kit.ts'

type Spec = Partial<Record<keyof typeof SampleFloat | keyof typeof SampleInt, number>> &
  Limited & {
    readonly row?: number
    readonly slot?: number
  }

const SAMPLES = 100
const ROWS = 4
const CAPACITY = { tokens: ROWS, rows: 1, logits: ROWS, samples: SAMPLES }
const DEFAULTS: Spec = { temperature: 1, topP: 1, penaltyDecay: 1, repetitionPenalty: 1, topLogprobs: -1 }

function packSpecs(specs: readonly Spec[], vocabSize: number): Batch {
  const batch = createBatch(CAPACITY)
  batch.numTokens = ROWS
  batch.numRows = 1
  batch.starts[1] = ROWS
  batch.numLogits = ROWS
  batch.numSamples = specs.length
  for (const [s, given] of specs.entries()) {
    const spec = { ...DEFAULTS, ...given }
    batch.sampleRow[s] = spec.row ?? s % ROWS
    batch.sampleSlot[s] = spec.slot ?? s
    // The keys of SampleFloat are those of Spec.
    for (const [name, column] of Object.entries(SampleFloat))
      batch.sampleFloats[s * SAMPLE_FLOATS + column] = spec[name as keyof typeof SampleFloat] ?? 0
    // As above.
    for (const [name, column] of Object.entries(SampleInt))
      batch.sampleInts[s * SAMPLE_INTS + column] = spec[name as keyof typeof SampleInt] ?? 0
  }
  packLimits(batch, specs, vocabSize)
  return batch
}

/** A recorded sampler over fixed logits. */
class Sampler {
  readonly penalties: PenaltyPool
  readonly #program: Program
  readonly #vocabSize: number

  constructor(backend: Backend, logits: Float32Array) {
    const vocabSize = logits.length / ROWS
    this.#vocabSize = vocabSize
    this.penalties = backend.penaltyPool(vocabSize, SAMPLES)
    const tensor = backend.tensor([ROWS, vocabSize], logits)
    this.#program = backend.record(CAPACITY, (ops) => ops.sample(tensor, this.penalties))
  }

  draw(specs: readonly Spec[]): Batch {
    const batch = packSpecs(specs, this.#vocabSize)
    this.#program.run(batch)
    return batch
  }

  tokens(specs: readonly Spec[]): number[] {
    return [...this.draw(specs).sampled.subarray(0, specs.length)]
  }
}

const reference = createReferenceBackend()

/** Size of the vocabulary, and spread of the logits. */
const VOCABULARIES = [
  [8, 1],
  [1000, 3],
  [4099, 0.5],
  [65536, 1],
  [65536, 4],
  // More than the registers of a cluster of the smallest blocks can hold.
  [70000, 1],
] as const

describeCuda('sample on cuda', () => {
  const cuda = backendOfGroup()

  const pair = (logits: Float32Array) => [new Sampler(cuda(), logits), new Sampler(reference, logits)] as const

  const CASES: readonly (readonly [string, Spec])[] = [
    ...DRAWS,
    ['a wide top-k', { topK: 5000 }],
    ['a wide top-p', { topP: 0.97 }],
    ['top-k of a hundred and top-p', { topK: 100, topP: 0.9 }],
  ]
  test('draws after guesses are made while those are right, and only then counted', () => {
    const penalties = { presencePenalty: 0.5, frequencyPenalty: 0.4, penaltyDecay: 0.9 }
    for (const [V, scale] of VOCABULARIES) {
      const logits = normals(ROWS * V, V, scale)
      for (const given of [{}, penalties, { ...penalties, topLogprobs: 3, topP: 0.9 }]) {
        const [mine, theirs] = pair(logits)
        // First without guesses: the draws one after another, each from its row.
        const chain = (after: readonly number[], seed: number): Spec[] =>
          [0, 1, 2, 3].map((row) => ({
            ...given,
            ...{ row, slot: seed, seedLow: seed, position: row, after: after[row] ?? 0 },
          }))
        const truths = [1, 2, 3].map((seed) => {
          const [, known] = pair(logits)
          return chain([], seed).map((spec) => known.tokens([spec])[0]!)
        })
        const specs = truths.flatMap((drawn, i) => {
          const wrongAt = i + 1
          const after = drawn.map((_, row) => {
            if (row === 0) return 0
            return 1 + drawn[row - 1]! + (row === wrongAt ? 1 : 0)
          })
          return [...chain(after, i + 1), { ...given, slot: 50 + i, seedLow: i, row: i }]
        })
        const [got, expected] = [mine.tokens(specs), theirs.tokens(specs)]
        expect(got, `V ${V}`).toEqual(expected)
        expect(expected.filter((token) => token < 0)).toHaveLength(3 + 2 + 1)
        // The next draw reads the counts of penalised answers.
        const next = truths.map((_, i) => ({ ...given, slot: i + 1, seedLow: 9, row: 0 }))
        expect(mine.tokens(next)).toEqual(theirs.tokens(next))
      }
    }
  })

  test.each(CASES)('%s draws the tokens of the reference', (_, spec) => {
    for (const [i, [V, scale]] of VOCABULARIES.entries()) {
      const [mine, theirs] = pair(normals(ROWS * V, V, scale))
      // Few draws if the reference has much to sort.
      const specs = Array.from({ length: [SAMPLES, 48, 20, 8, 8, 4][i]! }, (_, s) => ({
        ...spec,
        seedLow: s,
        seedHigh: 99,
        stream: s % 3,
      }))
      expect(mine.tokens(specs), `V ${V}, logits of ${scale}`).toEqual(theirs.tokens(specs))
    }
  })

  test('a few draws at once are those of many', () => {
    for (const [V, scale] of VOCABULARIES) {
      const [mine] = pair(normals(ROWS * V, V, scale))
      for (const [name, spec] of CASES) {
        const few = Array.from({ length: 4 }, (_, s) => ({ ...spec, seedLow: s, topLogprobs: 3 }))
        const many = Array.from({ length: SAMPLES }, (_, s) => few[s % few.length]!)
        const drawn = mine.tokens(few)
        expect(mine.tokens(many), `V ${V}, ${name}`).toEqual(many.map((_, s) => drawn[s % few.length]))
      }
    }
  })

  test('greedy in its three forms, the smaller id among equals', () => {
    const logits = normals(ROWS * 5000, 1)
    logits[4000] = 50
    logits[123] = 50
    const [mine] = pair(logits)
    const greedy = [{ temperature: 0 }, { topK: 1 }, { topP: 0 }].map((spec) => ({ ...spec, row: 0 }))
    expect(mine.tokens(greedy)).toEqual([123, 123, 123])
  })

  test('masks allow only their tokens, and affect no other draw', () => {
    for (const V of [1000, 65_536, 70_000]) {
      const [mine, theirs] = pair(normals(ROWS * V, V, 2))
      const few = Array.from({ length: V }, (_, id) => id).filter((id) => id % 9 === 4)
      const masked: Spec[] = [
        { allowed: few },
        { allowed: [V - 1] },
        { allowed: [0, V - 1], temperature: 0 },
        { allowed: few, topP: 0.5, topK: 4, temperature: 3 },
        { allowed: few, noise: 2 },
        { allowed: few.slice(0, 3), topP: 0.9, topLogprobs: 5 },
      ]
      const specs = masked.flatMap((spec, i) => [{ seedLow: i }, { ...spec, seedLow: 9 + i }])
      const tokens = mine.tokens(specs)
      expect(tokens).toEqual(theirs.tokens(specs))
      const others = pair(normals(ROWS * V, V, 2))[0].tokens(specs.map(({ allowed: _, ...spec }) => spec))
      const isPlain = (_: number, s: number) => s % 2 === 0
      expect(tokens.filter(isPlain)).toEqual(others.filter(isPlain))
    }
  })

  test('equal logits are drawn in the order of their ids', () => {
    for (const V of [100, 20_000]) {
      const [mine, theirs] = pair(new Float32Array(ROWS * V).fill(1.5))
      for (const spec of [{}, { topK: 60 }, { topP: 0.3 }, { topK: 15_000 }]) {
        const specs = Array.from({ length: 12 }, (_, s) => ({ ...spec, seedLow: s }))
        const [actual, expected] = [mine.tokens(specs), theirs.tokens(specs)]
        // The sum of equal weights is within rounding of the line, so neighbours may change places.
        for (const [s, token] of actual.entries())
          expect(Math.abs(token - expected[s]!), `V ${V}, ${JSON.stringify(spec)}`).toBeLessThan(2)
      }
    }
  })

  test('penalties, decay and bias over twenty tokens', () => {
    const V = 300
    const [mine, theirs] = pair(normals(ROWS * V, 5, 2))
    const random = uniforms(3)
    for (const sampler of [mine, theirs])
      for (let slot = 0; slot < SAMPLES; slot++) sampler.penalties.reset(slot, Int32Array.of(slot, 2 * slot, 7))
    const bias = [
      [3, Number.NEGATIVE_INFINITY],
      [9, 2.5],
      [11, -1],
    ] as const
    const settings = Array.from({ length: 48 }, (_, s) => ({
      presencePenalty: random(),
      frequencyPenalty: 2 * random() - 0.5,
      penaltyDecay: s % 2 === 0 ? 1 : 0.9,
      repetitionPenalty: s % 3 === 0 ? 1 : 0.8 + random(),
      temperature: s % 5 === 0 ? 0 : 0.7,
      topP: 0.9,
      seedLow: s,
      ...(s % 4 === 0 ? { bias } : {}),
    }))
    for (let position = 0; position < 20; position++) {
      const specs = settings.map((spec) => ({ ...spec, position }))
      expect(mine.tokens(specs), `token ${position}`).toEqual(theirs.tokens(specs))
    }
  })

  test('log-probabilities are of the raw logits', () => {
    for (const [V, scale] of VOCABULARIES) {
      const [mine, theirs] = pair(normals(ROWS * V, V + 1, scale))
      const specs = [0, 1, 5, 20].map((topLogprobs, s) => ({
        topLogprobs,
        temperature: 0.8,
        topP: 0.9,
        seedLow: s,
        bias: [[1, 3]] as const,
      }))
      const [actual, expected] = [mine.draw(specs), theirs.draw(specs)]
      for (const [s, { topLogprobs }] of specs.entries()) {
        const count = Math.min(V, topLogprobs)
        const at = s * MAX_TOP_LOGPROBS
        const of = (batch: Batch) => ({ token: batch.sampled[s], ids: [...batch.topIds.subarray(at, at + count)] })
        expect(of(actual), `V ${V}`).toEqual(of(expected))
        expect(actual.sampledLogprob[s]).toBeCloseTo(expected.sampledLogprob[s]!, 4)
        for (let i = at; i < at + count; i++) expect(actual.topLogprobs[i]).toBeCloseTo(expected.topLogprobs[i]!, 4)
      }
    }
  })

  test('log-probabilities of more tokens than stand out', () => {
    const V = 4099
    const logits = normals(ROWS * V, 2, 0.01).map((noise, i) => {
      const rank = ((i % V) * 7919) % V
      return noise + (rank < 15 ? 10 : rank < 131 ? 8 : -5)
    })
    const [mine, theirs] = pair(logits)
    const specs = Array.from({ length: ROWS }, () => ({ topLogprobs: 20, temperature: 5 }))
    const ids = (sampler: Sampler) => {
      const { topIds } = sampler.draw(specs)
      return specs.map((_, s) => [...topIds.subarray(s * MAX_TOP_LOGPROBS, s * MAX_TOP_LOGPROBS + 20)])
    }
    expect(ids(mine)).toEqual(ids(theirs))
  })

  test('a draw between two tokens of weights far apart', () => {
    const V = 4099
    const topP = Math.fround(0.9)
    const row = normals(V, 3, 0.001).map((noise, i) => (i === 77 ? 8 : i % 2 === 0 ? noise : -30))
    const weights = row.map((logit) => Math.exp(logit - 8)).sort((a, b) => b - a)
    const line = topP * weights.reduce((a, b) => a + b)
    let kept = 0
    for (let i = 0; kept < line; i++) kept += weights[i]!
    // Draws that end with the first token or go beyond it, by which token is the last.
    const seeds: number[] = []
    for (let seed = 0; seeds.length < 4; seed++) {
      const share = philox(seed, 0, 0, 0)
      if (share * (0.9 * line + 0.1 * kept) < 1 && share * (0.1 * line + 0.9 * kept) > 1) seeds.push(seed)
    }
    const logits = new Float32Array(ROWS * V)
    for (let r = 0; r < ROWS; r++) logits.set(row, r * V)
    const [mine, theirs] = pair(logits)
    const specs = seeds.map((seedLow) => ({ seedLow, topP }))
    expect(mine.tokens(specs)).toEqual(theirs.tokens(specs))
  })

  test('a draw among more nearly weightless tokens than a list can hold', () => {
    const V = 65_536
    // Half of the warps have a token of weight 1, in whose sums these vanish.
    const row = normals(V, 6, 0.05).map((noise) => noise - 29.4 * Math.LN2)
    for (let i = 0; i < 28; i++) row[9216 * (i % 8) - (i % 8 < 4 ? 0 : 4096) + 128 * (i >> 3)] = i / 100
    const logits = new Float32Array(ROWS * V)
    for (let r = 0; r < ROWS; r++) logits.set(row, r * V)
    const [mine] = pair(logits)
    // One draw in a few hundred thousand does: with clusters of eight the first, with single blocks the others.
    for (const seedLow of [70_081_881, 7_342_489, 49_183_525]) {
      const tokens = mine.tokens(Array.from({ length: SAMPLES }, () => ({ seedLow })))
      expect(row[tokens[0]!]).toBeLessThan(-15)
      // Which of them were in the list must not be random.
      expect(new Set(tokens).size, `seed ${seedLow}`).toBe(1)
    }
  })

  test('a row whose tokens are all banned ends, and affects no other', () => {
    const V = 65_536
    const [mine, theirs] = pair(normals(ROWS * V, 4))
    const bias = Array.from({ length: V }, (_, id) => [id, Number.NEGATIVE_INFINITY] as const)
    for (const spec of [{ topP: 0.9 }, { topK: 9 }, { temperature: 0 }]) {
      const [banned, other] = mine.tokens([{ ...spec, bias }, spec])
      expect(banned! >= 0 && banned! < V).toBe(true)
      expect(other).toBe(theirs.tokens([{ topK: 1, row: 0 }, spec])[1])
    }
  })

  test('a row that is not finite draws −1, and no other does', () => {
    const logits = normals(ROWS * 1000, 1)
    logits[1000 + 777] = Number.NaN
    logits[2000 + 5] = Number.POSITIVE_INFINITY
    const [mine] = pair(logits)
    const tokens = mine.tokens([{ row: 0 }, { row: 1 }, { row: 2 }, { row: 3 }])
    expect(tokens.map((token) => token >= 0)).toEqual([true, false, false, true])
  })
})
