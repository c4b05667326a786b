/** Which slots are counted as having tokens in their logs, and when these logs are merged. */
import { expect, test } from 'vitest'
import type { CudaDevice } from '../../../src/backend/cuda/device/device.ts'
import { LOG_HEADS, StateLog } from '../../../src/backend/cuda/state-log.ts'
import { capacityFor, raggedBatch } from '../../backend/kit.ts'

const HEADS = 16
const MANY = LOG_HEADS / HEADS
const SLOTS = 2 * MANY
const SHAPE = { layers: 2, channels: 64 * HEADS, heads: HEADS, headSize: 64 }

function scripted() {
  /** Slots of each launch of wkv7_merge; slots whose counts are zeroed. */
  const [merged, emptied]: [number[][], number[]] = [[], []]
  let slots: number[] = []
  const counts = 1n << 40n
  const addresses = [counts, 2n << 40n]
  const device = {
    alloc: () => addresses.shift(),
    fill(to: bigint, _: number, bytes: number) {
      if (to !== counts) emptied.push(Number(to - counts) / bytes - 1)
    },
    kernel: () => ({}),
    args: () => ({
      set(_: number, bytes: Uint8Array) {
        slots = [...new Int32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4)]
      },
    }),
    launch: (_: unknown, grid: readonly number[]) => merged.push(slots.slice(0, grid[1])),
  }
  // All device functions that a log uses.
  const log = new StateLog(device as unknown as CudaDevice, SHAPE, SLOTS, 0n)
  const step = (lengths: readonly number[], from = 0) => {
    const tokens = lengths.reduce((a, b) => a + b, 0)
    const numbers = lengths.map((_, row) => from + row)
    log.beginStep(raggedBatch(capacityFor(tokens, lengths.length), lengths, numbers, 1))
    return merged.splice(0)
  }
  const merge = (slots: readonly number[]) => {
    log.merge(slots)
    return merged.splice(0)
  }
  return { log, step, emptied, merge }
}

const singles = (count: number) => Array.from({ length: count }, () => 1)

test('rows of one token have logs from a number of rows on', () => {
  const { step, merge } = scripted()
  expect(step(singles(MANY - 1))).toEqual([])
  expect(merge([0, 1])).toEqual([])
  expect(step(singles(MANY))).toEqual([])
  expect(merge([0, MANY])).toEqual([[0]])
  expect(merge([0])).toEqual([])
  // A step of few rows merges by itself, but a row may not run.
  expect(step(singles(9))).toEqual([])
  expect(merge([8])).toEqual([[8]])
  expect(step(singles(8))).toEqual([[1, 2, 3, 4, 5, 6, 7]])
})

test('before an op that cannot read logs, they are merged into the states', () => {
  const { step } = scripted()
  step(singles(MANY))
  expect(step([...singles(MANY), 2, 40], 3)).toEqual([])
  expect(step([...singles(4), 2, 40], 7)).toEqual([[11, 12]])
  expect(step([1, 1])).toEqual([[0, 1]])
  expect(step([1, 1])).toEqual([])
})

test('more slots than one launch takes need several launches', () => {
  const { step, merge } = scripted()
  step(singles(SLOTS))
  const all = Array.from({ length: SLOTS }, (_, slot) => slot)
  expect(merge(all)).toEqual([all.slice(0, 64), all.slice(64)])
})

test('writing a state to a slot empties its log', () => {
  const { log, step, merge, emptied } = scripted()
  step(singles(MANY))
  log.forget(7)
  log.forget(7)
  log.forget(MANY)
  expect(emptied).toEqual([7])
  expect(merge([7])).toEqual([])
})
