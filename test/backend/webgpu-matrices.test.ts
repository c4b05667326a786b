/**
 * Products of many tokens with the matrix units of subgroups: this needs a GPU that has them; no software adapter does.
 */
import { mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, test } from 'vitest'
import type { Backend, Epilogue } from '../../src/backend/backend.ts'
import { landed } from '../../src/backend/flight.ts'
import { createReferenceBackend } from '../../src/backend/reference/reference.ts'
import { LEAST_BY_MATRICES } from '../../src/backend/webgpu/products/halves.ts'
import { openWebgpuBackend } from '../../src/backend/webgpu/webgpu.ts'
import type { WeightType } from '../../src/backend/weight-types.ts'
import { prepareDevice } from '../../src/host/device-choice.ts'
import { loadRunner } from '../../src/host/load.ts'
import { writeRandomRwkv7 } from '../helpers/pth.ts'
import { ARCHITECTURES, someTokens, tinyModel, tinyRunner } from '../helpers/runner.ts'
import { WEBGPU_PROBLEM } from '../helpers/webgpu.ts'
import { capacityFor, matrixOf, normals, poisoned, raggedBatch, randomSource, read, rmsRatio, runStep } from './kit.ts'

const reference = createReferenceBackend()
const opened = WEBGPU_PROBLEM === null ? await openWebgpuBackend() : null
afterAll(() => opened?.dispose())
const hasMatrices = opened !== null && opened.device.matrices !== null

interface Case {
  readonly rows: number
  readonly columns: number
  readonly type: WeightType
  readonly tokens: number
  readonly epilogue?: Epilogue
}

async function multiply(backend: Backend, c: Case, x: Float32Array): Promise<Float32Array> {
  const { rows, columns, type, tokens, epilogue = 'none' } = c
  const capacity = capacityFor(tokens)
  const weight = matrixOf(backend, randomSource(rows, columns, 'bf16', rows + columns), type)
  const room = [tokens + 2, rows]
  const y = epilogue === 'add' ? backend.tensor(room) : poisoned(backend, room)
  // After the last token there is data that must not be read.
  const padded = new Float32Array((tokens + 2) * columns).fill(Number.NaN)
  padded.set(x)
  const input = backend.tensor([tokens + 2, columns], padded)
  const bias = backend.tensor([rows], normals(rows, 6))
  await runStep(backend, capacity, raggedBatch(capacity, [tokens], [0], 1), (ops) =>
    ops.linear([{ y, x: input, weight, bias, epilogue }]),
  )
  return read(backend, y, 0, tokens * rows)
}

test.skipIf(!hasMatrices).each(['f16', 'bf16', 'i8', 'q4', 'nf4'] as const)(
  '%s products by matrices are near the reference, and no neighbour changes them',
  async (type) => {
    for (const [rows, columns] of [
      [64, 64],
      [200, 96],
      [2048, 320],
      [100, 1024],
      // So many outputs have larger tiles at 300 tokens than at 65.
      [8192, 192],
    ] as const) {
      const [few, many] = [65, 300]
      const x = normals(many * columns, 3)
      const all = await multiply(opened!, { rows, columns, type, tokens: many }, x)
      const expected = await multiply(reference, { rows, columns, type, tokens: many }, x)
      expect(rmsRatio(all, expected), `${rows}×${columns}`).toBeLessThan(1e-3)
      const part = x.slice((many - few) * columns)
      const alone = await multiply(opened!, { rows, columns, type, tokens: few }, part)
      expect(alone).toEqual(all.slice((many - few) * rows))
    }
  },
)

test.skipIf(!hasMatrices).each(['f16', 'bf16', 'i8', 'q4', 'nf4'] as const)(
  'few tokens of %s by matrices are near the reference, and no neighbour changes them',
  async (type) => {
    for (const [rows, columns] of [
      [64, 1024],
      [200, 1120],
      // Short rows, and many outputs, have other forms, and of these long rows.
      [200, 96],
      [8192, 1024],
      ...(type === 'bf16' ? [[8192, 4096] as const] : []),
    ] as const) {
      const most = 40
      const x = normals(most * columns, 3)
      const all = await multiply(opened!, { rows, columns, type, tokens: most }, x)
      expect(rmsRatio(all, await multiply(reference, { rows, columns, type, tokens: most }, x))).toBeLessThan(1e-3)
      // Of other numbers of tokens a workgroup has other tiles.
      for (const [first, tokens] of [
        [0, LEAST_BY_MATRICES],
        [13, 12],
        [5, 32],
      ] as const) {
        const part = x.slice(first * columns, (first + tokens) * columns)
        const some = await multiply(opened!, { rows, columns, type, tokens }, part)
        expect(some, `${tokens} of ${rows}×${columns}`).toEqual(all.slice(first * rows, (first + tokens) * rows))
      }
    }
  },
)

