/**
 * Products of many tokens with the matrix units of subgroups: this needs a GPU that has them; no software adapter does.
 */
import { afterAll, expect, test } from 'vitest'
import type { Backend, Epilogue } from '../../src/backend/backend.ts'
import { createReferenceBackend } from '../../src/backend/reference/reference.ts'
import { openWebgpuBackend } from '../../src/backend/webgpu/webgpu.ts'
import type { WeightType } from '../../src/backend/weight-types.ts'
import { WEBGPU_PROBLEM } from '../helpers/webgpu.ts'
import { capacityFor, matrixOf, normals, poisoned, raggedBatch, randomSource, read, rmsRatio, runStep } from './kit.ts'

const reference = createReferenceBackend()
const opened = WEBGPU_PROBLEM === null ? await openWebgpuBackend() : null
afterAll(() => opened?.dispose())
const hasMatrices = opened !== null && opened.device.matrixSide !== null

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

test.skipIf(!hasMatrices).each(['add', 'relu2', 'tanh', 'sigmoid'] as const)(
  'epilogue %s of products by matrices',
  async (epilogue) => {
    const c = { rows: 136, columns: 64, type: 'bf16', tokens: 70, epilogue } as const
    const x = normals(70 * 64, 4)
    expect(rmsRatio(await multiply(opened!, c, x), await multiply(reference, c, x))).toBeLessThan(2e-3)
  },
)

test.skipIf(!hasMatrices)('values beyond f16 do not become finite numbers', async () => {
  const c = { rows: 64, columns: 64, type: 'bf16', tokens: 70 } as const
  const x = normals(70 * 64, 4)
  x[64 + 3] = Number.NaN
  x[128 + 3] = 1e9
  const y = await multiply(opened!, c, x)
  expect(y.subarray(64, 128).every(Number.isNaN)).toBe(true)
  // It becomes the largest number of f16.
  expect(y.subarray(128).every(Number.isFinite)).toBe(true)
  expect(y.subarray(0, 64).every(Number.isFinite)).toBe(true)
})
