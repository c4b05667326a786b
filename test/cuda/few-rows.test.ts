import { mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, expect, test, vi } from 'vitest'
import type { Backend } from '../../src/backend/backend.ts'
import { type CudaOptions, createCudaBackend } from '../../src/backend/cuda/cuda.ts'
import { CudaDevice } from '../../src/backend/cuda/device/device.ts'
import { Gemm } from '../../src/backend/cuda/gemm/gemm.ts'
import { CopyBudget } from '../../src/backend/cuda/linear/sparse.ts'
import { FewRowsLayers } from '../../src/backend/cuda/ops/fused-layers.ts'
import type { Way } from '../../src/backend/cuda/ops/fused-layers-plan.ts'
import { CudaProgram } from '../../src/backend/cuda/program.ts'
import type { StepShape } from '../../src/backend/cuda/step/command.ts'
import { createReferenceBackend } from '../../src/backend/reference/reference.ts'
import type { PackedType, WeightType } from '../../src/backend/weight-types.ts'
import { openCheckpoint } from '../../src/model/checkpoint.ts'
import { ModelRunner } from '../../src/model/run/model-runner.ts'
import type { SampleSpec } from '../../src/model/runner.ts'
import { loadRwkv7 } from '../../src/model/rwkv7.ts'
import { rmsRatio } from '../backend/kit.ts'
import { readTensors, writeAsGguf } from '../helpers/formats.ts'
import { type RandomRwkv7Options, writeRandomRwkv7 } from '../helpers/pth.ts'
import { draw, someTokens } from '../helpers/runner.ts'
import { cardInfo, describeCuda, hasFp8 } from './kit.ts'
import { inFp8 } from './ops-kit.ts'

/**
 * Widths of released models, and two that leave warps without columns; ranks that fill no unit; more active rows of
 * ffn.value than fit at once.
 */
const MODELS = [
  { layers: 3, channels: 192, ranks: { w: 32, a: 64, v: 32, g: 96 } },
  { layers: 2, channels: 320, ffn: 12296, ranks: { w: 32, a: 32, v: 32, g: 64 } },
  { layers: 2, channels: 768, ranks: { w: 64, a: 64, v: 32, g: 128 } },
  { layers: 2, channels: 2048, ffn: 6152, ranks: { w: 96, a: 96, v: 64, g: 256 } },
  { layers: 2, channels: 2560, ffn: 2568, ranks: { w: 96, a: 96, v: 64, g: 320 } },
  { layers: 1, channels: 4096, ffn: 4104, ranks: { w: 128, a: 128, v: 96, g: 480 } },
] as const

const TOKENS = someTokens(12, 5)

/** fp8 only on cards that have it. */
const isHeld = ({ type }: { readonly type: WeightType }) => type !== 'fp8' || hasFp8()

/**
 * Integers: pairs of parts shared by two, six, three, four, twenty, ten and sixteen warps, so that other warps share
 * the rows or have none; ffn.value in one, two and four chunks.
 */
const LOW = { w: 32, a: 64, v: 32, g: 96 }
const ROUNDED = [
  { type: 'i8' as const, layers: 3, channels: 256, ranks: LOW },
  { type: 'i8' as const, layers: 2, channels: 768, ranks: LOW },
  { type: 'q4' as const, layers: 2, channels: 768, ranks: LOW },
  { type: 'nf4' as const, layers: 2, channels: 1024, ranks: LOW },
  { type: 'fp8' as const, layers: 3, channels: 256, ranks: LOW },
  { type: 'fp8' as const, layers: 2, channels: 768, ranks: LOW },
  ...(['i8', 'q4', 'nf4', 'fp8'] as const).flatMap((type) => [
    { type, layers: 2, channels: 2560, ffn: 2560, ranks: { w: 96, a: 96, v: 64, g: 320 } },
    { type, layers: 1, channels: 4096, ffn: 8192, ranks: { w: 128, a: 128, v: 96, g: 480 } },
  ]),
].filter(isHeld)

