import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Backend, StateData } from '../../src/backend/backend.ts'
import { landed } from '../../src/backend/flight.ts'
import { DEVICES, normals } from './kit.ts'

const SHAPE = { layers: 3, channels: 96, heads: 3, headSize: 32 }

function randomState(seed: number): StateData {
  return [normals(3 * 2 * 96, seed), normals(3 * 3 * 32 * 32, seed + 1)]
}

const filled = (value: number): StateData => [
  new Float32Array(3 * 2 * 96).fill(value),
  new Float32Array(3 * 3 * 32 * 32).fill(value),
]

if (DEVICES.length === 0) test.skip('the cpu kernels are not built')

describe.each(DEVICES)('state pool on $name', (device) => {
  let tested: Backend
  beforeAll(async () => {
    tested = await device.open()
  })
  afterAll(() => tested.dispose())

  test('a new pool is zero; what is written is read back, and other slots stay', async () => {
    const pool = tested.statePool(SHAPE, 3)
    expect(await landed(pool.read(1))).toEqual(filled(0))
    const state = randomState(1)
    await landed(pool.write(1, state))
    expect(await landed(pool.read(1))).toEqual(state)
    expect(await landed(pool.read(0))).toEqual(filled(0))
    expect(await landed(pool.read(2))).toEqual(filled(0))
    expect(pool.bytesPerSlot).toBeGreaterThanOrEqual(4 * state.flatMap((array) => [...array]).length)
  })

  test('a model with a head size without a kernel is refused', async () => {
    const shape = { layers: 1, channels: 60, heads: 3, headSize: 20 }
    expect(() => tested.statePool(shape, 1)).toThrow(
      expect.objectContaining({
        code: 'unsupported_weights',
        message: expect.stringMatching(/head size must be a multiple of 16/),
      }),
    )
  })

  test('copy, clear and poison affect one slot', async () => {
    const pool = tested.statePool(SHAPE, 3)
    const [a, b] = [randomState(1), randomState(5)]
    await landed(pool.write(0, a))
    await landed(pool.write(2, b))
    pool.copy(0, 1)
    expect(await landed(pool.read(1))).toEqual(a)
    pool.poison(0)
    expect(await landed(pool.read(0))).toEqual(filled(Number.NaN))
    pool.copy(1, 1)
    expect(await landed(pool.read(1))).toEqual(a)
    pool.clear(0)
    expect(await landed(pool.read(0))).toEqual(filled(0))
    expect(await landed(pool.read(2))).toEqual(b)
  })

  test('a state is read as it was when the read started, and written where requested', async () => {
    const pool = tested.statePool(SHAPE, 3)
    const [a, b] = [randomState(1), randomState(5)]
    await landed(pool.write(1, a))
    const into = filled(7)
    const flight = pool.read(1, into)
    await landed(pool.write(1, b))
    expect(await landed(flight)).toBe(into)
    expect(into).toEqual(a)
    expect(await landed(pool.read(1))).toEqual(b)
    expect(pool.canMove).toBe(true)
  })

  test('slots outside the pool and states of another shape are refused', async () => {
    const pool = tested.statePool(SHAPE, 3)
    for (const slot of [-1, 3]) {
      expect(() => pool.clear(slot)).toThrow(/slot/)
      expect(() => pool.poison(slot)).toThrow(/slot/)
      expect(() => pool.read(slot)).toThrow(/slot/)
      expect(() => pool.write(slot, randomState(1))).toThrow(/slot/)
      expect(() => pool.copy(0, slot)).toThrow(/slot/)
      expect(() => pool.copy(slot, 0)).toThrow(/slot/)
    }
    const short = [new Float32Array(5), randomState(1)[1]!]
    expect(() => pool.write(0, short)).toThrow(/expected 576/)
    expect(() => tested.statePool({ ...SHAPE, headSize: 24 }, 1)).toThrow(/multiple of 16/)
  })
})
