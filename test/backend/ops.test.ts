import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Backend } from '../../src/backend/backend.ts'
import {
  BATCHES,
  capacityFor,
  compare,
  DEVICES,
  normals,
  poisoned,
  raggedBatch,
  randomNorm,
  randomSource,
  randomStates,
  read,
  readStates,
  runStep,
  SHAPES,
  wkv7Weights,
} from './kit.ts'

if (DEVICES.length === 0) test.skip('the cpu kernels are not built')

describe.each(DEVICES)('ops on $name', (device) => {
  let tested: Backend
  beforeAll(async () => {
    tested = await device.open()
  })
  afterAll(() => tested.dispose())

  test.each(['f32', 'f16', 'bf16'] as const)('embed from %s', async (dtype) => {
    for (const C of [64, 100, 250]) {
      const capacity = capacityFor(9)
      const batch = raggedBatch(capacity, [9], [0], 50)
      await compare(tested, 1e-5, `C ${C}`, async (backend) => {
        const x = poisoned(backend, [11, C])
        const table = backend.table(randomSource(50, C, dtype, C))
        await runStep(backend, capacity, batch, (ops) => ops.embed(x, table, randomNorm(backend, C, 1e-5, 1)))
        expect((await read(backend, x, 9 * C)).every(Number.isNaN)).toBe(true)
        return [await read(backend, x, 0, 9 * C)]
      })
    }
  })

  test.each([1, 6])('shiftMix with %i outputs', device.options, async (outputs) => {
    for (const channels of [64, 200, 1000]) {
      for (const { lengths, slots } of BATCHES) {
        const tokens = lengths.reduce((a, b) => a + b, 0)
        const capacity = capacityFor(tokens, lengths.length)
        const batch = raggedBatch(capacity, lengths, slots, 1)
        const shape = { layers: 2, channels, heads: 1, headSize: 16 }
        await compare(tested, 1e-5, `C ${channels}, rows ${lengths}`, async (backend) => {
          const states = await randomStates(backend, shape)
          const x = backend.tensor([tokens + 2, channels], normals((tokens + 2) * channels, 7, 3))
          const out = Array.from({ length: outputs }, () => poisoned(backend, [tokens + 2, channels]))
          const mix = out.map((_, i) => backend.tensor([channels], normals(channels, 20 + i)))
          await runStep(backend, capacity, batch, (ops) =>
            ops.shiftMix(out, x, randomNorm(backend, channels, 1e-5, 1), mix, states, 1, 1),
          )
          for (const y of out) expect((await read(backend, y, tokens * channels)).every(Number.isNaN)).toBe(true)
          return [
            ...(await Promise.all(out.map((y) => read(backend, y, 0, tokens * channels)))),
            await readStates(states),
          ]
        })
      }
    }
  })

  test.each([
    ['the first layer', true],
    ['a later layer', false],
  ] as const)('wkv7 of %s', device.options, async (_, isFirst) => {
    for (const [heads, headSize] of SHAPES) {
      for (const { lengths, slots } of BATCHES) {
        const C = heads * headSize
        const tokens = lengths.reduce((a, b) => a + b, 0)
        const capacity = capacityFor(tokens, lengths.length)
        const batch = raggedBatch(capacity, lengths, slots, 1)
        const shape = { layers: 2, channels: C, heads, headSize }
        await compare(tested, 1e-5, `${heads}×${headSize}, rows ${lengths}`, async (backend) => {
          const states = await randomStates(backend, shape)
          const operand = (seed: number, scale = 1) =>
            backend.tensor([tokens + 2, C], normals((tokens + 2) * C, seed, scale))
          const rate = (seed: number) =>
            backend.tensor(
              [tokens + 2, C],
              normals((tokens + 2) * C, seed).map((x) => 1 / (1 + Math.exp(-x))),
            )
          const out = poisoned(backend, [tokens + 2, C])
          const vFirst = isFirst ? poisoned(backend, [tokens + 2, C]) : operand(8)
          const operands = {
            r: operand(1),
            k: operand(2),
            v: operand(3),
            w: operand(4, 3),
            a: rate(5),
            g: operand(6),
            vFirst,
            ...(isFirst ? {} : { vGate: rate(7) }),
          }
          const weights = wkv7Weights(backend, C)
          await runStep(backend, capacity, batch, (ops) => ops.wkv7(out, operands, weights, states, isFirst ? 0 : 1))
          expect((await read(backend, out, tokens * C)).every(Number.isNaN)).toBe(true)
          return [
            await read(backend, out, 0, tokens * C),
            await read(backend, vFirst, 0, tokens * C),
            await readStates(states),
          ]
        })
      }
    }
  })

  test('wkv7 with k = 0 does not divide by a zero length', device.options, async () => {
    const capacity = capacityFor(1)
    const shape = { layers: 1, channels: 64, heads: 1, headSize: 64 }
    const states = tested.statePool(shape, 1)
    const zero = () => tested.tensor([3, 64])
    const one = () => tested.tensor([64], new Float32Array(64).fill(1))
    const out = poisoned(tested, [3, 64])
    const [r, k, v, w, a, g, vFirst] = [zero(), zero(), zero(), zero(), zero(), zero(), zero()]
    const weights = { k_k: one(), k_a: one(), r_k: one(), ln_x: randomNorm(tested, 64, 64e-5, 1) }
    await runStep(tested, capacity, raggedBatch(capacity, [1], [0], 1), (ops) =>
      ops.wkv7(out, { r, k, v, w, a, g, vFirst }, weights, states, 0),
    )
    expect((await read(tested, out, 0, 64)).every((y) => y === 0)).toBe(true)
  })

  test.each([false, true])('gatherNorm, blends: %s', async (blends) => {
    for (const C of [64, 100]) {
      const capacity = { tokens: 9, rows: 1, logits: 4, samples: 0 }
      const batch = raggedBatch(capacity, [9], [0], 1)
      batch.numLogits = 3
      batch.logitRows.set([8, 0, 5])
      if (blends) {
        batch.blendCounts.set([0, 2, 1])
        batch.blendWeights.set([9, 0.7, 0.3])
      }
      await compare(tested, 1e-5, `C ${C}`, async (backend) => {
        const x = backend.tensor([9, C], normals(9 * C, 1))
        const out = poisoned(backend, [4, C])
        await runStep(backend, capacity, batch, (ops) => ops.gatherNorm(out, x, randomNorm(backend, C, 1e-5, 3)))
        expect((await read(backend, out, 3 * C)).every(Number.isNaN)).toBe(true)
        return [await read(backend, out, 0, 3 * C)]
      })
    }
  })

  test('ops that read a poisoned state show it', async () => {
    const capacity = capacityFor(1)
    const states = await randomStates(tested, { layers: 1, channels: 64, heads: 1, headSize: 64 })
    states.poison(2)
    const out = poisoned(tested, [3, 64])
    const x = tested.tensor([3, 64], normals(192, 1))
    const mix = tested.tensor([64], normals(64, 2))
    await runStep(tested, capacity, raggedBatch(capacity, [1], [2], 1), (ops) =>
      ops.shiftMix([out], x, randomNorm(tested, 64, 1e-5, 1), [mix], states, 0, 0),
    )
    expect((await read(tested, out, 0, 64)).every(Number.isNaN)).toBe(true)
  })
})