/** GGUF's blocks in each layout that can hold them. */
const PACKED = [
  { type: 'Q8_0', layers: 2, channels: 256, ranks: LOW },
  { type: 'Q5_1', layers: 2, channels: 256, ranks: LOW },
  { type: 'Q4_K', layers: 2, channels: 768, ranks: LOW },
  { type: 'Q6_K', layers: 2, channels: 768, ranks: LOW },
  { type: 'Q5_K', layers: 1, channels: 2560, ffn: 2560, ranks: { w: 96, a: 96, v: 64, g: 320 } },
  { type: 'Q4_K', layers: 1, channels: 4096, ffn: 8192, ranks: { w: 128, a: 128, v: 96, g: 480 } },
] as const

/** Of a step. From 33 on weights of fewer bits have copies in f16. */
let maxTokens = 16

function runnerOf(backend: Backend, path: string, weightType?: WeightType): ModelRunner {
  const checkpoint = openCheckpoint(path)
  const model = loadRwkv7(checkpoint, backend, { weightType })
  checkpoint.close()
  return new ModelRunner(model, backend, { numSlots: 6, maxTokens, numSpares: 3, numKept: 5, fingerprint: '' })
}

/** Logits after each of the tokens, fed one at a time, and the final state. */
function feed(backend: Backend, path: string, weightType?: WeightType) {
  const runner = runnerOf(backend, path, weightType)
  runner.clearSlot(1)
  const logits = Array.from(TOKENS, (_, i) => {
    const tokens = TOKENS.subarray(i, i + 1)
    const [row] = runner.step([{ slot: 1, tokens, samples: [], allLogits: true }])
    return Float32Array.from(row!.logits!)
  })
  const state = runner.readState(1).result()
  runner.dispose()
  return { logits, state }
}

/** Tokens of each of several rows. */
const ROWS = [7, 8, 9].map((seed) => someTokens(6, seed))
/** Rows of each step: they join, leave and change places. */
const STEPS = [[1, 0], [0, 1], [1], [2, 1], [0, 2], [0], [2, 1], [1, 0], [2, 0]] as const

/**
 * Feeds the rows of each step their next tokens; returns the logits after each token of each row, and its final state.
 */
function feedSteps(runner: ModelRunner, steps: readonly (readonly number[])[]) {
  const slotOf = (row: number) => 5 - row
  const logits: Float32Array[][] = ROWS.map(() => [])
  for (const row of ROWS.keys()) runner.clearSlot(slotOf(row))
  for (const rows of steps) {
    const batch = rows.map((row) => {
      const at = logits[row]!.length
      const tokens = ROWS[row]!.subarray(at, at + 1)
      return { slot: slotOf(row), tokens, samples: [], allLogits: true }
    })
    for (const [i, result] of runner.step(batch).entries()) logits[rows[i]!]!.push(Float32Array.from(result.logits!))
  }
  return ROWS.map((_, row) => {
    const [shift, wkv] = runner.readState(slotOf(row)).result()
    return { logits: logits[row]!, wkv: wkv!, shift: shift! }
  })
}

/** A backend whose programs load weights this way, whatever the width. */
function backendOf(way: Way, options: CudaOptions): Backend {
  const backend = createCudaBackend(options)
  const { device } = backend
  const gemm = new Gemm(device)
  return {
    ...backend,
    record: (capacity, build) => new CudaProgram(device, gemm, capacity, build, options.graphs ?? true, () => way),
    dispose() {
      gemm.dispose()
      backend.dispose()
    },
  }
}

const RUNS = MODELS.flatMap((shape) =>
  (['warps', 'feed'] as const).map((way) => ({ way, shape, channels: shape.channels })),
)

/** The reference, with the values that fp8 holds for one of its matrices. */
function referenceBackend(): Backend {
  const backend = createReferenceBackend()
  const matrix: Backend['matrix'] = (source, type) =>
    type === 'fp8' ? inFp8(backend, source) : backend.matrix(source, type)
  return { ...backend, matrix }
}

