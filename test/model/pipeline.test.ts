/** A model over several backends is the same model: every number, bit for bit, and every state. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { DeviceChoice } from '../../src/host/device-choice.ts'
import { loadRunner } from '../../src/host/load.ts'
import type { ModelRunner } from '../../src/model/run/model-runner.ts'
import type { BatchRow } from '../../src/model/runner.ts'
import { ARCHITECTURES, BACKENDS, draw, someTokens, tinyModel } from '../helpers/runner.ts'

type Architecture = (typeof ARCHITECTURES)[number]

function runnerOn(devices: readonly DeviceChoice[], architecture: Architecture = 'rwkv7') {
  const [device] = devices
  const model = tinyModel(architecture)
  return loadRunner({ model, device, ppDevices: devices, slots: 6, maxTokens: 64, threads: 1 })
}

/** A few steps with rows that come, go and are scored, with draws of all kinds; returns their results and a state. */
function play(runner: ModelRunner) {
  for (let slot = 0; slot < 6; slot++) runner.clearSlot(slot)
  runner.resetPenalties(1, someTokens(20, 1))
  const results = []
  for (let t = 0; t < 8; t++) {
    const rows: BatchRow[] = [0, 1, 2]
      .filter((slot) => (slot + t) % 3 !== 2)
      .map((slot) => ({
        slot,
        tokens: someTokens(t % 4 === slot ? 9 : 1, 10 * slot + t),
        samples: [draw(slot, { position: t, repetitionPenalty: 1.3, logprobs: 3 })],
      }))
    rows.push({ slot: 3, tokens: someTokens(4, t), samples: [], allLogits: true })
    results.push(...runner.step(rows))
  }
  runner.copySlot(3, 5)
  return { results, state: runner.readState(5).result() }
}

describe.each(BACKENDS)('on %s', (device) => {
  describe.each(ARCHITECTURES)('%s', (architecture) => {
    let [whole, two, three]: ModelRunner[] = []
    beforeAll(() => {
      whole = runnerOn([device], architecture)
      two = runnerOn([device, device], architecture)
      three = runnerOn([device, device, device], architecture)
    })
    afterAll(() => {
      for (const runner of [whole, two, three]) runner?.dispose()
    })

    test('every result and state equals that of one device', () => {
      const expected = play(whole!)
      expect(play(two!)).toEqual(expected)
      expect(play(three!)).toEqual(expected)
      expect(expected.results.flatMap(({ drawn }) => drawn).length).toBeGreaterThan(10)
    })

    test('a state moves from a pipeline to one device and back', () => {
      const tokens = someTokens(30, 5)
      const feed = (runner: ModelRunner, from: number, to: number) =>
        runner.step([{ slot: 2, tokens: tokens.subarray(from, to), samples: [], allLogits: true }])[0]!.logits!
      for (const runner of [whole!, two!, three!]) runner.clearSlot(2)
      // Saved as f32, so the one that never moves is saved and restored as well.
      const expected = [
        [0, 10],
        [10, 20],
        [20, 30],
      ].map(([from, to]) => {
        const logits = feed(whole!, from!, to!)
        whole!.writeState(2, whole!.readState(2).result()).result()
        return logits
      })
      expect(feed(two!, 0, 10)).toEqual(expected[0])
      whole!.writeState(2, two!.readState(2).result()).result()
      expect(feed(whole!, 10, 20)).toEqual(expected[1])
      three!.writeState(2, whole!.readState(2).result()).result()
      expect(feed(three!, 20, 30)).toEqual(expected[2])
    })

    test('a state is the same, whole, with every number of stages', () => {
      const state = whole!.readState(2).result()
      for (const runner of [two!, three!]) {
        runner.clearSlot(1)
        runner.writeState(1, state).result()
        expect(runner.readState(1).result()).toEqual(state)
      }
    })

    test('a poisoned slot fails its own row, and clearing heals it', () => {
      for (const slot of [0, 1]) two!.clearSlot(slot)
      two!.poisonSlot(1)
      const rows = [0, 1].map((slot) => ({ slot, tokens: someTokens(3, 1), samples: [draw(slot)] }))
      const tokens = () => two!.step(rows).map(({ drawn }) => drawn[0]!.token)
      expect(tokens().map((token) => token >= 0)).toEqual([true, false])
      for (const slot of [0, 1]) two!.clearSlot(slot)
      const [a, b] = tokens()
      expect(a).toBe(b)
    })

    test('it describes itself as the whole model', () => {
      const { device: _, ...info } = whole!.info
      expect(three!.info).toMatchObject(info)
      expect(three!.info.device).toBe(`pipeline of ${Array(3).fill(`1 layer on ${whole!.info.device}`).join('; ')}`)
    })
  })
})

test('layers on different backends pass f32', () => {
  const [mixed, whole] = [runnerOn(['cpu', 'reference']), runnerOn(['reference'])]
  const [a, b] = [mixed, whole].map(
    (runner) => runner.step([{ slot: 0, tokens: someTokens(20, 1), samples: [], allLogits: true }])[0]!.logits!,
  )
  const largest = b!.reduce((max, x) => Math.max(max, Math.abs(x)), 0)
  expect(Math.max(...a!.map((x, i) => Math.abs(x - b![i]!))) / largest).toBeLessThan(1e-4)
  for (const runner of [mixed, whole]) runner.dispose()
})

test('a state of another shape is refused and changes nothing', () => {
  const runner = runnerOn(['reference', 'reference'])
  runner.step([{ slot: 0, tokens: someTokens(5, 1), samples: [] }])
  const before = runner.readState(0).result()
  const short = [before[0]!.slice(1), before[1]!]
  expect(() => runner.writeState(0, short).result()).toThrow('a state of')
  expect(runner.readState(0).result()).toEqual(before)
  runner.dispose()
})

test('steps in flight end in order with the results of single steps', () => {
  const [pipeline, whole] = [runnerOn(['cpu', 'cpu', 'cpu']), runnerOn(['cpu'])]
  expect(pipeline.maxFlights).toBe(3)
  const rowsOf = (slot: number): BatchRow[] => [{ slot, tokens: someTokens(5, slot), samples: [draw(slot)] }]
  const flights = [0, 1, 2].map((slot) => pipeline.launch(rowsOf(slot)))
  expect(() => pipeline.launch(rowsOf(3))).toThrow('3 flights are on their way')
  const expected = [0, 1, 2].map((slot) => whole.step(rowsOf(slot)))
  expect(flights.map((flight) => flight.result())).toEqual(expected)
  for (const runner of [pipeline, whole]) runner.dispose()
})

test('more devices than layers are refused', () => {
  expect(() => runnerOn(['cpu', 'cpu', 'cpu', 'cpu'])).toThrow('3 layers cannot be split over 4')
})