test.skipIf(!hasMatrices).each(['add', 'relu2', 'tanh', 'sigmoid'] as const)(
  'epilogue %s of products by matrices',
  async (epilogue) => {
    const c = { rows: 136, columns: 64, type: 'bf16', tokens: 70, epilogue } as const
    const x = normals(70 * 64, 4)
    expect(rmsRatio(await multiply(opened!, c, x), await multiply(reference, c, x))).toBeLessThan(2e-3)
  },
)

test.skipIf(!hasMatrices).each(['i8', 'q4'] as const)('%s weights of every size keep their digits', async (type) => {
  const [rows, columns, tokens] = [64, 1024, 20]
  const sizes = [4e-3, 4, 4000]
  const values = normals(rows * columns, 7).map((value, i) => value * sizes[Math.floor(i / columns) % 3]!)
  const readRows = (start: number, end: number) => new Uint8Array(values.slice(start * columns, end * columns).buffer)
  const input = normals((tokens + 2) * columns, 4)
  const multiplied = async (backend: Backend) => {
    const weight = backend.matrix({ name: 'of many sizes', rows, columns, dtype: 'f32', readRows }, type)
    const capacity = capacityFor(tokens)
    const x = backend.tensor([tokens + 2, columns], input)
    const y = backend.tensor([tokens + 2, rows])
    await runStep(backend, capacity, raggedBatch(capacity, [tokens], [0], 1), (ops) => ops.linear([{ y, x, weight }]))
    return read(backend, y, 0, tokens * rows)
  }
  const [actual, expected] = [await multiplied(opened!), await multiplied(reference)]
  for (const size of sizes.keys()) {
    const own = (all: Float32Array) => all.filter((_, i) => (i % rows) % 3 === size)
    expect(rmsRatio(own(actual), own(expected)), `${sizes[size]}`).toBeLessThan(1e-3)
  }
})

test.skipIf(!hasMatrices).each(['bf16', 'i8', 'q4'] as const)(
  'a weight that is not a number shows in its output alone: %s',
  async (type) => {
    const [rows, columns, tokens] = [64, 64, 70]
    const values = normals(rows * columns, 7)
    values[5 * columns + 3] = Number.NaN
    const readRows = (start: number, end: number) => new Uint8Array(values.slice(start * columns, end * columns).buffer)
    const weight = opened!.matrix({ name: 'with NaN', rows, columns, dtype: 'f32', readRows }, type)
    const capacity = capacityFor(tokens)
    const x = opened!.tensor([tokens + 2, columns], normals((tokens + 2) * columns, 4))
    const y = opened!.tensor([tokens + 2, rows])
    await runStep(opened!, capacity, raggedBatch(capacity, [tokens], [0], 1), (ops) => ops.linear([{ y, x, weight }]))
    const wrong = [...(await read(opened!, y, 0, tokens * rows))].flatMap((value, i) =>
      Number.isFinite(value) ? [] : [i % rows],
    )
    expect(wrong).toEqual(new Array<number>(tokens).fill(5))
  },
)

test.skipIf(!hasMatrices)('what is not a number stays so', async () => {
  const [rows, columns, tokens] = [64, 64, 70]
  const x = normals(tokens * columns, 4)
  x[64 + 3] = Number.NaN
  x[128 + 3] = 1e9
  const y = await multiply(opened!, { rows, columns, type: 'bf16', tokens }, x)
  expect(y.subarray(64, 128).every(Number.isNaN)).toBe(true)
  // It becomes the largest number of f16.
  expect(y.subarray(128).every(Number.isFinite)).toBe(true)
  expect(y.subarray(0, 64).every(Number.isFinite)).toBe(true)
})

type Quant = 'bf16' | 'int8' | 'q4'