/** Each way of running is close to the reference. */
function checkRuns(
  path: string,
  runs: readonly CudaOptions[],
  backendFor: (options: CudaOptions) => Backend,
  weightType?: WeightType,
): void {
  const expected = feed(referenceBackend(), path, weightType)
  for (const options of runs) {
    const actual = feed(backendFor(options), path, weightType)
    const what = JSON.stringify(options)
    const tolerance = 'wkv' in options ? 1e-2 : 3e-3
    for (const [i, logits] of actual.logits.entries())
      expect(rmsRatio(logits, expected.logits[i]!), `${what} token ${i}`).toBeLessThan(tolerance)
    for (const [i, array] of actual.state.entries())
      expect(rmsRatio(array, expected.state[i]!), what).toBeLessThan(tolerance)
  }
}

/** More heads of rows than multiprocessors; the first also has more columns of value than fit at a time. */
const SMALL_CHIPS = [
  { blocks: 2, way: 'warps', layers: 3, channels: 320, ranks: { w: 32, a: 32, v: 32, g: 64 } },
  { blocks: 20, way: 'feed', layers: 2, channels: 768, ranks: { w: 64, a: 64, v: 32, g: 128 } },
  { blocks: 60, way: 'feed', ...MODELS[5] },
] as const

function modelOf(shape: RandomRwkv7Options): string {
  const folder = mkdtempSync(join(tmpdir(), 'skein-'))
  return writeRandomRwkv7(join(folder, 'few.pth'), { ...shape, dtype: 'bf16' })
}

function ggufOf({ type, ...shape }: RandomRwkv7Options & { readonly type: PackedType }): string {
  const source = modelOf(shape)
  const path = source.replace(/pth$/, 'gguf')
  writeAsGguf(path, readTensors(source), { architecture: 'rwkv7', type, repeats: 2 ** 15 })
  return path
}

/** Rows that join, leave and change places have the bits that they have alone. */
function checkTogether(backend: Backend, path: string, weightType?: WeightType): void {
  const runner = runnerOf(backend, path, weightType)
  const alone = STEPS.flat().sort((a, b) => a - b)
  const expected = feedSteps(
    runner,
    alone.map((row) => [row]),
  )
  expect(feedSteps(runner, STEPS)).toEqual(expected)
  runner.dispose()
  backend.dispose()
}

/**
 * The states between the tokens of rows of one step, which begin after some tokens, are those that the rows have where each
 * is fed as many tokens in steps of one token of each.
 */
function checkKept(runner: ModelRunner, begins: readonly number[], lengths: readonly number[]): void {
  const rows = [...lengths.keys()]
  const step = (
    feeds: readonly { readonly row: number; readonly count: number; readonly keeps?: readonly number[] }[],
  ) =>
    runner.step(
      feeds.map(({ row, count, keeps }) => {
        const at = fed[row]!
        fed[row] = at + count
        const tokens = ROWS[row]!.subarray(at, at + count)
        const samples = Array.from({ length: count }, (_, position) => draw(row, { position }))
        const guesses = keeps && { count: count - 1, spares: keeps, every: 1 }
        return { slot: row, tokens, samples: guesses ? samples : [], ...(guesses ? { guesses } : {}) }
      }),
    )
  let fed: number[] = []
  const begin = () => {
    fed = ROWS.map(() => 0)
    for (const row of ROWS.keys()) runner.clearSlot(row)
    // All rows are fed, so that steps of one token of each are of one size.
    for (let i = 0; i < begins[0]!; i++)
      step([...ROWS.keys()].slice(0, begins.length).map((row) => ({ row, count: 1 })))
  }
  begin()
  const expected: unknown[][] = rows.map(() => [])
  for (let i = 0; i < Math.max(...lengths); i++) {
    step([...ROWS.keys()].slice(0, begins.length).map((row) => ({ row, count: 1 })))
    for (const row of rows) expected[row]!.push(runner.readState(row).result())
  }
  begin()
  let next = 0
  const kept = lengths.map((length) => Array.from({ length: length - 1 }, () => next++))
  step(rows.map((row) => ({ row, count: lengths[row]!, ...(lengths[row]! > 1 ? { keeps: kept[row]! } : {}) })))
  for (const row of rows)
    for (let i = lengths[row]! - 1; i >= 0; i--) {
      if (i < lengths[row]! - 1) runner.rewindSlot(row, kept[row]![i]!)
      expect(runner.readState(row).result(), `row ${row} of ${lengths}, token ${i}`).toEqual(expected[row]![i])
    }
}

