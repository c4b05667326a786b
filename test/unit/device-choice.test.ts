import { expect, test } from 'vitest'
import { cudaReport } from '../../src/backend/cuda/report.ts'
import { SkeinError } from '../../src/errors.ts'
import { chooseBatchSize } from '../../src/host/batch-size.ts'
import { openBackend, parseDevice } from '../../src/host/device-choice.ts'

const SMALL = { architecture: 'rwkv7', numParameters: 1e6 } as const

test('values of --device', () => {
  for (const text of ['auto', 'cpu', 'reference', 'cuda', 'cuda:0', 'cuda:12']) expect(parseDevice(text)).toBe(text)
  expect(parseDevice('cuda:GPU-8f3c-11')).toBe('cuda:GPU-8f3c-11')
  for (const text of ['', 'gpu', 'cuda:', 'cuda:x', 'cuda:-1', 'CPU', 'cuda:0 '])
    expect(parseDevice(text)).toBeUndefined()
})

test('fp16 states are refused without a GPU', () => {
  expect(() => openBackend({ device: 'cpu', wkv: 'fp16' }, SMALL)).toThrow('needs --device cuda or webgpu, not cpu')
  expect(() => openBackend({ device: 'reference', wkv: 'fp16' }, SMALL)).toThrow('--wkv fp16')
})

const { problems } = cudaReport()

test.skipIf(problems.length === 0)('if a requested GPU is not there, that is the error', () => {
  let caught: unknown
  try {
    openBackend({ device: 'cuda:0' }, SMALL)
  } catch (error) {
    caught = error
  }
  expect(caught).toBeInstanceOf(SkeinError)
  expect(SkeinError.from(caught).code).toBe('backend_unavailable')
  expect(SkeinError.from(caught).message).toContain(problems[0]!.message.slice(0, 20))
})

/** RWKV-7 7.2B: 32 layers of 4096 channels; a slot is 33 MiB of state and 0.8 MiB of counts, logits and the sampler's scratch. */
const LARGE = { stateShape: { layers: 32, channels: 4096, heads: 64, headSize: 64 }, vocabSize: 65_536 }
const GIB = 2 ** 30

test('slots and tokens per step follow the free memory', () => {
  const host = (bytes: number) => chooseBatchSize({}, LARGE, { bytes, isDevice: false })
  expect(host(64 * GIB)).toMatchObject({ numSlots: 64, maxTokens: 512 })
  expect(host(GIB)).toMatchObject({ numSlots: 7, maxTokens: 512 })
  expect(host(1000)).toMatchObject({ numSlots: 1, maxTokens: 512 })
  const device = (bytes: number, asked = {}) => chooseBatchSize(asked, LARGE, { bytes, isDevice: true })
  expect(device(120 * GIB)).toMatchObject({ numSlots: 256, maxTokens: 2048 })
  expect(device(120 * GIB, { slots: 960 })).toMatchObject({ numSlots: 960, maxTokens: 2048 })
  expect(device(120 * GIB, { slots: 1920, maxTokens: 64 }).maxTokens).toBe(2560)
})

test('slots and tokens per step follow what a GPU binds at once', () => {
  const MIB = 2 ** 20
  // What vectors of 32 layers take.
  const bound = (bytes: number, asked = {}) =>
    chooseBatchSize(asked, LARGE, { bytes: 64 * GIB, isDevice: false, bound: { bytes, usedBytes: 10 * MIB } })
  expect(bound(GIB)).toMatchObject({ numSlots: 64, maxTokens: 512 })
  const least = bound(128 * MIB)
  expect(least).toMatchObject({ numSlots: 64, maxTokens: 192 })
  expect(bound(128 * MIB, { slots: 8 }).maxTokens).toBe(260)
  expect(bound(64 * MIB).numSlots).toBe(44)
  // What is asked for is tried.
  expect(bound(128 * MIB, { slots: 256, maxTokens: 1024 })).toMatchObject({ numSlots: 256, maxTokens: 1024 })
})

test('what does not fit the device is refused at start, with a setting that fits', () => {
  const free = { bytes: 10 * GIB, isDevice: true }
  const refused = () => chooseBatchSize({ slots: 320 }, LARGE, free)
  expect(refused).toThrow(/^320 slots of 34 MiB and a step of 2048 tokens do not fit the 10240 MiB/)
  const fitting = Number(/--slots (\d+)/.exec(message(refused))?.[1])
  expect(chooseBatchSize({ slots: fitting }, LARGE, free).numSlots).toBe(fitting)
  expect(() => chooseBatchSize({ slots: fitting + 1 }, LARGE, free)).toThrow('do not fit')
  // States from before rows with guesses take the memory of slots.
  const guessing = { ...LARGE, guessingRows: 32 }
  expect(() => chooseBatchSize({ slots: fitting - 31 }, guessing, free)).toThrow('do not fit')
  expect(chooseBatchSize({ slots: fitting - 40 }, guessing, free).numSlots).toBe(fitting - 40)
  expect(() => chooseBatchSize({}, LARGE, { bytes: GIB / 2, isDevice: true })).toThrow('not even one slot')
})

test('the computed size of a batch is what the runner and its program allocate', () => {
  // Exactly, besides the reserve: one slot more than requested, 32 rows of logits more than slots, and the tokens of a
  // prompt.
  const { stateShape, vocabSize } = LARGE
  const stateBytes = 4 * 32 * 4096 * (2 + 64)
  const ofSlots = 101 * (stateBytes + 5 * vocabSize) + 4 * vocabSize
  const ofSampling = (100 + 32) * 4 * vocabSize + 100 * 4 * vocabSize
  // The additional slot has logits and scratch of its own, too.
  const spare = 8 * vocabSize
  // Penalty counts of answers that have no slot for a while.
  const ofAway = 33 * 5 * vocabSize
  const ofStep = 2048 * 4 * 18 * stateShape.channels
  const bytes = (1 << 30) + ofSlots + ofSampling + spare + ofAway + ofStep
  const choose = (bytes: number, scratchBytes = (_: number) => 0) =>
    chooseBatchSize({ slots: 100 }, LARGE, { bytes, isDevice: true, scratchBytes })
  expect(choose(bytes).numSlots).toBe(100)
  expect(() => choose(bytes - 1)).toThrow('--slots 99')
  // So are the logs of states, also for the additional slot, if so many slots have them.
  const logBytes = (least: number) => (_: unknown, slots: number) => (slots >= least ? 1000 : 0)
  const withLog = (bytes: number, least: number) =>
    chooseBatchSize({ slots: 100 }, LARGE, { bytes, isDevice: true, logBytes: logBytes(least) })
  expect(withLog(bytes, 101).numSlots).toBe(100)
  expect(withLog(bytes + 101_000, 100).numSlots).toBe(100)
  expect(() => withLog(bytes + 100_999, 100)).toThrow('--slots 99')
  // Copies of matrices count if a step of the chosen size makes any.
  const copies = (least: number) => (tokens: number) => (tokens >= least ? 128 << 20 : 0)
  expect(choose(bytes, copies(4097)).numSlots).toBe(100)
  expect(() => choose(bytes, copies(2048))).toThrow('do not fit')
})

function message(run: () => unknown): string {
  try {
    run()
    return ''
  } catch (error) {
    return SkeinError.from(error).message
  }
}
