import { expect, test } from 'vitest'
import type { Backend, StatePool } from '../../src/backend/backend.ts'
import { capacityFor, normals, raggedBatch, randomNorm, runOnce } from '../backend/kit.ts'
import { backendOfGroup, describeCuda } from './kit.ts'
import { BATCHES, compare, expectUnwritten, halves, poisonedHalves, randomStates, readStates } from './ops-kit.ts'

describeCuda('elementwise ops of RWKV-6 on cuda', () => {
  const cuda = backendOfGroup()

  test.each([1, 3, 5])('ddlerp of %i mixes', (count) => {
    for (const C of [64, 776, 4096]) {
      for (const tokens of [1, 7, 300]) {
        const capacity = capacityFor(tokens)
        const batch = raggedBatch(capacity, [tokens], [0], 1)
        compare(cuda(), 1e-3, `C ${C}, T ${tokens}`, (backend) => {
          const operand = (seed: number) => backend.activation([tokens + 2, C], halves((tokens + 2) * C, seed))
          const guarded = (seed: number) => {
            const values = halves((tokens + 2) * C, seed)
            return backend.activation([tokens + 2, C], values.fill(Number.NaN, tokens * C))
          }
          const mix = Array.from({ length: count }, (_, i) => guarded(10 + i))
          const base = mix.map((_, i) => backend.tensor([C], normals(C, 20 + i)))
          runOnce(backend, capacity, batch, (ops) => ops.ddlerp(mix, operand(1), operand(2), base))
          for (const one of mix) expectUnwritten(backend, one, tokens * C)
          return mix.map((one) => backend.readTensor(one, 0, tokens * C).result())
        })
      }
    }
  })

  test('gatedAdd', () => {
    for (const C of [64, 776, 4096]) {
      for (const tokens of [1, 300]) {
        const capacity = capacityFor(tokens)
        const batch = raggedBatch(capacity, [tokens], [0], 1)
        compare(cuda(), 1e-6, `C ${C}, T ${tokens}`, (backend) => {
          const count = (tokens + 2) * C
          const x = backend.tensor([tokens + 2, C], normals(count, 1).fill(7, tokens * C))
          const gate = backend.activation([tokens + 2, C], halves(count, 2))
          const value = backend.tensor([tokens + 2, C], normals(count, 3))
          runOnce(backend, capacity, batch, (ops) => ops.gatedAdd(x, gate, value))
          expect(
            backend
              .readTensor(x, tokens * C)
              .result()
              .every((one) => one === 7),
          ).toBe(true)
          return [backend.readTensor(x, 0, tokens * C).result()]
        })
      }
    }
  })
})

for (const wkv of ['f32', 'f16'] as const) {
  describeCuda(`wkv6 on cuda with ${wkv} states`, () => {
    const cuda = backendOfGroup({ wkv })

    const inputs = (backend: Backend, heads: number, tokens: number) => {
      const C = heads * 64
      const operand = (seed: number, scale = 1) =>
        backend.activation([tokens + 2, C], halves((tokens + 2) * C, seed, scale))
      return {
        // Decays from almost nothing kept to almost everything kept.
        operands: { r: operand(1), k: operand(2), v: operand(3), w: operand(4, 3), g: operand(5) },
        weights: { u: backend.tensor([C], normals(C, 6)), ln_x: randomNorm(backend, C, 64e-5, 7) },
        out: poisonedHalves(backend, [tokens + 2, C]),
      }
    }

    test.each([1, 5])('%i heads', (heads) => {
      for (const { lengths, slots } of BATCHES) {
        const C = heads * 64
        const tokens = lengths.reduce((a, b) => a + b, 0)
        const capacity = capacityFor(tokens, lengths.length)
        const batch = raggedBatch(capacity, lengths, slots, 1)
        const shape = { layers: 2, channels: C, heads, headSize: 64 }
        compare(cuda(), wkv === 'f32' ? 1e-3 : 3e-3, `rows ${lengths}`, (backend) => {
          const states = randomStates(backend, shape)
          const { operands, weights, out } = inputs(backend, heads, tokens)
          runOnce(backend, capacity, batch, (ops) => ops.wkv6(out, operands, weights, states, 1))
          expectUnwritten(backend, out, tokens * C)
          return [backend.readTensor(out, 0, tokens * C).result(), readStates(states, 'wkv')]
        })
      }
    })

    if (wkv === 'f32')
      test.each([1, 3, 16, 17])('by %i tokens = at once, to the bit of the state', (size) => {
        const [heads, total] = [3, 75]
        const shape = { layers: 1, channels: 192, heads, headSize: 64 }
        const all = inputs(cuda(), heads, total)
        const run = (pool: StatePool, from: number, count: number) => {
          const part = (seed: number, scale = 1) =>
            cuda().activation(
              [count, 192],
              halves((total + 2) * 192, seed, scale).slice(from * 192, (from + count) * 192),
            )
          const operands = { r: part(1), k: part(2), v: part(3), w: part(4, 3), g: part(5) }
          const capacity = { tokens: count, rows: 1, logits: 1, samples: 1 }
          const batch = raggedBatch(capacity, [count], [2], 1)
          runOnce(cuda(), capacity, batch, (ops) => ops.wkv6(all.out, operands, all.weights, pool, 0))
        }
        const [whole, parts] = [randomStates(cuda(), shape), randomStates(cuda(), shape)]
        run(whole, 0, total)
        for (let from = 0; from < total; from += size) run(parts, from, Math.min(size, total - from))
        expect(readStates(parts, 'wkv')).toEqual(readStates(whole, 'wkv'))
      })
  })
}