/** A row fed two tokens at a time, among single ones and other rows, has the bits of one token at a time. */
function checkPairs(backend: Backend, path: string, weightType?: WeightType): void {
  const runner = runnerOf(backend, path, weightType)
  const feedCut = (lengths: readonly number[]) => {
    runner.clearSlot(3)
    runner.clearSlot(0)
    let at = 0
    const logits = lengths.flatMap((length) => {
      const tokens = TOKENS.subarray(at, at + length)
      at += length
      const [row] = runner.step([{ slot: 3, tokens, samples: [], allLogits: true }])
      const all = Float32Array.from(row!.logits!)
      return Array.from({ length }, (_, i) => all.slice((i * all.length) / length, ((i + 1) * all.length) / length))
    })
    return [logits, runner.readState(3).result(), runner.readState(0).result()]
  }
  const alone = feedCut(Array.from(TOKENS, () => 1))
  expect(feedCut([2, 2, 2, 2, 2, 2])).toEqual(alone)
  expect(feedCut([1, 2, 1, 1, 2, 2, 1, 2])).toEqual(alone)
  checkKept(runner, [1, 1], [2])
  runner.dispose()
  backend.dispose()
}

/** Tokens of each of ROWS in each step, three to eight in all. */
const SCHEDULES = [
  Array.from({ length: 6 }, () => [1, 1, 1]),
  [
    [2, 2, 2],
    [2, 2, 2],
    [2, 2, 2],
  ],
  [
    [6, 0, 0],
    [0, 6, 0],
    [0, 0, 6],
  ],
  [
    [3, 3, 2],
    [3, 0, 3],
    [0, 3, 1],
  ],
  [
    [1, 2, 0],
    [2, 1, 2],
    [0, 3, 1],
    [3, 0, 3],
  ],
] as const

/** Logits after each token of each row, and its state at the end. */
function feedSchedule(runner: ModelRunner, schedule: readonly (readonly number[])[]) {
  const logits: Float32Array[][] = ROWS.map(() => [])
  for (const row of ROWS.keys()) runner.clearSlot(row)
  for (const lengths of schedule) {
    const rows = [...ROWS.keys()].filter((row) => lengths[row]! > 0)
    const batch = rows.map((slot) => {
      const at = logits[slot]!.length
      return { slot, tokens: ROWS[slot]!.subarray(at, at + lengths[slot]!), samples: [], allLogits: true }
    })
    for (const [i, result] of runner.step(batch).entries()) {
      const all = Float32Array.from(result.logits!)
      const size = all.length / lengths[rows[i]!]!
      for (let at = 0; at < all.length; at += size) logits[rows[i]!]!.push(all.slice(at, at + size))
    }
  }
  return ROWS.map((_, row) => ({ logits: logits[row]!, state: runner.readState(row).result() }))
}

/** Steps of one and two tokens before and after steps of more. */
const MIXED_SCHEDULE = [
  [1, 0, 0],
  [0, 1, 1],
  [3, 2, 2],
  [1, 0, 0],
  [1, 3, 3],
] as const

