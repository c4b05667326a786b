/** Memory of states that nobody reads any more is reused, and old views of it do not see that. */
import { expect, test } from 'vitest'
import { type StateData, stateBytesOf } from '../../../src/backend/state-shape.ts'
import { StateMemory } from '../../../src/engine/state-transfers.ts'
import { PrefixCache } from '../../../src/state/prefix-cache.ts'
import { Tiers } from '../../../src/state/tiers.ts'

test('returned memory is reused for the next copy, and the old view is empty', () => {
  const memory = new StateMemory()
  expect(memory.take()).toBeUndefined()
  const state = [Float32Array.of(1, 2), Float32Array.of(3)]
  memory.giveBack(state)
  expect(state.map(({ length }) => length)).toEqual([0, 0])
  const again = memory.take()!
  expect(again.map(({ length }) => length)).toEqual([2, 1])
  expect(memory.take()).toBeUndefined()
})

test('a state returned twice counts once', () => {
  const memory = new StateMemory()
  const state = [new Float32Array(2)]
  memory.giveBack(state)
  memory.giveBack(state)
  expect(memory.take()).toHaveLength(1)
  expect(memory.take()).toBeUndefined()
})

test('parts of a file in memory, and memory shared with other threads, are not reused', () => {
  const memory = new StateMemory()
  const file = new Float32Array(8)
  memory.giveBack([file.subarray(0, 4), file.subarray(4)])
  memory.giveBack([new Float32Array(new SharedArrayBuffer(16))])
  expect(memory.take()).toBeUndefined()
  expect(file).toHaveLength(8)
})

test.each([
  { size: 2 ** 24, limit: '256 MB', kept: 4 },
  { size: 8, limit: '32 states', kept: 32 },
])('it keeps at most $limit', ({ size, kept }) => {
  const memory = new StateMemory()
  for (let i = 0; i <= kept; i++) memory.giveBack([new Float32Array(size)])
  let count = 0
  while (memory.take() !== undefined) count++
  expect(count).toBe(kept)
})

test('memory is made ahead up to its bytes, and used after what has been written before', () => {
  // 1 MB and 32 bytes.
  const shape = { layers: 1, channels: 4, heads: 1, headSize: 512 }
  const bytes = stateBytesOf(shape)
  const memory = new StateMemory(3 * bytes - 1)
  expect([memory.make(shape), memory.make(shape), memory.make(shape)]).toEqual([true, true, false])
  const written = [Float32Array.of(7)]
  memory.giveBack(written)
  expect(memory.take()).toEqual([Float32Array.of(7)])
  expect([memory.take(), memory.take()].map((state) => state?.map(({ length }) => length))).toEqual(
    Array(2).fill([8, 512 * 512]),
  )
  expect(memory.take()).toBeUndefined()
})

test('however much is made ahead, what was written is kept and used first', () => {
  const shape = { layers: 1, channels: 4, heads: 1, headSize: 512 }
  const memory = new StateMemory(40 * stateBytesOf(shape))
  while (memory.make(shape));
  memory.giveBack([Float32Array.of(7)])
  expect(memory.take()).toEqual([Float32Array.of(7)])
})

test('no memory is made ahead for small states', () => {
  expect(new StateMemory(2 ** 30).make({ layers: 1, channels: 4, heads: 1, headSize: 64 })).toBe(false)
})

test('new memory for copies that nobody waits for: 64 MB at once, then 16 MB a second; old memory at any time', () => {
  const memory = new StateMemory()
  const mebibyte = 2 ** 20
  const kept = (now: number) => {
    let count = 0
    while (count < 1000 && memory.mayKeep(mebibyte, now)) count++
    return count
  }
  expect(kept(1000)).toBe(64)
  expect(kept(1000)).toBe(0)
  expect(kept(2000)).toBe(16)
  expect(kept(60_000)).toBe(64)
  memory.giveBack([Float32Array.of(7)])
  expect(kept(60_000)).toBe(1000)
  memory.take()
  expect(kept(60_000)).toBe(0)
})

test('states of 256 KB and more are counted, those of models for tests are not', () => {
  const memory = new StateMemory()
  const kept = (bytes: number) => Array.from({ length: 1000 }, () => memory.mayKeep(bytes, 1000)).filter(Boolean).length
  expect(kept(2 ** 18)).toBe(256)
  expect(kept(2 ** 18 - 1)).toBe(1000)
})

test('new memory for copies of large states: four a second', () => {
  const memory = new StateMemory()
  const count = Array.from({ length: 10_000 }, (_, ms) => memory.mayKeep(33 * 2 ** 20, 1000 + ms)).filter(Boolean)
  expect(count.length).toBeGreaterThanOrEqual(40)
  expect(count.length).toBeLessThanOrEqual(42)
})

const SIZES = { slots: 1, memory: { count: 9, bytes: Number.POSITIVE_INFINITY } }

test.each(['none', 'writing', 'saved', 'failed'] as const)(
  'a state that is dropped while its copy in the store is "%s" is given back unless a commit still reads it',
  (disk) => {
    const given: StateData[] = []
    const slots = { read: never, free: never, giveBack: (state: StateData) => given.push(state) }
    const tiers = new Tiers(slots, SIZES, 8, never)
    const state = [Float32Array.of(1, 2)]
    const text = { tokens: Int32Array.of(1), tail: new Int32Array(0) }
    const kept = tiers.keepCopy({ ...text, state }, 'n', false)
    kept.disk = disk
    tiers.drop(kept)
    expect(given).toEqual(disk === 'writing' ? [] : [state])
  },
)

test('the memory of an evicted prefix is returned, unless a request uses it', () => {
  const given: StateData[] = []
  const cache = new PrefixCache(2 ** 20, (state) => given.push(state))
  const states = [1, 2].map((value) => [Float32Array.of(value)])
  const [found, other] = states.map((state, i) => cache.add('n', new Int32Array(40).fill(i), state))
  expect(cache.find('n', new Int32Array(41), 40)).toBe(found)
  cache.delete(found!)
  cache.delete(other!)
  expect(given).toEqual([states[1]])
})

function never(): never {
  throw new Error('nothing is moved')
}
