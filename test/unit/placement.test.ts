import { expect, test } from 'vitest'
import { tightestSize } from '../../src/host/placement.ts'

const GIB = 2 ** 30
const vocabSize = 65_536
/** Any head: only its existence counts. */
const head = { ln_out: {}, head: {} } as never

/** Stages of RWKV-7 7.2B by their layers; a layer's state is 1 MiB. */
const stagesOf = (...layers: number[]) =>
  layers.map((count, s) => ({
    stateShape: { layers: count, channels: 4096, heads: 64, headSize: 64 },
    vocabSize,
    output: s === layers.length - 1 ? head : null,
  }))

const gpus = (...bytes: number[]) => bytes.map((one) => ({ bytes: one, isDevice: true }))

test('the stage with the least memory decides', () => {
  const stages = stagesOf(8, 8, 8, 8)
  const roomy = tightestSize({}, stages, gpus(100 * GIB, 100 * GIB, 100 * GIB, 100 * GIB))
  expect(roomy).toEqual({ numSlots: 256, maxTokens: 2048, numKept: 0 })
  const { numSlots } = tightestSize({}, stages, gpus(100 * GIB, 4 * GIB, 100 * GIB, 100 * GIB))
  // A quarter of 4 GiB, at 8.25 MiB a slot.
  expect(numSlots).toBe(124)
})

test('more layers, and the head, take memory', () => {
  const room = gpus(4 * GIB, 4 * GIB)
  const evenly = tightestSize({}, stagesOf(8, 8), room).numSlots
  expect(tightestSize({}, stagesOf(4, 12), room).numSlots).toBeLessThan(evenly)
  const headless = stagesOf(8, 8, 8).slice(0, 2)
  expect(tightestSize({}, headless, room).numSlots).toBeGreaterThan(evenly)
})

test('a requested size that fits no stage is refused; all stages get the same size', () => {
  const room = gpus(20 * GIB, 3 * GIB)
  expect(() => tightestSize({ slots: 400 }, stagesOf(8, 8), room)).toThrow('400 slots of 10 MiB')
  expect(tightestSize({ slots: 100, maxTokens: 512 }, stagesOf(8, 8), room)).toEqual({
    numSlots: 100,
    maxTokens: 512,
    numKept: 0,
  })
})

test('inputs from the previous stage take memory, for every step in flight', () => {
  const asked = { slots: 1, maxTokens: 8192 }
  const room = 3.5 * GIB
  expect(tightestSize(asked, stagesOf(1), gpus(room)).numSlots).toBe(1)
  const eight = stagesOf(1, 1, 1, 1, 1, 1, 1, 1)
  const roomOf = (bytes: number) => gpus(room, ...eight.slice(1).map(() => bytes))
  expect(() => tightestSize(asked, eight, roomOf(room))).toThrow('do not fit')
  // 12 vectors of 16 KiB per token.
  expect(tightestSize(asked, eight, roomOf(room + 1.5 * GIB)).numSlots).toBe(1)
})