/** Logits of a token of each row, after a prompt for each. */
async function answers(device: 'cpu' | 'webgpu', model: string, quant: Quant, prompt: number): Promise<Float32Array[]> {
  await prepareDevice({ device })
  const slots = Array.from({ length: LEAST_BY_MATRICES }, (_, slot) => slot)
  const runner = loadRunner({ model, device, quant, slots: slots.length, maxTokens: 512 })
  const step = (length: number, allLogits: boolean) => {
    const rows = slots.map((slot) => ({ slot, tokens: someTokens(length, slot + length), samples: [], allLogits }))
    return landed(runner.launch(rows))
  }
  await step(prompt, false)
  const logits = (await step(1, true)).map((row) => Float32Array.from(row.logits!))
  runner.dispose()
  return logits
}

const WIDE = { layers: 2, channels: 1024, ffn: 1024 }

function wideModel(): string {
  return writeRandomRwkv7(join(mkdtempSync(join(tmpdir(), 'skein-')), 'wide.pth'), { ...WIDE, dtype: 'bf16' })
}

// Where ops write what products read as f16, where a launch of its own rounds it, and where low ranks are beside integers.
test
  .skipIf(!hasMatrices)
  .each([
    ...ARCHITECTURES.map((name) => [name, 'bf16'] as const),
    ['wide', 'bf16'],
    ['wide', 'int8'],
    ['wide', 'q4'],
  ] as const)('a model by matrices (%s, %s) has about the logits of the cpu', async (name, quant) => {
  const model = name === 'wide' ? wideModel() : tinyModel(name)
  const prompt = name === 'wide' ? 2 : 30
  const expected = await answers('cpu', model, quant, prompt)
  const actual = await answers('webgpu', model, quant, prompt)
  for (const [i, logits] of actual.entries()) {
    const ratio = rmsRatio(logits, expected[i]!)
    expect(ratio).toBeLessThan(quant === 'bf16' ? 5e-3 : 1e-2)
    // Sums of f32 are nearer.
    expect(ratio).toBeGreaterThan(2e-5)
  }
})

test.skipIf(!hasMatrices).each(ARCHITECTURES)(
  'a prompt of %s has the same bits in any steps of five tokens to 64, and in any of more',
  async (architecture) => {
    await prepareDevice({ device: 'webgpu' })
    const runner = tinyRunner('webgpu', { architecture, quant: 'bf16' })
    const step = async (tokens: Int32Array) => {
      const [result] = await landed(runner.launch([{ slot: 1, tokens, samples: [], allLogits: tokens.length === 1 }]))
      return result!
    }
    const feed = async (sizes: readonly number[]) => {
      const tokens = someTokens(
        sizes.reduce((sum, size) => sum + size),
        9,
      )
      runner.clearSlot(1)
      let start = 0
      for (const size of sizes) {
        await step(tokens.subarray(start, start + size))
        start += size
      }
      const state = await landed(runner.readState(1))
      return { state, logits: Float32Array.from((await step(someTokens(1, 8))).logits!) }
    }
    const few = await feed([60])
    for (const sizes of [[30, 30], [5, 20, 35], Array<number>(12).fill(5)]) expect(await feed(sizes)).toEqual(few)
    const many = await feed([220])
    for (const sizes of [
      [110, 110],
      [65, 90, 65],
    ])
      expect(await feed(sizes)).toEqual(many)
    runner.dispose()
  },
)

test.skipIf(!hasMatrices).each([
  ['bf16', [5, 9, 6], [12, 33, 17]],
  ['bf16', [1, 1, 1], [4, 2, 3]],
  ['q4', [5, 9, 6], [12, 33, 17]],
  ['int8', [1, 1, 1], [4, 2, 3]],
  ['q4', [1, 1, 1], [4, 2, 3]],
] as const)(
  'a row of %s has the same bits in steps of %j tokens and of %j, and continues so',
  async (quant, some, others) => {
    await prepareDevice({ device: 'webgpu' })
    const runner = loadRunner({ model: wideModel(), device: 'webgpu', quant, slots: 40, maxTokens: 64 })
    const answer = async (counts: readonly number[]) => {
      for (let slot = 0; slot < 40; slot++) runner.clearSlot(slot)
      let logits = new Float32Array(0)
      for (const [t, count] of counts.entries()) {
        const rows = Array.from({ length: count }, (_, slot) => ({
          slot,
          tokens: someTokens(1, slot + 7 * t),
          samples: [],
          allLogits: true,
        }))
        logits = Float32Array.from((await landed(runner.launch(rows)))[0]!.logits!)
      }
      return logits
    }
    const expected = await answer(some)
    expect(await answer(others)).toEqual(expected)
    runner.dispose()
  },
)
