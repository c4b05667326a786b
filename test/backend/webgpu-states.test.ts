/**
 * f16 states on webgpu: their values, independence of chunks, and rounding that does not stall. webgpu.test.ts moves
 * them.
 */
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Backend } from '../../src/backend/backend.ts'
import { landed } from '../../src/backend/flight.ts'
import { decodeFloats, encodeFloats } from '../../src/backend/half.ts'
import { createReferenceBackend } from '../../src/backend/reference/reference.ts'
import { openWebgpuBackend, type WebgpuBackend } from '../../src/backend/webgpu/webgpu.ts'
import { ARCHITECTURES } from '../helpers/runner.ts'
import { WEBGPU_PROBLEM } from '../helpers/webgpu.ts'
import { capacityFor, normals, raggedBatch, randomStates, read, rmsRatio, runStep } from './kit.ts'

const SHAPE = { layers: 1, channels: 128, heads: 2, headSize: 64 }
const C = SHAPE.channels
const TOKENS = 40

function nearestF16(values: Float32Array): Float32Array {
  return decodeFloats(encodeFloats(values, 'f16'), 'f16')
}

/** Feeds the tokens in runs of these lengths; returns the outputs and the final state. */
async function steps(backend: Backend, architecture: string, lengths: readonly number[]) {
  const states = await randomStates(backend, SHAPE)
  const vector = (seed: number) => backend.tensor([C], normals(C, seed))
  const ln_x = { weight: vector(21), bias: vector(22), eps: 64e-5 }
  const outputs: number[] = []
  let first = 0
  for (const length of lengths) {
    const capacity = capacityFor(length)
    const part = (seed: number, scale = 1) =>
      backend.tensor([length + 2, C], normals((TOKENS + 2) * C, seed, scale).slice(first * C, (first + length + 2) * C))
    const out = backend.tensor([length + 2, C])
    const own = { r: part(1), k: part(2), v: part(3), w: part(4, 3), g: part(6) }
    await runStep(backend, capacity, raggedBatch(capacity, [length], [3], 1), (ops) => {
      if (architecture === 'rwkv6') ops.wkv6(out, own, { u: vector(11), ln_x }, states, 0)
      else
        ops.wkv7(
          out,
          { ...own, a: part(5, 0.3), vFirst: part(8) },
          { k_k: vector(11), k_a: vector(12), r_k: vector(13), ln_x },
          states,
          0,
        )
    })
    outputs.push(...(await read(backend, out, 0, length * C)))
    first += length
  }
  const [, wkv] = await landed(states.read(3))
  return { outputs: Float32Array.from(outputs), wkv: wkv! }
}

describe.skipIf(WEBGPU_PROBLEM !== null)('f16 states', () => {
  let backend: WebgpuBackend
  beforeAll(async () => {
    backend = await openWebgpuBackend(0, { wkv: 'f16' })
  })
  afterAll(() => backend.dispose())

  test('a slot needs half the memory for its matrices, and has the written values, rounded', async () => {
    const whole = await openWebgpuBackend()
    const matrices = SHAPE.heads * SHAPE.headSize ** 2
    const bytes = (on: Backend) => on.statePool(SHAPE, 1).bytesPerSlot
    expect(bytes(whole) - bytes(backend)).toBe(2 * matrices)
    whole.dispose()
    const states = backend.statePool(SHAPE, 3)
    const shift = normals(2 * C, 1)
    // Some are subnormal in f16, some beyond its range.
    const wkv = normals(matrices, 2).map((x, i) => (i % 3 === 0 ? 1e-6 * x : x))
    wkv.set([0, -0, 65_504, 7e4, 6e-8, -6.2e-5])
    await landed(states.write(1, [shift, wkv]))
    states.copy(1, 2)
    expect(await landed(states.read(2))).toEqual([shift, nearestF16(wkv)])
    states.poison(2)
    const poisoned = await landed(states.read(2))
    expect(poisoned.every((array) => array.every(Number.isNaN))).toBe(true)
  })

  test.each(ARCHITECTURES)(
    '%s: close to the reference, with the same bits in all runs',
    { tags: 'night' },
    async (name) => {
      const expected = await steps(createReferenceBackend(), name, [TOKENS])
      const whole = await steps(backend, name, [TOKENS])
      expect(rmsRatio(whole.outputs, expected.outputs)).toBeLessThan(2e-3)
      expect(rmsRatio(whole.wkv, expected.wkv)).toBeLessThan(2e-3)
      // It is rounded; otherwise the state would be f32.
      expect(rmsRatio(whole.wkv, expected.wkv)).toBeGreaterThan(1e-5)
      expect(whole.wkv).toEqual(nearestF16(whole.wkv))
      for (const lengths of [
        [1, 19, 20],
        [7, 1, 1, 31],
      ])
        expect(await steps(backend, name, lengths)).toEqual(whole)
    },
  )

  test('a decay below half the resolution of f16 is not lost', async () => {
    const capacity = capacityFor(200)
    const states = backend.statePool(SHAPE, 1)
    const matrices = SHAPE.heads * SHAPE.headSize ** 2
    const start = new Float32Array(matrices).fill(1)
    // Small numbers decay in the same way, although f16 has no normal numbers for them.
    start.fill(4e-6, matrices / 2)
    await landed(states.write(0, [new Float32Array(2 * C), start]))
    const tensor = (value: (i: number) => number) =>
      backend.tensor(
        [202, C],
        Float32Array.from({ length: 202 * C }, (_, i) => value(i)),
      )
    const zero = () => tensor(() => 0)
    const v = tensor((i) => Math.sin(i))
    const vector = () => backend.tensor([C], new Float32Array(C).fill(1))
    await runStep(backend, capacity, raggedBatch(capacity, [200], [0], 1), (ops) =>
      ops.wkv6(
        zero(),
        { r: zero(), k: zero(), v, w: tensor(() => Math.log(1e-4)), g: zero() },
        { u: vector(), ln_x: { weight: vector(), bias: vector(), eps: 1e-5 } },
        states,
        0,
      ),
    )
    const [, wkv] = await landed(states.read(0))
    const mean = (part: Float32Array) => part.reduce((sum, x) => sum + x, 0) / part.length
    const wanted = Math.exp(-200e-4)
    expect(mean(wkv!.subarray(0, matrices / 2))).toBeCloseTo(wanted, 3)
    expect(mean(wkv!.subarray(matrices / 2)) / 4e-6).toBeCloseTo(wanted, 2)
  })
})
