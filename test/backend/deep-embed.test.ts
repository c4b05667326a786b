import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Backend } from '../../src/backend/backend.ts'
import { createReferenceBackend } from '../../src/backend/reference/reference.ts'
import type { SourceType } from '../../src/backend/weight-types.ts'
import { capacityFor, DEVICES, normals, raggedBatch, randomSource, read, rmsRatio, runStep } from './kit.ts'

const reference = createReferenceBackend()
const VOCABULARY = 50

test('a token with two channels, computed by hand', async () => {
  const capacity = capacityFor(1)
  const tensor = (shape: readonly number[], ...values: number[]) => reference.tensor(shape, Float32Array.from(values))
  const table = new Float32Array([0, 0, 0, 0, 1, 2, 3, 4])
  const s_emb = reference.hostTable({
    name: 'table',
    rows: 2,
    columns: 4,
    dtype: 'f32',
    readRows: (start, end) => new Uint8Array(table.buffer, 16 * start, 16 * (end - start)),
  })
  const u = tensor([1, 2], 10, 100)
  const weights = { s_emb, s2: tensor([2, 2], 1, 2, 3, 4), s0: tensor([2], 0.5, 1) }
  const batch = raggedBatch(capacity, [1], [0], 1)
  batch.tokens[0] = 1
  await runStep(reference, capacity, batch, (ops) =>
    ops.deepEmbed(u, tensor([1, 2], 1, 2), tensor([1, 4], 1, 0, 0, 1), weights),
  )
  // M = [[2, 2], [3, 5]]; [1, 2]·M = [8, 12]; times s2 and with s0 [44.5, 65].
  expect([...(await read(reference, u, 0, 2))]).toEqual([445, 6500])
})

if (DEVICES.length === 0) test.skip('the cpu kernels are not built')

describe.each(DEVICES)('DeepEmbed on $name', ({ open }) => {
  let tested: Backend
  beforeAll(async () => {
    tested = await open()
  })
  afterAll(() => tested.dispose())

  async function play(
    backend: Backend,
    [side, F]: readonly [number, number],
    dtype: SourceType,
    lengths: readonly number[],
  ): Promise<Float32Array> {
    const tokens = lengths.reduce((a, b) => a + b, 0)
    const capacity = capacityFor(tokens, lengths.length)
    const room = tokens + 2
    const random = (columns: number, seed: number) => backend.tensor([room, columns], normals(room * columns, seed))
    const weights = {
      s_emb: backend.hostTable(randomSource(VOCABULARY, side * side, dtype, 5)),
      s2: backend.tensor([side * F], normals(side * F, 6)),
      s0: backend.tensor([F], normals(F, 7)),
    }
    const [u, low, own] = [random(F, 1), random(side, 2), random(side * side, 3)]
    const slots = lengths.map((_, b) => b)
    const batch = raggedBatch(capacity, lengths, slots, VOCABULARY)
    await runStep(backend, capacity, batch, (ops) => ops.deepEmbed(u, low, own, weights))
    // Data behind the last token is unchanged.
    expect(await read(backend, u, tokens * F)).toEqual(normals(room * F, 1).subarray(tokens * F))
    return read(backend, u, 0, tokens * F)
  }

  test.each(['f32', 'f16', 'bf16'] as const)('a table of %s', async (dtype) => {
    // Sizes of the released models; partial vectors and ranges; the largest matrix.
    for (const sizes of [
      [32, 3072],
      [8, 100],
      [16, 2090],
      [64, 256],
    ] as const)
      for (const lengths of [[1], [3, 4], [70]])
        expect(
          rmsRatio(await play(tested, sizes, dtype, lengths), await play(reference, sizes, dtype, lengths)),
          `${sizes}, rows ${lengths}`,
        ).toBeLessThan(1e-6)
  })

  test('a token without a row in the table is refused', async () => {
    const capacity = capacityFor(1)
    const weights = {
      s_emb: tested.hostTable(randomSource(VOCABULARY, 64, 'f32', 5)),
      s2: tested.tensor([64]),
      s0: tested.tensor([8]),
    }
    const batch = raggedBatch(capacity, [1], [0], 1)
    batch.tokens[0] = VOCABULARY
    const [u, low, own] = [8, 8, 64].map((n) => tested.tensor([3, n])) as [never, never, never]
    await expect(runStep(tested, capacity, batch, (ops) => ops.deepEmbed(u, low, own, weights))).rejects.toThrow(
      'token id',
    )
  })
})
