import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Backend } from '../../src/backend/backend.ts'
import { landed } from '../../src/backend/flight.ts'
import { createReferenceBackend } from '../../src/backend/reference/reference.ts'
import {
  BATCHES,
  capacityFor,
  compare,
  DEVICES,
  normals,
  poisoned,
  raggedBatch,
  randomNorm,
  randomStates,
  read,
  readStates,
  runStep,
  SHAPES,
} from './kit.ts'

const reference = createReferenceBackend()

/** Channels: whole vectors, a partial one, and more than one range of the elementwise ops. */
const CHANNELS = [64, 100, 1024, 2090] as const

test('wkv6 with one channel, computed by hand', async () => {
  const capacity = capacityFor(2)
  const states = reference.statePool({ layers: 1, channels: 2, heads: 1, headSize: 2 }, 1)
  const tensor = (...values: number[]) => reference.tensor([2, 2], Float32Array.from(values))
  const vector = (...values: number[]) => reference.tensor([2], Float32Array.from(values))
  const out = poisoned(reference, [2, 2])
  const operands = {
    r: tensor(1, 2, 3, 4),
    k: tensor(5, 6, 7, 8),
    v: tensor(1, 3, 2, 5),
    // exp(−exp(log(log 2))) = ½: every token halves key channel 0 and forgets key channel 1.
    w: tensor(Math.log(Math.log(2)), 90, Math.log(Math.log(2)), 90),
    g: tensor(1, 1, 1, 1),
  }
  const ln_x = { weight: vector(1, 1), bias: vector(0, 0), eps: 64e-5 }
  const batch = raggedBatch(capacity, [2], [0], 1)
  await runStep(reference, capacity, batch, (ops) => ops.wkv6(out, operands, { u: vector(0.5, 0.25), ln_x }, states, 0))
  // Rows are values, columns keys: v kᵀ of the first token, decayed, plus v kᵀ of the second.
  expect([...(await landed(states.read(0)))[1]!]).toEqual([2.5 + 14, 16, 7.5 + 35, 40])
  // A norm over two channels leaves their signs; silu(1) = 1 / (1 + 1/e).
  const [a, b] = await read(reference, out, 2)
  const silu = 1 / (1 + Math.exp(-1))
  expect(a).toBeCloseTo(-silu, 4)
  expect(b).toBeCloseTo(silu, 4)
})

if (DEVICES.length === 0) test.skip('the cpu kernels are not built')

