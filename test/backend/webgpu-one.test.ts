/** Products of one token and of few, for which GPUs have kernels: here a processor is treated as the GPU that it emulates. */
import { afterAll, expect, test } from 'vitest'
import type { Backend, Ops, Tensor } from '../../src/backend/backend.ts'
import { createReferenceBackend } from '../../src/backend/reference/reference.ts'
import { openWebgpuBackend, type WebgpuBackend } from '../../src/backend/webgpu/webgpu.ts'
import type { WeightType } from '../../src/backend/weight-types.ts'
import { IS_SLOW } from '../helpers/slow.ts'
import { WEBGPU_PROBLEM } from '../helpers/webgpu.ts'
import {
  capacityFor,
  normals,
  poisoned,
  raggedBatch,
  randomSource,
  randomStates,
  read,
  rmsRatio,
  runStep,
} from './kit.ts'

const reference = createReferenceBackend()
const opened = WEBGPU_PROBLEM === null ? await openWebgpuBackend(0, { without: ['matrices', 'software'] }) : null
afterAll(() => opened?.dispose())

/** As a GPU that multiplies bytes, or not. */
function withDots(backend: WebgpuBackend, dots: boolean): WebgpuBackend {
  Object.defineProperty(backend.device, 'dots', { value: dots })
  return backend
}

/** Outputs of two products of one launch, [tokens, rows + 8]; after the inputs there is data that must not be read. */
async function multiply(backend: Backend, type: WeightType, rows: number, columns: number, tokens: number) {
  const capacity = capacityFor(tokens)
  const padded = new Float32Array((tokens + 2) * columns).fill(Number.NaN)
  padded.set(normals(8 * columns, 1).subarray(0, tokens * columns))
  const x = backend.tensor([tokens + 2, columns], padded)
  const bias = backend.tensor([rows], normals(rows, 2))
  const [y, z] = [poisoned(backend, [tokens + 2, rows]), poisoned(backend, [tokens + 2, 8])]
  const matrix = (height: number) => backend.matrix(randomSource(height, columns, 'bf16', height), type)
  await runStep(backend, capacity, raggedBatch(capacity, [tokens], [0], 1), (ops) =>
    ops.linear([
      { y, x, weight: matrix(rows), bias, epilogue: 'tanh' },
      { y: z, x, weight: matrix(8) },
    ]),
  )
  expect(await read(backend, y, tokens * rows)).toEqual(new Float32Array(2 * rows).fill(Number.NaN))
  return [await read(backend, y, 0, rows), await read(backend, z, 0, 8)] as const
}

/** Partial chunks, empty runs, partial blocks, pairs of blocks with one missing. */
const CASES = [
  ['bf16', 104, 96],
  ['bf16', 64, 2080],
  ['bf16', 6200, 64],
  ['bf16', 40, 8200],
  ['bf16', 4104, 8192],
  ['f16', 36, 1304],
  ['f16', 30, 50],
  ['f32', 40, 516],
  ['i8', 104, 1104],
  ['i8', 4104, 64],
  ['q4', 64, 2080],
  ['q4', 4104, 96],
  ['nf4', 20, 160],
] as const

// A processor compiles for seconds, so all sizes need SKEIN_SLOW=1.
test.skipIf(!opened).each(IS_SLOW ? CASES : CASES.slice(0, 2))(
  '%s, %i by %i: a token has the same bits alone and beside others',
  async (type, rows, columns) => {
    withDots(opened!, false)
    const alone = await multiply(opened!, type, rows, columns, 1)
    expect(alone).toEqual(await multiply(opened!, type, rows, columns, 3))
    const expected = await multiply(reference, type, rows, columns, 1)
    for (const [i, one] of alone.entries()) expect(rmsRatio(one, expected[i]!)).toBeLessThan(1e-5)
  },
)

/** Half a group of inputs at the end, pairs of blocks with one missing, more than one step. */
const CASES_OF_DOTS = [
  ['q4', 104, 1088],
  ['i8', 104, 1104],
  ['i8', 4104, 64],
  ['q4', 4104, 4160],
  ['q4', 6200, 2112],
] as const

test.skipIf(!opened).each(IS_SLOW ? CASES_OF_DOTS : CASES_OF_DOTS.slice(0, 2))(
  '%s, %i by %i, as bytes: a token has the same bits alone and beside others',
  async (type, rows, columns) => {
    withDots(opened!, true)
    const alone = await multiply(opened!, type, rows, columns, 1)
    for (const tokens of IS_SLOW ? [2, 3, 4] : [3]) {
      expect(await multiply(opened!, type, rows, columns, tokens)).toEqual(alone)
    }
    const expected = await multiply(reference, type, rows, columns, 1)
    // Inputs have 16 bits.
    for (const [i, one] of alone.entries()) {
      expect(rmsRatio(one, expected[i]!)).toBeLessThan(5e-5)
      expect(rmsRatio(one, expected[i]!)).toBeGreaterThan(2e-6)
    }
  },
)