/** Three to eight tokens, of rows of any length, are near the reference, and each has the same bits whatever is beside it. */
function checkEight(path: string, backendFor: (options: CudaOptions) => Backend, weightType?: WeightType): void {
  const reference = runnerOf(referenceBackend(), path, weightType)
  const exact = feedSchedule(reference, SCHEDULES[0])
  reference.dispose()
  for (const options of [{}, { wkv: 'f16' }, { graphs: false }] as const) {
    const backend = backendFor(options)
    const runner = runnerOf(backend, path, weightType)
    const expected = feedSchedule(runner, SCHEDULES[0])
    const what = JSON.stringify(options)
    const tolerance = 'wkv' in options ? 1e-2 : 3e-3
    for (const actual of [expected, feedSchedule(runner, MIXED_SCHEDULE)])
      for (const [row, { logits, state }] of actual.entries()) {
        for (const [i, one] of logits.entries())
          expect(rmsRatio(one, exact[row]!.logits[i]!), `${what} token ${i}`).toBeLessThan(tolerance)
        for (const [i, array] of state.entries())
          expect(rmsRatio(array, exact[row]!.state[i]!), what).toBeLessThan(tolerance)
      }
    // Twice: a shape's graph is made when it comes again.
    for (const schedule of [...SCHEDULES, ...SCHEDULES]) expect(feedSchedule(runner, schedule)).toEqual(expected)
    for (const lengths of [[3, 3, 2], [4, 1, 3], [5], [3, 3, 2], [4, 1, 3], [5]]) checkKept(runner, [1, 1, 1], lengths)
    runner.dispose()
    backend.dispose()
  }
}

/** Tokens of the steps of SCHEDULES and MIXED_SCHEDULE: each is one launch. */
const EIGHT_SIZES = [1, 2, 3, 4, 5, 6, 7, 8]

/** Models that eight-rows.cu takes: one to five stages of a row, of one part and of two; 16 and 32 columns of ffn.value. */
const EIGHT_MODELS = [
  { layers: 3, channels: 1024, ranks: { w: 32, a: 64, v: 32, g: 96 } },
  { layers: 2, channels: 2048, ranks: { w: 96, a: 96, v: 64, g: 256 } },
  { layers: 2, channels: 2560, ffn: 2560, ranks: { w: 96, a: 96, v: 64, g: 320 } },
  { layers: 2, channels: 4096, ffn: 4096, ranks: { w: 128, a: 128, v: 96, g: 480 } },
] as const

/**
 * Quantised models that eight-rows.cu takes: rows in one stage and in two, parts that some warps have more of than others
 * or none of, ffn.value in one chunk and in two.
 */
const EIGHT_ROUNDED = (['i8', 'q4', 'nf4', 'fp8'] as const)
  .filter((type) => isHeld({ type }))
  .flatMap((type) => [
    { type, layers: 2, channels: 1024, ffn: 2048, ranks: LOW },
    { type, layers: 2, channels: 2560, ffn: 2560, ranks: { w: 96, a: 96, v: 64, g: 320 } },
    { type, layers: 1, channels: 4096, ffn: 8192, ranks: { w: 128, a: 128, v: 96, g: 480 } },
  ])

const EIGHT_PACKED = [
  ...(['Q8_0', 'Q5_0', 'Q5_1', 'Q4_K', 'Q6_K'] as const).map((type) => ({
    type,
    layers: 2,
    channels: 1024,
    ranks: LOW,
  })),
  ...(['Q5_K', 'Q6_K'] as const).map((type) => ({
    ...{ type, layers: 1, channels: 4096, ffn: 4096 },
    ranks: { w: 128, a: 128, v: 96, g: 480 },
  })),
]

/** A backend without memory for copies of ffn.value. */
const WITHOUT_COPIES: CudaOptions = { graphs: false }

/** In one launch, with quantised ffn.value transposed and not. */
function checkBothValues(check: (backendFor: typeof createCudaBackend) => void): void {
  const run = vi.spyOn(FewRowsLayers.prototype, 'run')
  const take = vi.spyOn(CopyBudget.prototype, 'take')
  vi.spyOn(FewRowsLayers.prototype, 'turns').mockReturnValue(true)
  const runs: number[] = []
  check((options) => {
    runs.push(run.mock.calls.length)
    if (options === WITHOUT_COPIES) take.mockReturnValue(false)
    return createCudaBackend(options)
  })
  runs.push(run.mock.calls.length)
  for (const [i, count] of runs.slice(1).entries()) expect(count).toBeGreaterThan(runs[i]!)
  const results = take.mock.results.map(({ value }) => value)
  expect(new Set(results)).toEqual(new Set([true, false]))
}

