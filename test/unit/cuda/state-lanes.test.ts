/** States between slots and the host, with streams and threads in every order that events allow. */
import fc from 'fast-check'
import { expect, test } from 'vitest'
import { type LaneSlot, lanesFor, StateLanes } from '../../../src/backend/cuda/state-lanes.ts'
import type { Flight } from '../../../src/backend/flight.ts'
import type { StateData } from '../../../src/backend/state-shape.ts'
import { randomOf } from '../../helpers/random.ts'
import { StreamDevice } from '../../helpers/stream-device.ts'

const NUM_SLOTS = 3

/** Sizes of the two arrays of a state. */
const LENGTHS = [8, 24]
const LANES = lanesFor(4 * 32)

/** Large states are copied by another thread. */
function setUp(size: 'small' | 'large', seed: number) {
  const pick = randomOf(seed)
  const floats = LENGTHS.reduce((a, b) => a + b, 0)
  const device = new StreamDevice((NUM_SLOTS + LANES) * floats + 4096, pick)
  const slots = Array.from({ length: NUM_SLOTS }, () => device.alloc(4 * floats))
  const lanes = new StateLanes(device.asCuda, 4 * floats, size === 'large' ? 0 : undefined)
  const slotOf = (slot: number): LaneSlot => ({
    gather: (to) => device.copy(to, slots[slot]!, 4 * floats),
    scatter: (from) => device.copy(slots[slot]!, from, 4 * floats),
  })
  const stateOf = (value: number): StateData => LENGTHS.map((length, i) => new Float32Array(length).fill(value + i / 4))
  /** A step that changes the numbers in a slot. */
  const step = (slot: number, value: number) => {
    const numbers = stateOf(value)
    device.push(() => {
      let at = Number(slots[slot]!) / 4
      for (const array of numbers) {
        device.memory.set(array, at)
        at += array.length
      }
    })
  }
  return { device, lanes, slotOf, stateOf, step, pick }
}

function end<T>(device: StreamDevice, flight: Flight<T>): T {
  while (!flight.isDone) device.runOne()
  return flight.result()
}

const move = fc.record({
  type: fc.constantFrom('read' as const, 'write' as const, 'step' as const, 'run' as const),
  slot: fc.nat(NUM_SLOTS - 1),
  times: fc.integer({ min: 1, max: 12 }),
})

test.each([
  ['small', 300],
  ['large', 300],
] as const)(
  'whatever is asked, and however late it runs, %s states arrive as they were when they were asked for',
  (size, numRuns) => {
    fc.assert(
      fc.property(fc.array(move, { maxLength: 40 }), fc.integer({ min: 1 }), (moves, seed) => {
        const { device, lanes, slotOf, stateOf, step } = setUp(size, seed)
        const held = [0, 0, 0]
        for (const slot of held.keys()) step(slot, 0)
        const reads: { flight: Flight<StateData>; value: number }[] = []
        const writes = new Map<number, Flight<void>>()
        let value = 0
        for (const { type, slot, times } of moves) {
          value++
          for (const [at, flight] of writes) if (flight.isDone) writes.delete(at)
          const isFree = !writes.has(slot)
          if (type === 'run') for (let i = 0; i < times; i++) device.runOne()
          else if (type === 'step' && isFree) {
            step(slot, value)
            held[slot] = value
          } else if (type === 'read' && isFree && lanes.isAnyFree) {
            const into = stateOf(-1)
            reads.push({ flight: lanes.read(slotOf(slot), into), value: held[slot]! })
          } else if (type === 'write' && isFree && lanes.isAnyFree) {
            writes.set(slot, lanes.write(slotOf(slot), stateOf(value)))
            held[slot] = value
          }
          for (const { flight } of reads) void flight.isDone
        }
        for (const flight of writes.values()) end(device, flight)
        for (const { flight, value } of reads) expect(end(device, flight)).toEqual(stateOf(value))
        for (const slot of held.keys()) {
          while (!lanes.isAnyFree) device.runOne()
          const state = end(device, lanes.read(slotOf(slot), stateOf(-1)))
          expect(state).toEqual(stateOf(held[slot]!))
        }
      }),
      { numRuns, seed: 18 },
    )
  },
)

test('all who wait for a transfer get the same result', () => {
  const { device, lanes, slotOf, stateOf, step } = setUp('large', 5)
  step(0, 7)
  const read = lanes.read(slotOf(0), stateOf(-1))
  step(0, 8)
  expect(read.result()).toEqual(stateOf(7))
  lanes.write(slotOf(1), stateOf(9)).result()
  expect(lanes.read(slotOf(1), stateOf(-1)).result()).toEqual(stateOf(9))
  // The other threads have not copied yet, so their lanes are not free.
  while (device.runOne());
  expect(lanes.isAnyFree).toBe(true)
})

test('the number of lanes is fixed, and each lane becomes free again', () => {
  const { device, lanes, slotOf, stateOf } = setUp('large', 3)
  for (let round = 0; round < 3; round++) {
    const flights = Array.from({ length: LANES }, () => lanes.read(slotOf(0), stateOf(-1)))
    expect(lanes.isAnyFree).toBe(false)
    expect(() => lanes.read(slotOf(0), stateOf(-1))).toThrow('no lane is free')
    for (const flight of flights) end(device, flight)
    expect(lanes.isAnyFree).toBe(true)
  }
})

test('transfers that nobody polls release their lanes', () => {
  const { device, lanes, slotOf, stateOf } = setUp('large', 3)
  const flights = Array.from({ length: 20 }, (_, i) => {
    for (let left = 1000; !lanes.isAnyFree; left--) {
      if (left === 0) throw new Error('no lane came free')
      device.runOne()
    }
    return i % 2 ? lanes.write(slotOf(1), stateOf(i)) : lanes.read(slotOf(0), stateOf(-1))
  })
  for (const flight of flights) end<unknown>(device, flight)
})

test('many states can be waited for one after another while the event loop is blocked', () => {
  const { lanes, slotOf, stateOf, step } = setUp('large', 9)
  step(0, 7)
  for (let i = 0; i < 3 * LANES; i++) expect(lanes.read(slotOf(0), stateOf(-1)).result()).toEqual(stateOf(7))
  for (let i = 0; i < 3 * LANES; i++) {
    lanes.write(slotOf(1), stateOf(i)).result()
  }
  expect(lanes.read(slotOf(1), stateOf(-1)).result()).toEqual(stateOf(3 * LANES - 1))
})

test('the events of lanes are freed with their device', () => {
  const { device } = setUp('small', 1)
  expect(device.events.size).toBe(2 * LANES)
  device.dispose()
  expect(device.events.size).toBe(0)
})