test.skipIf(!opened)('as bytes, what is not a number stays so, and tiny numbers are zero', async () => {
  withDots(opened!, true)
  const columns = 96
  const x = normals(3 * columns, 4)
  x[columns + 40] = Number.NaN
  for (let i = 0; i < columns; i++) x[2 * columns + i] = 1e-37
  const capacity = capacityFor(3)
  const input = opened!.tensor(
    [5, columns],
    Float32Array.from({ length: 5 * columns }, (_, i) => x[i] ?? 0),
  )
  const y = poisoned(opened!, [5, 8])
  const weight = opened!.matrix(randomSource(8, columns, 'bf16', 8), 'q4')
  await runStep(opened!, capacity, raggedBatch(capacity, [3], [0], 1), (ops) => ops.linear([{ y, x: input, weight }]))
  const out = await read(opened!, y, 0, 24)
  expect(out.subarray(0, 8).every(Number.isFinite)).toBe(true)
  expect(out.subarray(8, 16).every(Number.isNaN)).toBe(true)
  expect([...out.subarray(16)]).toEqual(new Array(8).fill(0))
})

const CASES_KEPT = [
  ['q4', [2, 1]],
  ['q4', [1]],
  ['i8', [1]],
  ['i8', [4, 2]],
] as const

test.skipIf(!opened).each(IS_SLOW ? CASES_KEPT : CASES_KEPT.slice(0, 1))(
  'what ops keep as bytes for products of %s is what these would round themselves, rows of %j',
  async (type, lengths) => {
    const backend = withDots(opened!, true)
    // Two workgroups of norms have unequal parts.
    const [heads, headSize] = [9, 32]
    const C = heads * headSize
    const tokens = lengths.reduce((sum, length) => sum + length, 0)
    const capacity = capacityFor(tokens, lengths.length)
    const batch = raggedBatch(capacity, lengths, [1, 0], 1)
    batch.numLogits = tokens
    batch.logitRows.set(Array.from({ length: tokens }, (_, i) => tokens - 1 - i))
    const states = await randomStates(backend, { layers: 1, channels: C, heads, headSize })
    const vector = (seed: number) => backend.tensor([C], normals(C, seed))
    const norm = { weight: vector(1), bias: vector(2), eps: 1e-5 }
    const input = (seed: number) => backend.tensor([tokens + 2, C], normals((tokens + 2) * C, seed))
    const [x, r, k, v, w, a, g, vFirst] = [20, 21, 22, 23, 24, 25, 26, 27].map(input) as Inputs
    const room = () => poisoned(backend, [tokens + 2, C])
    const [first, second, y, hidden] = [room(), room(), room(), room()]
    const weight = backend.matrix(randomSource(16, C, 'bf16', 5), type)
    // Of a product, whose last group is not whole.
    const F = 80 + (type === 'q4' ? 16 : 0)
    const key = backend.matrix(randomSource(F, C, 'bf16', 6), type)
    const value = backend.matrix(randomSource(16, F, 'bf16', 7), type)
    const u = poisoned(backend, [tokens + 2, F])
    // Of 16 bits, which a launch of one token takes along: runs of two units and of none, a block that is not whole.
    const low = backend.matrix(randomSource(20, C, 'bf16', 8), 'bf16')
    const multiply = (ops: Ops, outputs: readonly Tensor[]) => {
      const of = (i: number, x: Tensor) => ({ y: outputs[i]!, x, weight })
      const lows = [first, second].map((x, i) => ({ y: outputs[5 + i]!, x, weight: low, bias: vector(14) }))
      ops.linear([of(0, first), ...lows, of(1, second)])
      ops.linear([of(2, y)])
      ops.linear([{ y: u, x: second, weight: key, epilogue: 'relu2' }])
      ops.linear([{ y: outputs[3]!, x: u, weight: value }])
      ops.logits(outputs[4]!, hidden, weight)
    }
    const widths = [16, 16, 16, 16, 16, 20, 20]
    const [kept, rounded] = [0, 1].map(() =>
      Array.from({ length: 7 }, (_, i) => poisoned(backend, [tokens + 2, widths[i]!])),
    ) as [Tensor[], Tensor[]]
    await runStep(backend, capacity, batch, (ops) => {
      ops.shiftMix([first, room(), second], x, norm, [vector(3), vector(4), vector(5)], states, 0, 0)
      const weights = { k_k: vector(11), k_a: vector(12), r_k: vector(13), ln_x: norm }
      ops.wkv7(y, { r, k, v, w, a, g, vFirst }, weights, states, 0)
      ops.gatherNorm(hidden, x, norm)
      multiply(ops, kept)
    })
    await runStep(backend, capacity, batch, (ops) => multiply(ops, rounded))
    for (const [i, one] of kept.entries()) {
      const values = await read(backend, one, 0, widths[i]! * tokens)
      expect(values.every(Number.isFinite)).toBe(true)
      expect(values, `product ${i}`).toEqual(await read(backend, rounded[i]!, 0, widths[i]! * tokens))
    }
  },
)

type Inputs = [Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
