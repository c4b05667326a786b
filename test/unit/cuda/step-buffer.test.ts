import { expect, test } from 'vitest'
import { createBatch } from '../../../src/backend/batch.ts'
import type { CudaDevice } from '../../../src/backend/cuda/device/device.ts'
import type { Gemm } from '../../../src/backend/cuda/gemm/gemm.ts'
import { CudaProgram } from '../../../src/backend/cuda/program.ts'
import { StepBuffer } from '../../../src/backend/cuda/step/buffer.ts'
import { SkeinError } from '../../../src/errors.ts'

const CAPACITY = { tokens: 8, rows: 4, logits: 4, samples: 0 }

/** From one block of the fake device's memory to the next. */
const SPACING = 1n << 20n

/** A device that counts allocations and frees; `room`: how many allocations of either memory succeed. */
function fakeDevice() {
  const live = new Set<unknown>()
  const state = { room: Number.POSITIVE_INFINITY, copies: 0 }
  const images: ArrayBuffer[] = []
  let next = SPACING
  const take = (one: unknown) => {
    if (state.room-- <= 0) throw new SkeinError('out_of_memory', 'full')
    live.add(one)
  }
  const give = (one: unknown) => {
    if (!live.delete(one)) throw new Error('given back what was not taken')
  }
  const device = {
    alloc() {
      const address = next
      next += SPACING
      take(address)
      return address
    },
    free: give,
    fill() {},
    uploadAsync(to: bigint) {
      if (!live.has(to - (to % SPACING))) throw new Error('a copy to memory that was given back')
      state.copies++
    },
    pinned(bytes: number) {
      const buffer = { address: 4096n, buffer: new ArrayBuffer(bytes), dispose: () => give(buffer) }
      images.push(buffer.buffer)
      take(buffer)
      return buffer
    },
    driver: { call() {}, functions: { cuEventSynchronize: () => 0 } },
    synchronize() {},
  }
  return { device: device as unknown as CudaDevice, live, state, images }
}

test('a step buffer that cannot allocate a part frees the rest', () => {
  // A block of device memory and page-locked images of each.
  for (let room = 0; room < 4; room++) {
    const { device, live, state } = fakeDevice()
    state.room = room
    expect(() => new StepBuffer(device, CAPACITY, { flights: 2 })).toThrow('full')
    expect(live.size).toBe(0)
  }
  const { device, live } = fakeDevice()
  new StepBuffer(device, CAPACITY, { flights: 2 }).dispose()
  expect(live.size).toBe(0)
})

test('a program that cannot allocate longer lists keeps the old ones', () => {
  const { device, live, state } = fakeDevice()
  const program = new CudaProgram(device, {} as Gemm, CAPACITY, () => {}, false)
  const batch = (numStops: number) => {
    const one = createBatch(CAPACITY)
    Object.assign(one, { numTokens: 1, numRows: 1, stopIds: new Int32Array(numStops) })
    one.starts[1] = 1
    one.stopStarts[1] = numStops
    return one
  }
  program.run(batch(1))
  const before = live.size
  state.room = 1
  expect(() => program.run(batch(5000))).toThrow('full')
  expect(live.size).toBe(before)
  program.run(batch(1))
  state.room = Number.POSITIVE_INFINITY
  program.run(batch(5000))
  expect(live.size).toBe(before)
  program.dispose()
  expect(live.size).toBe(0)
})

test('a small batch is left in its image for the kernel that fetches it, a large one is copied', () => {
  const kinds = { singles: 1, longRows: 0 }
  for (const rows of [8, 9]) {
    const capacity = { tokens: rows, rows, logits: rows, samples: rows }
    const { device, state, images } = fakeDevice()
    const buffer = new StepBuffer(device, capacity, { flights: 2, isFetched: true })
    const [image] = images
    const words = new Int32Array(image!)
    const batch = createBatch(capacity)
    Object.assign(batch, {
      numTokens: 1,
      numRows: 1,
      numSamples: 1,
      stopIds: Int32Array.of(7, 9),
      biasIds: Int32Array.of(5),
    })
    batch.biasValues = Float32Array.of(1.5)
    batch.starts[1] = batch.biasStarts[1] = 1
    batch.stopStarts[1] = 2
    batch.tokens[0] = 11
    for (let turn = 0; turn < 3; turn++) {
      words.fill(0)
      buffer.upload(batch, kinds, 1)
      const begin = (words.length / 2) * (turn % 2)
      // Numbers of tokens, rows, logits, draws, rows of one token, short rows; words, biases, the image of results.
      const counts = [...words.subarray(begin, begin + 9)]
      expect(counts).toEqual([1, 1, 0, 1, 1, 1, counts[6], 1, 1])
      expect([...words.subarray(begin + counts[6]! - 2, begin + counts[6]!)]).toEqual([7, 9])
    }
    expect(state.copies).toBe(rows === 8 ? 0 : 6)
    buffer.dispose()
  }
})
