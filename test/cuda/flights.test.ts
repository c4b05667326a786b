/**
 * Overlapped steps on a GPU: rows that feed the draws of the previous step, rows stopped by a stop token or a draw that
 * was not finite, graphs with lists of biases, and the check of replayed steps at warm-up.
 */
import { afterAll, beforeAll, expect, test, vi } from 'vitest'
import { createCudaBackend } from '../../src/backend/cuda/cuda.ts'
import { CudaDevice } from '../../src/backend/cuda/device/device.ts'
import { openCheckpoint } from '../../src/model/checkpoint.ts'
import { ModelRunner } from '../../src/model/run/model-runner.ts'
import { type BatchRow, fedByDraw } from '../../src/model/runner.ts'
import { loadRwkv6 } from '../../src/model/rwkv6.ts'
import { loadRwkv7 } from '../../src/model/rwkv7.ts'
import { draw, someTokens, tinyModel } from '../helpers/runner.ts'
import { describeCuda } from './kit.ts'

const SLOTS = 40
const STEPS = 12

function runnerOn(graphs: boolean, architecture: 'rwkv6' | 'rwkv7' = 'rwkv7'): ModelRunner {
  const backend = createCudaBackend({ graphs })
  const checkpoint = openCheckpoint(tinyModel(architecture))
  const load = architecture === 'rwkv7' ? loadRwkv7 : loadRwkv6
  const model = load(checkpoint, backend, {})
  checkpoint.close()
  return new ModelRunner(model, backend, { numSlots: SLOTS, maxTokens: 256, fingerprint: '' })
}

function promptRows(rows: number): BatchRow[] {
  return Array.from({ length: rows }, (_, slot) => ({
    slot,
    tokens: someTokens(2 + (slot % 3), slot + 1),
    samples: [draw(slot, { frequencyPenalty: 0.5, seed: BigInt(slot) })],
  }))
}

function next(slot: number, token: number, position: number, fields = {}): BatchRow {
  const seed = BigInt(slot)
  return {
    slot,
    tokens: Int32Array.of(token),
    samples: [draw(slot, { position, frequencyPenalty: 0.5, seed, ...fields })],
  }
}

/** A slot as a request gets it: the state before any token, no penalty counts. */
function begin(runner: ModelRunner, slot: number): void {
  runner.clearSlot(slot)
  runner.resetPenalties(slot, Int32Array.of())
}

/** Tokens of each step, with all rows in every step. */
function answers(runner: ModelRunner, rows: number, isOverlapped: boolean): number[][] {
  for (let slot = 0; slot < rows; slot++) begin(runner, slot)
  const tokens: number[][] = []
  const flights = [runner.launch(promptRows(rows))]
  for (let position = 1; position < STEPS; position++) {
    if (!isOverlapped) tokens.push(drawnBy(flights))
    const known = tokens.at(-1)
    const row = (slot: number) => next(slot, isOverlapped ? fedByDraw(slot) : known![slot]!, position)
    flights.push(runner.launch(Array.from({ length: rows }, (_, slot) => row(slot))))
    if (isOverlapped) tokens.push(drawnBy(flights))
  }
  tokens.push(drawnBy(flights))
  return tokens
}

function drawnBy(flights: ReturnType<ModelRunner['launch']>[]): number[] {
  return flights
    .shift()!
    .result()
    .map(({ drawn }) => drawn[0]!.token)
}

