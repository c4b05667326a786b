import { expect, test } from 'vitest'
import { capacityFor, normals, raggedBatch, randomNorm, randomSource, runOnce } from '../backend/kit.ts'
import { backendOfGroup, describeCuda } from './kit.ts'
import { BATCHES, compare, halves } from './ops-kit.ts'

const VOCABULARY = 300

describeCuda('what only RWKV-7a has on cuda', () => {
  const cuda = backendOfGroup()

  test.each(['f32', 'f16', 'bf16'] as const)('deepEmbed with a table of %s', (dtype) => {
    for (const [side, F] of [
      [32, 3072],
      [8, 96],
      [16, 2088],
      [64, 16384],
    ] as const)
      for (const { lengths, slots } of BATCHES) {
        const tokens = lengths.reduce((a, b) => a + b, 0)
        const capacity = capacityFor(tokens, lengths.length)
        const batch = raggedBatch(capacity, lengths, slots, VOCABULARY)
        compare(cuda(), 1e-3, `${side}, ${F} channels, rows ${lengths}`, (backend) => {
          const room = tokens + 2
          const random = (columns: number, seed: number) =>
            backend.activation([room, columns], halves(room * columns, seed, 0.5))
          const weights = {
            s_emb: backend.hostTable(randomSource(VOCABULARY, side * side, dtype, 5)),
            s2: backend.tensor([side * F], normals(side * F, 6)),
            s0: backend.tensor([F], normals(F, 7)),
          }
          const [u, low, own] = [random(F, 1), random(side, 2), random(side * side, 3)]
          runOnce(backend, capacity, batch, (ops) => ops.deepEmbed(u, low, own, weights))
          const behind = backend.readTensor(u, tokens * F).result()
          expect(behind).toEqual(halves(room * F, 1, 0.5).subarray(tokens * F))
          return [backend.readTensor(u, 0, tokens * F).result()]
        })
      }
  })

  test('embed into an activation', () => {
    for (const C of [64, 776, 4096]) {
      const capacity = capacityFor(7)
      const batch = raggedBatch(capacity, [7], [0], VOCABULARY)
      compare(cuda(), 1e-3, `C ${C}`, (backend) => {
        const x = backend.activation([9, C])
        const table = backend.table(randomSource(VOCABULARY, C, 'bf16', 1))
        const norm = randomNorm(backend, C, 1e-5, 2)
        runOnce(backend, capacity, batch, (ops) => ops.embed(x, table, norm))
        return [backend.readTensor(x, 0, 7 * C).result()]
      })
    }
  })
})
