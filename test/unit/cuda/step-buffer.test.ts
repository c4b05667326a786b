import { expect, test } from 'vitest'
import { createBatch } from '../../../src/backend/batch.ts'
import type { CudaDevice } from '../../../src/backend/cuda/device/device.ts'
import type { Gemm } from '../../../src/backend/cuda/gemm/gemm.ts'
import { CudaProgram } from '../../../src/backend/cuda/program.ts'
import { StepBuffer } from '../../../src/backend/cuda/step/buffer.ts'
import { SkeinError } from '../../../src/errors.ts'

const CAPACITY = { tokens: 8, rows: 4, logits: 4, samples: 0 }

/** A device that counts allocations and frees; `room`: how many allocations of either memory succeed. */
function fakeDevice() {
  const live = new Set<unknown>()
  const state = { room: Number.POSITIVE_INFINITY }
  let next = 1n
  const take = (one: unknown) => {
    if (state.room-- <= 0) throw new SkeinError('out_of_memory', 'full')
    live.add(one)
  }
  const give = (one: unknown) => {
    if (!live.delete(one)) throw new Error('given back what was not taken')
  }
  const device = {
    alloc() {
      const address = next++
      take(address)
      return address
    },
    free: give,
    fill() {},
    uploadAsync(to: bigint) {
      if (!live.has(to)) throw new Error('a copy to memory that was given back')
    },
    pinned(bytes: number) {
      const buffer = { buffer: new ArrayBuffer(bytes), dispose: () => give(buffer) }
      take(buffer)
      return buffer
    },
    driver: { call() {}, functions: { cuEventSynchronize: () => 0 } },
    synchronize() {},
  }
  return { device: device as unknown as CudaDevice, live, state }
}

test('a step buffer that cannot allocate a part frees the rest', () => {
  // Two blocks of device memory and two page-locked images of each.
  for (let room = 0; room < 6; room++) {
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