/** Which steps were one launch. On a card with less shared memory than Hopper two tokens or eight may not be. */
function expectSizes(calls: readonly (readonly [unknown, StepShape])[], sizes: readonly number[]): void {
  const found = new Set(calls.map(([, { tokens }]) => tokens))
  if (cardInfo().sharedBytesPerBlock >= 227 << 10) expect(found).toEqual(new Set(sizes))
  else expect(found).toContain(1)
}

/** Two rows of a token, and a row of two, have the bits of one token at a time. */
function checkTwoTokens(path: string, weightType?: WeightType): void {
  const run = vi.spyOn(FewRowsLayers.prototype, 'run')
  checkBothValues((backendFor) => {
    for (const options of [{}, { wkv: 'f16' }, WITHOUT_COPIES] as const) {
      checkTogether(backendFor(options), path, weightType)
      checkPairs(backendFor(options), path, weightType)
    }
  })
  expectSizes(run.mock.calls, [1, 2])
}

/** Narrow models whose logits the launch makes: 8, 12 and 16 runs of a row, and five tiles of the head a block. */
const WITH_LOGITS = [512, 768, 1024].map((channels) => ({ layers: 2, channels, ranks: LOW, vocab: 10_008 }))

/** What steps of one and two tokens give: logits, hidden rows, and draws of blended and of kept rows. */
function outputsOf(runner: ModelRunner): unknown[] {
  for (const slot of [0, 1, 2]) runner.clearSlot(slot)
  const [a, b] = [TOKENS.subarray(0, 1), TOKENS.subarray(1, 2)]
  const spec = (slot: number) => draw(slot, { logprobs: 5 })
  const all = { samples: [], allLogits: true }
  const step = (...rows: Parameters<ModelRunner['step']>[0]) =>
    runner
      .step(rows)
      .map(({ drawn, logits, hidden }) => [
        drawn,
        logits && Float32Array.from(logits),
        hidden && Float32Array.from(hidden),
      ])
  const outputs = [
    step({ slot: 0, tokens: a, ...all }),
    step({ slot: 0, tokens: b, ...all }, { slot: 1, tokens: a, ...all }),
    step({ slot: 2, tokens: TOKENS.subarray(2, 4), ...all }),
    step({ slot: 0, tokens: a, samples: [spec(0)], hidden: 'last' }),
    step({ slot: 0, tokens: a, samples: [spec(0)], blend: { weight: 0.7, others: [{ slot: 1, weight: 0.3 }] } }),
    step({ slot: 0, tokens: a, samples: [] }, { slot: 1, tokens: b, samples: [spec(1)] }),
  ]
  const flight = runner.launch([{ slot: 1, tokens: a, samples: [spec(1)], drawsLater: true }])
  runner.drawLater([null])
  flight.result()
  // The kept row's logits are those of a step that feeds another row.
  outputs.push(step({ slot: 0, tokens: b, samples: [] }, { slot: 1, tokens: new Int32Array(), samples: [spec(1)] }))
  return outputs
}

const TIMES = { timeout: 120_000 }