describe.each(DEVICES)('RWKV-6 ops on $name', (device) => {
  let tested: Backend
  beforeAll(async () => {
    tested = await device.open()
  })
  afterAll(() => tested.dispose())

  test('wkv6', async () => {
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
          const out = poisoned(backend, [tokens + 2, C])
          const operands = { r: operand(1), k: operand(2), v: operand(3), w: operand(4, 3), g: operand(6) }
          const weights = { u: backend.tensor([C], normals(C, 11)), ln_x: randomNorm(backend, C, 64e-5, 14) }
          await runStep(backend, capacity, batch, (ops) => ops.wkv6(out, operands, weights, states, 1))
          expect((await read(backend, out, tokens * C)).every(Number.isNaN)).toBe(true)
          return [await read(backend, out, 0, tokens * C), await readStates(states)]
        })
      }
    }
  })

  test('wkv6 at the limits of the decay: nothing kept, everything kept, NaN', async () => {
    const capacity = capacityFor(1)
    const C = 64
    const states = await randomStates(tested, { layers: 1, channels: C, heads: 1, headSize: C })
    const old = (await landed(states.read(3)))[1]!
    const logits = new Float32Array(3 * C).map((_, i) => [100, 1e30, -100, -1e30][i % 4]!)
    const full = (value: number) => tested.tensor([3, C], new Float32Array(3 * C).fill(value))
    const out = poisoned(tested, [3, C])
    const weights = { u: tested.tensor([C]), ln_x: randomNorm(tested, C, 64e-5, 1) }
    const operands = { r: full(1), k: full(0), v: full(1), w: tested.tensor([3, C], logits), g: full(1) }
    const batch = raggedBatch(capacity, [1], [3], 1)
    await runStep(tested, capacity, batch, (ops) => ops.wkv6(out, operands, weights, states, 0))
    const kept = (await landed(states.read(3)))[1]!.map((s) => s + 0) // −0 is accepted as 0
    expect(kept).toEqual(old.map((s, i) => (i % 4 < 2 ? 0 : s)))
    const nan = { ...operands, w: full(Number.NaN) }
    await runStep(tested, capacity, batch, (ops) => ops.wkv6(out, nan, weights, states, 0))
    expect((await landed(states.read(3)))[1]!.every(Number.isNaN)).toBe(true)
  })

  test('wkv6 shows a poisoned state', async () => {
    const capacity = capacityFor(1)
    const states = await randomStates(tested, { layers: 1, channels: 64, heads: 1, headSize: 64 })
    states.poison(2)
    const operand = (seed: number) => tested.tensor([3, 64], normals(192, seed))
    const out = poisoned(tested, [3, 64])
    const operands = { r: operand(1), k: operand(2), v: operand(3), w: operand(4), g: operand(5) }
    const weights = { u: tested.tensor([64]), ln_x: randomNorm(tested, 64, 64e-5, 1) }
    await runStep(tested, capacity, raggedBatch(capacity, [1], [2], 1), (ops) =>
      ops.wkv6(out, operands, weights, states, 0),
    )
    expect((await read(tested, out, 0, 64)).every(Number.isNaN)).toBe(true)
  })

  test.each([1, 5])('ddlerp of %i mixes', async (outputs) => {
    for (const C of CHANNELS) {
      for (const tokens of [1, 9]) {
        const capacity = capacityFor(tokens)
        const batch = raggedBatch(capacity, [tokens], [0], 1)
        const size = (tokens + 2) * C
        await compare(tested, 1e-5, `C ${C}, ${tokens} tokens`, async (backend) => {
          const activation = (seed: number) => backend.tensor([tokens + 2, C], normals(size, seed))
          const [h, prev] = [activation(1), activation(2)]
          const mix = Array.from({ length: outputs }, (_, i) => activation(10 + i))
          const base = mix.map((_, i) => backend.tensor([C], normals(C, 20 + i)))
          await runStep(backend, capacity, batch, (ops) => ops.ddlerp(mix, h, prev, base))
          for (const [i, y] of mix.entries())
            expect(await read(backend, y, tokens * C)).toEqual(normals(size, 10 + i).subarray(tokens * C))
          return Promise.all(mix.map((y) => read(backend, y, 0, tokens * C)))
        })
      }
    }
  })

  test('gatedAdd', async () => {
    for (const C of CHANNELS) {
      const tokens = 5
      const capacity = capacityFor(tokens, 2)
      const batch = raggedBatch(capacity, [2, 3], [0, 1], 1)
      const size = (tokens + 2) * C
      await compare(tested, 1e-5, `C ${C}`, async (backend) => {
        const activation = (seed: number) => backend.tensor([tokens + 2, C], normals(size, seed))
        const [x, gate, value] = [activation(1), activation(2), activation(3)]
        await runStep(backend, capacity, batch, (ops) => ops.gatedAdd(x, gate, value))
        expect(await read(backend, x, tokens * C)).toEqual(normals(size, 1).subarray(tokens * C))
        return [await read(backend, x, 0, tokens * C)]
      })
    }
  })

  test('operands that do not fit are refused when recorded', async () => {
    const capacity = capacityFor(3)
    const [good, small] = [tested.tensor([5, 64]), tested.tensor([4, 64])]
    const base = tested.tensor([64])
    const record = (build: Parameters<Backend['record']>[1]) => () => tested.record(capacity, build)
    expect(record((ops) => ops.ddlerp([good], good, small, [base]))).toThrow('where 320 numbers')
    expect(record((ops) => ops.ddlerp([good], good, good, []))).toThrow('as many mixes as bases')
    expect(record((ops) => ops.gatedAdd(good, small, good))).toThrow('where 320 numbers')
  })
})
