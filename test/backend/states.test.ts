import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Backend, StateData } from '../../src/backend/backend.ts'
import { createCpuBackend } from '../../src/backend/cpu/cpu.ts'
import { LEVELS, normals } from './kit.ts'

const SHAPE = { layers: 3, channels: 96, heads: 3, headSize: 32 }

function randomState(seed: number): StateData {
  return { shift: normals(3 * 2 * 96, seed), wkv: normals(3 * 3 * 32 * 32, seed + 1) }
}

const filled = (value: number): StateData => ({
  shift: new Float32Array(3 * 2 * 96).fill(value),
  wkv: new Float32Array(3 * 3 * 32 * 32).fill(value),
})

if (LEVELS.length === 0) test.skip('the cpu kernels are not built')

describe.each(LEVELS)('state pool on %s', (isa) => {
  let cpu: Backend
  beforeAll(() => {
    cpu = createCpuBackend({ isa, threads: 1 })
  })
  afterAll(() => cpu.dispose())

  test('a new pool is zero; what is written is read back, and neighbours stay', () => {
    const pool = cpu.statePool(SHAPE, 3)
    expect(pool.read(1)).toEqual(filled(0))
    const state = randomState(1)
    pool.write(1, state)
    expect(pool.read(1)).toEqual(state)
    expect(pool.read(0)).toEqual(filled(0))
    expect(pool.read(2)).toEqual(filled(0))
    expect(pool.bytesPerSlot).toBeGreaterThanOrEqual(4 * (state.shift.length + state.wkv.length))
  })

  test('a head size that has no kernel is a model that is not run', () => {
    const shape = { layers: 1, channels: 60, heads: 3, headSize: 20 }
    expect(() => cpu.statePool(shape, 1)).toThrow(
      expect.objectContaining({
        code: 'unsupported_weights',
        message: expect.stringMatching(/head size must be a multiple of 16/),
      }),
    )
  })

  test('copy, clear and poison touch one slot', () => {
    const pool = cpu.statePool(SHAPE, 3)
    const [a, b] = [randomState(1), randomState(5)]
    pool.write(0, a)
    pool.write(2, b)
    pool.copy(0, 1)
    expect(pool.read(1)).toEqual(a)
    pool.poison(0)
    expect(pool.read(0)).toEqual(filled(Number.NaN))
    pool.copy(1, 1)
    expect(pool.read(1)).toEqual(a)
    pool.clear(0)
    expect(pool.read(0)).toEqual(filled(0))
    expect(pool.read(2)).toEqual(b)
  })

  test('layers written one by one are the state written whole, and nothing else is touched', () => {
    const pool = cpu.statePool(SHAPE, 3)
    const [a, b] = [randomState(1), randomState(5)]
    for (const slot of [0, 1, 2]) pool.write(slot, b)
    for (const layer of [2, 0, 1]) pool.writeLayers(1, layer, layer + 1, a)
    expect(pool.read(1)).toEqual(a)
    for (const slot of [0, 2]) expect(pool.read(slot)).toEqual(b)
    expect(() => pool.writeLayers(1, 2, 4, b)).toThrow(/out of range/)
    expect(pool.read(1)).toEqual(a)
  })

  test('slots outside the pool and states of another shape are refused', () => {
    const pool = cpu.statePool(SHAPE, 3)
    for (const slot of [-1, 3]) {
      expect(() => pool.clear(slot)).toThrow(/slot/)
      expect(() => pool.poison(slot)).toThrow(/slot/)
      expect(() => pool.read(slot)).toThrow(/slot/)
      expect(() => pool.write(slot, randomState(1))).toThrow(/slot/)
      expect(() => pool.copy(0, slot)).toThrow(/slot/)
      expect(() => pool.copy(slot, 0)).toThrow(/slot/)
    }
    const short = { ...randomState(1), shift: new Float32Array(5) }
    expect(() => pool.write(0, short)).toThrow(/expected 576/)
    expect(() => cpu.statePool({ ...SHAPE, headSize: 24 }, 1)).toThrow(/multiple of 16/)
  })
})