describeCuda('few rows through all layers at once', () => {
  afterEach(() => {
    maxTokens = 16
    vi.restoreAllMocks()
  })

  test.each(RUNS)('$channels channels, weights loaded by $way', TIMES, ({ way, shape }) => {
    const path = modelOf(shape)
    checkRuns(path, [{}, { wkv: 'f16' }, { graphs: false }], (options) => backendOf(way, options))
  })

  test.each(RUNS)('$channels channels, weights loaded by $way: rows together as alone', TIMES, ({ way, shape }) => {
    const path = modelOf(shape)
    const run = vi.spyOn(FewRowsLayers.prototype, 'run')
    for (const options of [{}, { wkv: 'f16' }, { graphs: false }] as const) checkTogether(backendOf(way, options), path)
    expectSizes(run.mock.calls, [1, 2])
  })

  test.each(RUNS)('$channels channels, weights loaded by $way, two tokens of a row', TIMES, ({ way, shape }) => {
    const path = modelOf(shape)
    const run = vi.spyOn(FewRowsLayers.prototype, 'run')
    for (const options of [{}, { wkv: 'f16' }, { graphs: false }] as const) checkPairs(backendOf(way, options), path)
    expectSizes(run.mock.calls, [1, 2])
  })

  test.each(SMALL_CHIPS)('$channels channels on $blocks multiprocessors', TIMES, (one) => {
    const { blocks, way, ...shape } = one
    const path = modelOf(shape)
    vi.spyOn(CudaDevice.prototype, 'numSms', 'get').mockReturnValue(blocks)
    const run = vi.spyOn(FewRowsLayers.prototype, 'run')
    checkRuns(path, [{}], (options) => backendOf(way, options))
    checkTogether(backendOf(way, {}), path)
    checkPairs(backendOf(way, {}), path)
    expectSizes(run.mock.calls, [1, 2])
  })

  test.each(EIGHT_MODELS)('$channels channels, three to eight tokens', TIMES, (shape) => {
    const run = vi.spyOn(FewRowsLayers.prototype, 'run')
    checkEight(modelOf(shape), createCudaBackend)
    expectSizes(run.mock.calls, EIGHT_SIZES)
  })

  test.each(EIGHT_ROUNDED)('$channels channels of $type, three to eight tokens', TIMES, ({ type, ...shape }) => {
    const run = vi.spyOn(FewRowsLayers.prototype, 'run')
    checkEight(modelOf(shape), createCudaBackend, type)
    expectSizes(run.mock.calls, EIGHT_SIZES)
  })

  test.each(EIGHT_PACKED)("$channels channels of GGUF's $type, three to eight tokens", TIMES, (one) => {
    const run = vi.spyOn(FewRowsLayers.prototype, 'run')
    checkEight(ggufOf(one), createCudaBackend)
    expectSizes(run.mock.calls, EIGHT_SIZES)
  })

  test.each(WITH_LOGITS)('logits of $channels channels have the bits of their ops', TIMES, (shape) => {
    const path = modelOf(shape)
    const made = vi.spyOn(FewRowsLayers.prototype, 'makesLogits')
    const run = (options: CudaOptions) => {
      const backend = createCudaBackend(options)
      const runner = runnerOf(backend, path)
      const outputs = [outputsOf(runner), outputsOf(runner)]
      runner.dispose()
      backend.dispose()
      return outputs
    }
    const together = [run({}), run({ graphs: false })]
    const sizes = made.mock.calls.filter((_, i) => made.mock.results[i]!.value).map(([{ tokens }]) => tokens)
    expect(new Set(sizes)).toEqual(new Set(cardInfo().computeCapability[0] === 9 ? [1, 2] : []))
    made.mockReturnValue(false)
    const alone = run({})
    expect(together).toEqual([alone, alone])
  })

  test('a row that draws twice fits in the space of two rows', TIMES, () => {
    const runner = runnerOf(createCudaBackend(), modelOf(MODELS[0]))
    const drawn = (samples: readonly SampleSpec[]) => {
      runner.clearSlot(1)
      const [row] = runner.step([{ slot: 1, tokens: TOKENS.subarray(0, 1), samples }])
      const state = runner.readState(1).result()
      return { drawn: row!.drawn, state }
    }
    const samples = [1n, 2n].map((seed) => draw(1, { seed }))
    const both = drawn(samples)
    const each = samples.map((sample) => drawn([sample]))
    expect(both.drawn).toEqual(each.flatMap((one) => one.drawn))
    for (const { state } of each) expect(both.state).toEqual(state)
    runner.dispose()
  })

  test('words of an earlier turn of the epochs are not taken for new', TIMES, () => {
    const fill = vi.spyOn(CudaDevice.prototype, 'fill')
    const backend = createCudaBackend()
    const runner = runnerOf(backend, modelOf(MODELS[0]))
    const steps = [[0], [1, 0], [0, 1]] as const
    const expected = feedSteps(runner, steps)
    // The count of the barrier and the epoch of the last layer.
    const counts = fill.mock.calls.filter(([, value, bytes]) => value === 0 && bytes === 16)
    expect(counts.length).toBe(1)
    const beginAt = (epoch: number) => backend.device.upload(counts[0]![0], Uint32Array.of(epoch), 4)
    for (const left of [0, 1, 2, 3]) {
      beginAt(0)
      // Words of two rows now have the third epoch. Uncleared, the first step would take 0 to 2, and the second 3.
      feedSteps(runner, [[1, 0]])
      beginAt(2 ** 32 - 1 - left)
      expect(feedSteps(runner, steps)).toEqual(expected)
    }
    runner.dispose()
    backend.dispose()
  })

  test.each(ROUNDED)('$channels channels of $type', TIMES, ({ type, ...shape }) => {
    const path = modelOf(shape)
    checkBothValues((backendFor) => checkRuns(path, [{}, { wkv: 'f16' }, WITHOUT_COPIES], backendFor, type))
  })

  test.each((['i8', 'q4', 'nf4', 'fp8'] as const).filter((type) => isHeld({ type })))(
    'narrow models of %s by their copies in f16',
    TIMES,
    (type) => {
      maxTokens = 64
      const kernel = vi.spyOn(CudaDevice.prototype, 'kernel')
      const run = vi.spyOn(FewRowsLayers.prototype, 'run')
      const path = modelOf({ layers: 2, channels: 768, ranks: LOW })
      checkRuns(path, [{}, { wkv: 'f16' }, { graphs: false }], createCudaBackend, type)
      checkTogether(createCudaBackend(), path, type)
      checkPairs(createCudaBackend(), path, type)
      expectSizes(run.mock.calls, [1, 2])
      checkEight(modelOf({ layers: 2, channels: 1024, ffn: 2048, ranks: LOW }), createCudaBackend, type)
      const isHopper = cardInfo().computeCapability[0] === 9
      for (const [file, , defines] of kernel.mock.calls)
        if (file === 'few-rows') expect('QUANT' in defines!).toBe(!isHopper)
        else if (file === 'eight-rows') expect(defines).toHaveProperty('QUANT')
    },
  )

  test.each((['i8', 'fp8'] as const).filter((type) => isHeld({ type })))(
    '512 channels of %s on 3 multiprocessors',
    TIMES,
    (type) => {
      // More rows than threads; one block has columns of ffn.value twice, others once.
      const path = modelOf({ layers: 2, channels: 512, ffn: 1024, ranks: LOW })
      vi.spyOn(CudaDevice.prototype, 'numSms', 'get').mockReturnValue(3)
      const run = vi.spyOn(FewRowsLayers.prototype, 'run')
      checkBothValues((backendFor) => {
        for (const options of [{}, WITHOUT_COPIES]) {
          checkRuns(path, [options], backendFor, type)
          checkTogether(backendFor(options), path, type)
          checkPairs(backendFor(options), path, type)
        }
      })
      expectSizes(run.mock.calls, [1, 2])
    },
  )

  test.each(ROUNDED)('$channels channels of $type, two tokens', TIMES, ({ type, ...shape }) => {
    checkTwoTokens(modelOf(shape), type)
  })

  test.each(PACKED)("$channels channels of GGUF's $type", TIMES, (one) => {
    const path = ggufOf(one)
    checkBothValues((backendFor) => checkRuns(path, [{}, { wkv: 'f16' }, WITHOUT_COPIES], backendFor))
  })

  test.each(PACKED)("$channels channels of GGUF's $type, two tokens", TIMES, (one) => {
    checkTwoTokens(ggufOf(one))
  })

  test.skipIf(!hasFp8())('fp8 in one launch is close to the eight ops with the same weights', TIMES, () => {
    const path = modelOf({ layers: 2, channels: 768, ranks: LOW })
    const together = feed(createCudaBackend(), path, 'fp8')
    vi.spyOn(FewRowsLayers.prototype, 'takes').mockReturnValue(false)
    const alone = feed(createCudaBackend(), path, 'fp8')
    for (const [i, logits] of together.logits.entries())
      expect(rmsRatio(logits, alone.logits[i]!), `token ${i}`).toBeLessThan(1e-3)
  })
})