describeCuda('flights on cuda', () => {
  let runner: ModelRunner
  beforeAll(() => {
    runner = runnerOn(true)
  })
  afterAll(() => runner.dispose())

  test.each([
    [1, true],
    [3, true],
    [16, true],
    [40, true],
    [1, false],
    [9, false],
  ])('of %i rows (graphs %s) draw the same as single steps', (rows, graphs) => {
    const one = graphs ? runner : runnerOn(false)
    const plain = answers(one, rows, false)
    const state = one.readState(rows - 1).result()
    expect(answers(one, rows, true)).toEqual(plain)
    expect(one.readState(rows - 1).result()).toEqual(state)
    expect(plain.flat().every((token) => token >= 0)).toBe(true)
    if (!graphs) one.dispose()
  })

  test.each([1, 2, 7])('%i rows with one stopped: its state and counts stay', (rows) => {
    const slot = rows - 1
    const [first] = answers(runner, rows, false)
    const run = (stops: number[]) => {
      for (let s = 0; s < rows; s++) begin(runner, s)
      const before = runner.launch(promptRows(rows))
      const after = runner.launch(
        Array.from({ length: rows }, (_, s) => ({
          ...next(s, fedByDraw(s), 1),
          ...(s === slot ? { stops: new Set(stops) } : {}),
        })),
      )
      before.result()
      return after.result().map(({ drawn }) => drawn[0]!.token)
    }
    const ran = run([])
    const held = run([3, first![slot]!, 5])
    expect(held[slot]).toBe(-1)
    expect(held.slice(0, slot)).toEqual(ran.slice(0, slot))
    const kept = runner.readState(slot).result()
    const again = runner.step([next(slot, first![slot]!, 1)])[0]!.drawn[0]!.token
    for (let s = 0; s < rows; s++) begin(runner, s)
    runner.step(promptRows(rows))
    expect(runner.readState(slot).result()).toEqual(kept)
    expect(runner.step([next(slot, first![slot]!, 1)])[0]!.drawn[0]!.token).toBe(again)
  })

  test('two rows, both stopped: their states stay', () => {
    const first = answers(runner, 2, false)[0]!
    for (let slot = 0; slot < 2; slot++) begin(runner, slot)
    runner.step(promptRows(2))
    const states = [0, 1].map((slot) => runner.readState(slot).result())
    for (let slot = 0; slot < 2; slot++) begin(runner, slot)
    const before = runner.launch(promptRows(2))
    const held = (slot: number) => ({ ...next(slot, fedByDraw(slot), 1), stops: new Set([first[slot]!]) })
    const after = runner.launch([held(0), held(1)])
    before.result()
    expect(after.result().map(({ drawn }) => drawn[0]!.token)).toEqual([-1, -1])
    expect([0, 1].map((slot) => runner.readState(slot).result())).toEqual(states)
  })

  test('a row whose draw was not finite is stopped, other rows run', () => {
    for (let slot = 0; slot < 3; slot++) begin(runner, slot)
    runner.poisonSlot(1)
    const before = runner.launch(promptRows(3))
    const after = runner.launch([0, 1, 2].map((slot) => next(slot, fedByDraw(slot), 1)))
    const tokens = [before, after].map((flight) => flight.result().map(({ drawn }) => drawn[0]!.token >= 0))
    expect(tokens).toEqual([
      [true, false, true],
      [true, false, true],
    ])
    begin(runner, 1)
  })

  test('biases of any number work in graphs as in single launches', () => {
    const eager = runnerOn(false)
    const steps = [runner, eager].map((one) => {
      for (let slot = 0; slot < 4; slot++) begin(one, slot)
      return [1, 40, 400, 2].map((count, position) => {
        const bias = new Map(Array.from({ length: count }, (_, i) => [i, i % 3 ? 1 : -Infinity]))
        const rows = [0, 1, 2, 3].map((slot) => next(slot, 7, position, slot < 2 ? { bias } : {}))
        return one.step(rows).map(({ drawn }) => drawn[0]!.token)
      })
    })
    expect(steps[0]).toEqual(steps[1])
    eager.dispose()
  })

  // Both of each pair have the same bucketed shape: the first is launched, the second captured and replayed.
  test.each(['rwkv7', 'rwkv6'] as const)('prompts of %s in graphs are what they are in single launches', (of) => {
    const capture = vi.spyOn(CudaDevice.prototype, 'capture')
    const runners = [runnerOn(true, of), runnerOn(false, of)]
    for (const one of runners) for (const slot of [0, 1, 2]) begin(one, slot)
    const steps = [[40], [35], [1, 50, 33], [1, 44, 37], [40, 40], [41, 39], [2, 3, 1], [3, 2, 3]]
    for (const lengths of [...steps, ...steps, [200], [39], [1, 40, 33]]) {
      const [graphs, single] = runners.map((one) => {
        const rows = lengths.map((length, slot) => ({
          slot,
          tokens: someTokens(length, slot + 1),
          samples: slot === 0 ? [] : [draw(slot, { seed: BigInt(slot) })],
        }))
        const results = one.step(rows).map(({ drawn }) => drawn)
        return [results, lengths.map((_, slot) => one.readState(slot).result())]
      })
      expect(graphs, `rows ${lengths}`).toEqual(single)
    }
    const labels = capture.mock.calls.map(([, label]) => label)
    expect(labels).toEqual(expect.arrayContaining(['step of 48 tokens in 1 rows', 'step of 96 tokens in 3 rows']))
    capture.mockRestore()
    for (const one of runners) one.dispose()
  })

  // More shapes than are cached, each captured: graphs are evicted with steps in flight.
  test('prompts in flight through one graph, and through many, equal single steps', () => {
    const steps = [1, 2, 3, 4].flatMap((rows) =>
      [5, 9, 17, 25, 33, 49, 60].flatMap((most) =>
        // Without draws of the first row, and with them; each three times.
        [0, 0, 0, 1, 1, 1].map((draws) => ({ rows, most, draws })),
      ),
    )
    const play = (one: ModelRunner, maxFlights: number) => {
      for (let slot = 0; slot < 4; slot++) begin(one, slot)
      const flights: ReturnType<ModelRunner['launch']>[] = []
      const results: unknown[] = []
      const land = () => results.push(flights.shift()!.result())
      for (const [position, { rows, most, draws }] of [...steps, ...steps].entries()) {
        const rowOf = (slot: number): BatchRow => ({
          slot,
          tokens: someTokens(most - slot, slot + position),
          samples: slot > 0 || draws > 0 ? [draw(slot, { position, seed: BigInt(slot) })] : [],
        })
        flights.push(one.launch(Array.from({ length: rows }, (_, slot) => rowOf(slot))))
        if (flights.length === maxFlights) land()
      }
      while (flights.length > 0) land()
      return [results, [0, 1, 2, 3].map((slot) => one.readState(slot).result())]
    }
    const single = runnerOn(false)
    expect(play(runner, 2)).toEqual(play(single, 1))
    single.dispose()
  })

  test('warm-up makes the graphs and finds replayed steps right', () => {
    const fresh = runnerOn(true)
    const warnings: string[] = []
    let progress = 0
    fresh.warmUp({
      onProgress: (done, total) => {
        progress = done / total
      },
      onWarning: (message) => warnings.push(message),
    })
    expect([progress, warnings]).toEqual([1, []])
    expect(answers(fresh, 5, true)).toEqual(answers(runner, 5, true))
    fresh.dispose()
  })
})
