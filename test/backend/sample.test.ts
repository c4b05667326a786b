import { afterAll, beforeAll, describe, expect, test } from 'vitest'
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
import { createCpuBackend } from '../../src/backend/cpu/cpu.ts'
import { createReferenceBackend } from '../../src/backend/reference/reference.ts'
import { samplingNumbers } from '../../src/sampling.ts'
import { DRAWS, drawOf, type Limited, packLimits } from './draws.ts'
import { DEVICES, LEVELS, normals, run, uniforms } from './kit.ts'

type Spec = Partial<Record<keyof typeof SampleFloat, number>> &
  Limited & {
    readonly row?: number
    readonly slot?: number
    readonly topK?: number
    readonly seed?: number
    readonly position?: number
    readonly stream?: number
    readonly topLogprobs?: number
  }

const CAPACITY = { tokens: 64, rows: 1, logits: 64, samples: 64 }

function packSpecs(specs: readonly Spec[], numLogits: number, vocabSize: number): Batch {
  const batch = createBatch(CAPACITY)
  batch.numTokens = numLogits
  batch.numRows = 1
  batch.starts[1] = numLogits
  batch.numLogits = numLogits
  batch.numSamples = specs.length
  for (const [s, spec] of specs.entries()) {
    batch.sampleRow[s] = spec.row ?? 0
    batch.sampleSlot[s] = spec.slot ?? s
    const floats = { ...samplingNumbers((_, { off }) => off), ...spec }
    // The columns have the names of the numbers.
    for (const [name, column] of Object.entries(SampleFloat))
      batch.sampleFloats[s * SAMPLE_FLOATS + column] = floats[name as keyof typeof SampleFloat]
    batch.sampleInts.set([spec.topK ?? 0, spec.seed ?? 1, 99, spec.position ?? 0, spec.stream ?? 0], s * SAMPLE_INTS)
    batch.sampleInts[s * SAMPLE_INTS + SampleInt.topLogprobs] = spec.topLogprobs ?? -1
  }
  packLimits(batch, specs, vocabSize)
  return batch
}

/** A recorded sampler over fixed logits. */
class Sampler {
  readonly penalties: PenaltyPool
  readonly #program: Program
  readonly #rows: number
  readonly #vocabSize: number

  constructor(backend: Backend, logits: Float32Array, rows: number) {
    const vocabSize = logits.length / rows
    this.#vocabSize = vocabSize
    this.#rows = rows
    this.penalties = backend.penaltyPool(vocabSize, 64)
    const all = new Float32Array(64 * vocabSize).fill(Number.NaN)
    all.set(logits)
    const tensor = backend.tensor([64, vocabSize], all)
    this.#program = backend.record(CAPACITY, (ops) => ops.sample(tensor, this.penalties))
  }

  async draw(specs: readonly Spec[]): Promise<Batch> {
    const batch = packSpecs(specs, this.#rows, this.#vocabSize)
    await this.run(batch)
    return batch
  }

  run(batch: Batch): Promise<void> {
    return run(this.#program, batch)
  }

  async tokens(specs: readonly Spec[]): Promise<number[]> {
    return [...(await this.draw(specs)).sampled.subarray(0, specs.length)]
  }
}

const reference = createReferenceBackend()

const known = new Map<string, Promise<number[]>>()
/** What the reference draws, once for all devices: it takes longer than they do. */
function wanted(key: string, theirs: Sampler, specs: readonly Spec[]): Promise<number[]> {
  const tokens = known.get(key) ?? theirs.tokens(specs)
  known.set(key, tokens)
  return tokens
}

// AMX has the vectors of AVX-512, and no tiles here.
const WITHOUT_TILES = LEVELS.filter((isa) => isa !== 'amx')
const OTHERS = DEVICES.filter(({ name }) => name !== 'cpu amx')

if (DEVICES.length === 0) test.skip('the cpu kernels are not built')

describe.each(OTHERS)('sample on $name', (device) => {
  let tested: Backend
  beforeAll(async () => {
    tested = await device.open()
  })
  afterAll(() => tested.dispose())

  const pair = (logits: Float32Array, rows: number) =>
    [new Sampler(tested, logits, rows), new Sampler(reference, logits, rows)] as const

  test.each([
    ...DRAWS,
    ['a temperature so high that all tokens are equally likely', { temperature: 1000, topP: 0.7 }],
  ] as const)('%s draws the tokens of the reference', device.options, async (name, spec) => {
    const sizes = [
      [1, 1],
      [7, 1],
      [1000, 3],
      [4099, 0.5],
    ] as const
    for (const [V, scale] of sizes) {
      const [mine, theirs] = pair(normals(4 * V, V, scale), 4)
      const specs = Array.from({ length: 48 }, (_, s) => ({ ...spec, row: s % 4, seed: s, stream: s % 3 }))
      expect(await mine.tokens(specs), `V ${V}`).toEqual(await wanted(`${name} ${V}`, theirs, specs))
    }
  })

  test('noise draws two tokens with the probabilities given by their distance', device.options, async () => {
    const logits = new Float32Array(64).fill(-100)
    // u0 − u1 has a triangular density, so token 7, behind by half the noise, wins one time in eight.
    logits[3] = 1
    logits[7] = 0
    const mine = new Sampler(tested, logits, 1)
    const specs = Array.from({ length: 64 }, (_, s) => ({ noise: 2, seed: s, stream: 1 }))
    const tokens: number[] = []
    for (let position = 0; position < 8; position++)
      tokens.push(...(await mine.tokens(specs.map((spec) => ({ ...spec, position })))))
    expect(new Set(tokens)).toEqual(new Set([3, 7]))
    const share = tokens.filter((token) => token === 7).length / tokens.length
    expect(share).toBeGreaterThan(0.08)
    expect(share).toBeLessThan(0.17)
  })

  test('greedy in its three forms, the smaller id among equals', device.options, async () => {
    const logits = normals(5000, 1)
    logits[4000] = 50
    logits[123] = 50
    const [mine] = pair(logits, 1)
    expect(await mine.tokens([{ temperature: 0 }, { topK: 1 }, { topP: 0 }])).toEqual([123, 123, 123])
    const flat = new Sampler(tested, new Float32Array(300), 1)
    expect(await flat.tokens([{ temperature: 0 }, { topK: 1, temperature: 2 }])).toEqual([0, 0])
  })

  test('ties at the edge of top-k and top-p keep the smaller ids', device.options, async () => {
    const [mine, theirs] = pair(new Float32Array(512), 1)
    const specs = Array.from({ length: 60 }, (_, s) => (s % 2 === 0 ? { topK: 5, seed: s } : { topP: 0.02, seed: s }))
    const tokens = await mine.tokens(specs)
    expect(tokens).toEqual(await theirs.tokens(specs))
    expect(Math.max(...tokens.filter((_, s) => s % 2 === 0))).toBe(4)
    expect(new Set(tokens.filter((_, s) => s % 2 === 1)).size).toBeGreaterThan(5)
  })

  test('bias adds, bans, and can leave a single token', device.options, async () => {
    const logits = normals(200, 3)
    const [mine, theirs] = pair(logits, 1)
    const banAll = Array.from({ length: 200 }, (_, id) => [id, Number.NEGATIVE_INFINITY] as const)
    const specs: Spec[] = [
      { temperature: 0, bias: [[17, 100]] },
      { bias: banAll.filter(([id]) => id !== 42) },
      { temperature: 3, bias: banAll.filter(([id]) => id % 7 !== 0) },
    ]
    const tokens = await mine.tokens(specs)
    expect(tokens).toEqual(await theirs.tokens(specs))
    expect(tokens.slice(0, 2)).toEqual([17, 42])
    expect(await mine.tokens([{ bias: banAll }, { temperature: 0, bias: banAll }])).toEqual([-1, -1])
  })

  test('masks allow only their tokens, and affect no other draw', device.options, async () => {
    for (const V of [70, 4099]) {
      const [mine, theirs] = pair(normals(2 * V, V, 2), 2)
      const [few, one] = [Array.from({ length: V }, (_, id) => id).filter((id) => id % 9 === 4), [V - 1]]
      const plain: Spec[] = [{}, { temperature: 0 }, { topP: 0.7, seed: 5 }, { row: 1, topLogprobs: 3 }]
      const masked: Spec[] = [
        { allowed: few },
        { allowed: one, bias: [[V - 1, -50]] },
        { allowed: few, temperature: 0, row: 1 },
        { allowed: few, topP: 0.5, topK: 4, temperature: 3 },
        { allowed: few, noise: 2, repetitionPenalty: 1.5 },
        { allowed: few, topLogprobs: 20 },
      ]
      const specs = masked.flatMap((spec, i) => [plain[i % plain.length]!, { ...spec, seed: i }])
      const [actual, expected] = [await mine.draw(specs), await theirs.draw(specs)]
      const tokens = [...actual.sampled.subarray(0, specs.length)]
      expect(tokens).toEqual([...expected.sampled.subarray(0, specs.length)])
      for (const [s, { allowed }] of specs.entries()) if (allowed !== undefined) expect(allowed).toContain(tokens[s])
      // From the raw logits, as without a mask.
      const last = specs.length - 1
      expect(actual.sampledLogprob[last]!).toBeCloseTo(expected.sampledLogprob[last]!, 4)
      const alone = new Sampler(tested, normals(2 * V, V, 2), 2)
      const unmasked = specs.map(({ allowed: _, ...spec }) => spec)
      const others = (await alone.tokens(unmasked)).filter((_, s) => s % 2 === 0)
      expect(tokens.filter((_, s) => s % 2 === 0)).toEqual(others)
    }
  })

  test.each([
    ['presence', { presencePenalty: 1.5 }],
    ['frequency', { frequencyPenalty: 0.7 }],
    ['decayed counts', { frequencyPenalty: 2, presencePenalty: 0.3, penaltyDecay: 0.5 }],
    ['repetition', { repetitionPenalty: 1.8 }],
    ['all', { presencePenalty: 0.4, frequencyPenalty: 0.4, penaltyDecay: 0.9, repetitionPenalty: 1.2 }],
  ] as const)('%s penalties over 40 tokens follow the reference', device.options, async (_, spec) => {
    const [mine, theirs] = pair(normals(3 * 100, 9, 2), 3)
    for (const sampler of [mine, theirs]) {
      sampler.penalties.reset(
        0,
        Int32Array.from({ length: 50 }, (_, i) => (i * 3) % 100),
      )
      sampler.penalties.reset(1, new Int32Array(0))
      sampler.penalties.reset(2, Int32Array.of(5, 5, 6))
    }
    for (let position = 0; position < 40; position++) {
      if (position === 30) for (const sampler of [mine, theirs]) sampler.penalties.reset(1, Int32Array.of(1, 2, 3))
      const specs = [0, 1, 2].map((i) => ({ ...spec, row: i, slot: i, seed: i, position }))
      expect(await mine.tokens(specs), `position ${position}`).toEqual(await theirs.tokens(specs))
    }
  })

  test('presence holds however far a count has decayed', device.options, async () => {
    const logits = new Float32Array(64)
    logits[9] = 1
    const sampler = new Sampler(tested, logits, 1)
    const spec = { temperature: 0, presencePenalty: 1.5, penaltyDecay: 1e-20, slot: 0 }
    const tokens: number[] = []
    for (let i = 0; i < 8; i++) tokens.push(...(await sampler.tokens([spec])))
    expect(tokens).toEqual([9, 0, 1, 2, 3, 4, 5, 6])
  })

  test('samples of one step that share a slot are counted one after another', device.options, async () => {
    const logits = new Float32Array(64)
    logits.set([5, 4, 3, 2])
    const sampler = new Sampler(tested, logits, 1)
    const spec = { temperature: 0, presencePenalty: 10, slot: 3 }
    expect(await sampler.tokens([spec, { temperature: 0, slot: 4 }, spec, spec])).toEqual([0, 0, 1, 2])
  })

  test('samples that share a slot are drawn from what the earlier ones leave', device.options, async () => {
    const [mine, theirs] = pair(normals(1000, 9, 0.5), 1)
    const specs = Array.from({ length: 12 }, (_, s) => ({
      slot: s % 2,
      seed: s,
      frequencyPenalty: 30,
      ...[{}, { topP: 0.5 }, drawOf('min-p beside a top-k')][s % 3],
    }))
    const tokens = await mine.tokens(specs)
    expect(tokens).toEqual(await theirs.tokens(specs))
    expect(new Set(tokens.filter((_, s) => s % 2 === 0)).size).toBe(6)
  })

  test.each([Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY])(
    'a logit of %s draws −1 and counts nothing',
    device.options,
    async (bad) => {
      for (const at of [0, 63, 777, 998]) {
        const logits = normals(2 * 999, 4)
        logits[at] = bad
        const sampler = new Sampler(tested, logits, 2)
        const batch = await sampler.draw([{ row: 0, topLogprobs: 3 }, { row: 1 }, { row: 0, temperature: 0 }])
        expect([...batch.sampled.subarray(0, 3)].map((token) => token >= 0)).toEqual([false, true, false])
        expect(batch.sampledLogprob[0]).toBeNaN()
      }
    },
  )

  test('logprobs are of the raw logits, best first, ties by id', device.options, async () => {
    const logits = normals(4500, 8, 4).map((x) => Math.round(x))
    const [mine, theirs] = pair(logits, 1)
    const specs = [0, 1, 5, 20].map((topLogprobs, s) => ({
      topLogprobs,
      seed: s,
      temperature: 2,
      bias: [[3, 5]] as const,
    }))
    const [a, b] = [await mine.draw(specs), await theirs.draw(specs)]
    for (const [s, { topLogprobs }] of specs.entries()) {
      const at = s * MAX_TOP_LOGPROBS
      expect(a.sampledLogprob[s]!).toBeCloseTo(b.sampledLogprob[s]!, 5)
      expect([...a.topIds.subarray(at, at + topLogprobs)]).toEqual([...b.topIds.subarray(at, at + topLogprobs)])
      for (let i = at; i < at + topLogprobs; i++) expect(a.topLogprobs[i]!).toBeCloseTo(b.topLogprobs[i]!, 5)
    }
  })

  test('a large vocabulary with equal logits: the same draws as the reference', device.options, async () => {
    const V = 65_536
    const logits = normals(V, 12, 2.5).map((x) => Math.round(x * 8) / 8)
    const [mine, theirs] = pair(logits, 1)
    const next = uniforms(5)
    const specs = Array.from({ length: 6 }, (_, s) => ({
      seed: Math.floor(next() * 2 ** 31),
      stream: s,
      ...[{}, { topP: 0.9 }, { topK: 300 }, { topP: 0.5, temperature: 0.7 }, drawOf('min-p'), {}][s],
    }))
    expect(await mine.tokens(specs)).toEqual(await wanted('large', theirs, specs))
  })

  test('draws follow the distribution', device.options, async () => {
    const logits = Float32Array.from([0.5, 0.3, 0.2], Math.log)
    const sampler = new Sampler(tested, logits, 1)
    const counts = [0, 0, 0]
    for (let round = 0; round < 100; round++)
      for (const token of await sampler.tokens(Array.from({ length: 60 }, (_, s) => ({ position: round, stream: s }))))
        counts[token]!++
    // Six thousand draws: a standard deviation is below 0.0065.
    for (const [i, share] of [0.5, 0.3, 0.2].entries()) expect(Math.abs(counts[i]! / 6000 - share)).toBeLessThan(0.02)
  })

  test('a batch that would read outside its arrays is refused', device.options, async () => {
    const sampler = new Sampler(tested, normals(64, 1), 1)
    await expect(sampler.draw([{ row: 1 }])).rejects.toThrow(/sample row/)
    await expect(sampler.draw([{ slot: 64 }])).rejects.toThrow(/penalty slot/)
    await expect(sampler.draw([{ bias: [[64, 1]] }])).rejects.toThrow(/bias token/)
    await expect(sampler.draw([{ bias: [[0, Number.NaN]] }])).rejects.toThrow(/bias must be finite/)
    await expect(sampler.draw([{ topLogprobs: 21 }])).rejects.toThrow(/top logprobs/)
    const batch = packSpecs([{ allowed: [1] }], 1, 64)
    batch.numMasks = 0
    await expect(sampler.run(batch)).rejects.toThrow(/mask row/)
    expect(() => sampler.penalties.reset(0, Int32Array.of(64))).toThrow(/prompt token/)
  })
})

test.each(WITHOUT_TILES)('on %s threads that share a draw draw what one thread does', async (isa) => {
  const specs: Spec[] = [
    ...DRAWS.map(([, spec]) => spec),
    { allowed: [3, 5, 4098], bias: [[5, 2]] },
    { bias: [0, 1023, 1024, 4098].map((id) => [id, id === 1024 ? Number.NEGATIVE_INFINITY : 3] as const) },
    { repetitionPenalty: 1.5, frequencyPenalty: 0.5, presencePenalty: 0.5 },
  ]
  for (const V of [1, 100, 4099]) {
    const draws: unknown[] = []
    for (const threads of [1, 2, 7]) {
      const backend = createCpuBackend({ isa, threads })
      const sampler = new Sampler(backend, normals(V, V, 2), 1)
      sampler.penalties.reset(
        0,
        Int32Array.from({ length: Math.min(V, 50) }, (_, i) => i),
      )
      const own: unknown[] = []
      for (const [i, { allowed, bias, ...spec }] of specs.entries()) {
        const known = { bias: bias?.filter(([id]) => id < V) ?? [], ...(allowed && V > 4098 ? { allowed } : {}) }
        const drawn = await sampler.draw([{ ...spec, ...known, slot: 0, seed: i, position: i, topLogprobs: 5 }])
        own.push([drawn.sampled[0], drawn.sampledLogprob[0], [...drawn.topIds.subarray(0, 5)]])
      }
      draws.push(own)
      backend.dispose()
    }
    expect(draws[1], `V ${V}`).toEqual(draws[0])
    expect(draws[2], `V ${V}`).toEqual(draws[0])
  }
})
