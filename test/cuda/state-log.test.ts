/** States that are written every few tokens: the results do not depend on when. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test, vi } from 'vitest'
import type { Backend, StatePool } from '../../src/backend/backend.ts'
import { createCudaBackend } from '../../src/backend/cuda/cuda.ts'
import { CudaDevice } from '../../src/backend/cuda/device/device.ts'
import { statesOf } from '../../src/backend/cuda/step/operands.ts'
import { openCheckpoint } from '../../src/model/checkpoint.ts'
import { ModelRunner } from '../../src/model/run/model-runner.ts'
import { type BatchRow, fedByDraw } from '../../src/model/runner.ts'
import { loadRwkv7 } from '../../src/model/rwkv7.ts'
import { capacityFor, normals, raggedBatch, randomNorm } from '../backend/kit.ts'
import { writeRandomRwkv7 } from '../helpers/pth.ts'
import { draw, someTokens } from '../helpers/runner.ts'
import { backendOfGroup, describeCuda } from './kit.ts'
import { halves, poisonedHalves } from './ops-kit.ts'

/** An odd number of heads: the last block of a row has only one. */
const SHAPE = { layers: 2, channels: 960, heads: 15, headSize: 64 }
const C = SHAPE.channels
/** 80 slots have a log, and 72 rows let logs grow; half of them have none. */
const SLOTS = 80
const ROWS = 72

describeCuda('wkv7 of rows whose states are written every few tokens', () => {
  const cuda = backendOfGroup({ leastLogHeads: 1 })

  function poolOf(backend: Backend, slots: readonly number[]): StatePool {
    const pool = backend.statePool(SHAPE, slots.length)
    for (const [i, seed] of slots.entries())
      pool.write(i, [normals(4 * C, 100 + seed), normals(2 * 64 * C, 200 + seed, 0.3)]).result()
    return pool
  }

  /** A step of this many rows of one token, starting at the given one of all, through both layers. */
  function stepsOf(backend: Backend, pool: StatePool, first: number, rows: number) {
    const capacity = capacityFor(rows, rows)
    const outs = [0, 1].map(() => poisonedHalves(backend, [rows + 2, C]))
    const program = backend.record(capacity, (ops) => {
      for (const [layer, out] of outs.entries()) {
        const input = (seed: number) => {
          const all = halves(ROWS * C, 10 * layer + seed)
          const values = new Float32Array((rows + 2) * C)
          values.set(all.subarray(first * C, (first + rows) * C))
          return backend.activation([rows + 2, C], values)
        }
        const constant = (seed: number) => backend.tensor([C], normals(C, 10 * layer + seed))
        const operands = {
          ...{ r: input(1), k: input(2), v: input(3), w: input(4), a: input(5), g: input(6) },
          ...{ vGate: input(7), vFirst: input(8) },
        }
        const weights = {
          ...{ k_k: constant(31), k_a: constant(32), r_k: constant(33) },
          ln_x: randomNorm(backend, C, 64e-5, 34),
        }
        ops.wkv7(out, operands, weights, pool, layer)
      }
    })
    return (slots: readonly number[]) => {
      const lengths = slots.map(() => 1)
      program.run(raggedBatch(capacity, lengths, slots, 1))
      return outs.map((out) => backend.readTensor(out, 0, slots.length * C).result())
    }
  }

  test('equals that of rows whose states are written with every token, to the bit', () => {
    const half = SLOTS / 2
    const all = Array.from({ length: SLOTS }, (_, slot) => slot)
    const whole = poolOf(cuda(), all)
    const halfPools = [poolOf(cuda(), all.slice(0, half)), poolOf(cuda(), all.slice(half))]
    const [logs, halfLogs] = [whole, halfPools[0]!].map((pool) => statesOf(pool).openLog())
    expect([logs === null, halfLogs === null]).toEqual([false, true])
    const inOne = stepsOf(cuda(), whole, 0, ROWS)
    const inTwo = halfPools.map((pool, i) => stepsOf(cuda(), pool, (i * ROWS) / 2, ROWS / 2))

    // Slots come and go, so that logs have all lengths.
    const slotsAt = (step: number) => Array.from({ length: ROWS / 2 }, (_, row) => (row + 5 * step) % half)
    for (let step = 0; step < 11; step++) {
      const slots = slotsAt(step)
      const parts = inTwo.map((run) => run(slots))
      const outs = inOne([...slots, ...slots.map((slot) => half + slot)])
      for (const [layer, out] of outs.entries())
        expect(out, `step ${step}`).toEqual(Float32Array.from(parts.flatMap((part) => [...part[layer]!])))
      for (const [pool, first] of [[whole, half] as const, [halfPools[1]!, 0] as const]) {
        if (step === 4) pool.copy(first + 7, first + 11)
        if (step === 5) pool.clear(first + 3)
        if (step === 6) pool.write(first + 21, pool.read(first + 20).result()).result()
      }
    }
    for (const slot of all)
      expect(whole.read(slot).result(), `slot ${slot}`).toEqual(
        halfPools[slot < half ? 0 : 1]!.read(slot % half).result(),
      )
  })
})

/** Three heads each: from 342 rows on logs grow. */
const MANY = 350
const RUNNER_SLOTS = 360

describeCuda('answers whose states are written every few tokens', () => {
  const folder = mkdtempSync(join(tmpdir(), 'skein-'))
  let runners: ModelRunner[]
  beforeAll(() => {
    const path = writeRandomRwkv7(join(folder, 'three-heads.pth'), {
      ...{ layers: 3, channels: 192, ranks: { v: 32 } },
    })
    runners = [true, false].map((graphs) => {
      const backend = createCudaBackend({ graphs, leastLogHeads: 1 })
      const checkpoint = openCheckpoint(path)
      const model = loadRwkv7(checkpoint, backend, {})
      checkpoint.close()
      const options = { numSlots: RUNNER_SLOTS, maxTokens: 1024, numSpares: 4, numKept: 8, fingerprint: '' }
      return new ModelRunner(model, backend, options)
    })
  })
  afterAll(() => {
    for (const runner of runners) runner.dispose()
    rmSync(folder, { recursive: true })
  })

  const slots = Array.from({ length: RUNNER_SLOTS }, (_, slot) => slot)
  const row = (slot: number, tokens: Int32Array, position: number, fields = {}): BatchRow => ({
    ...{ slot, tokens, samples: [draw(slot, { position, seed: BigInt(slot) })] },
    ...fields,
  })
  const known = (slot: number, position: number) => row(slot, someTokens(1, 1000 * position + slot), position)
  const guessed = (slot: number, position: number, count: number, spares: readonly number[], every: number) =>
    row(slot, someTokens(count + 1, 1000 * position + slot), position, {
      samples: Array.from({ length: count + 1 }, (_, i) => draw(slot, { position: position + i })),
      guesses: { count, spares, every },
    })

  /** Everything that may happen to a slot between steps of many rows; returns all draws and the final states. */
  function story(runner: ModelRunner, before: () => void): unknown[] {
    const seen: unknown[] = []
    const step = (rows: readonly BatchRow[]) => {
      before()
      const results = runner.step(rows)
      seen.push(results.map(({ drawn, logits }) => [drawn.map(({ token }) => token), logits]))
    }
    const many = (position: number, count = MANY) => step(slots.slice(0, count).map((slot) => known(slot, position)))
    for (const slot of slots) runner.clearSlot(slot)
    step(slots.map((slot) => row(slot, someTokens(1 + (slot % 2), slot), 0)))
    for (let position = 1; position < 6; position++) many(position)
    // Two steps in flight; some rows of the second do not run, whatever was drawn.
    before()
    const flights = [slots.slice(0, MANY).map((slot) => known(slot, 6))]
    const stops = new Set(Array.from({ length: 512 }, (_, token) => token))
    flights.push(
      slots.slice(0, MANY).map((slot) => row(slot, Int32Array.of(fedByDraw(slot)), 7, slot % 3 === 0 ? { stops } : {})),
    )
    const launched = flights.map((rows) => runner.launch(rows))
    for (const flight of launched) seen.push(flight.result().map(({ drawn }) => drawn[0]!.token))
    // Prompts in slots with a log, beside the others.
    const prompts = [row(346, someTokens(5, 1), 8), row(347, someTokens(40, 2), 8)]
    step([...slots.slice(0, 344).map((slot) => known(slot, 8)), ...prompts])
    step([...slots.slice(0, 20).map((slot) => known(slot, 9)), row(30, someTokens(33, 3), 9)])
    runner.copySlot(5, 355)
    runner.clearSlot(6)
    const kept = runner.readState(7).result()
    runner.poisonSlot(7)
    runner.clearSlot(7)
    runner.writeState(8, kept).result()
    many(10, 356)
    many(11, 356)
    // More slots to merge than one launch takes.
    step(slots.slice(100, 200).map((slot) => row(slot, someTokens(2, slot), 12)))
    step([known(9, 12)])
    step([known(9, 13), known(10, 13)])
    step(slots.slice(8, 18).map((slot) => known(slot, 14)))
    step([row(11, someTokens(3, 4), 15, { allLogits: true }), known(12, 15)])
    many(16)
    many(17)
    // Guesses in slots with a log: states are kept in places that had logs of their own a round before, and come back.
    for (const position of [18, 22, 26]) {
      const guesses = [guessed(345, position, 3, [0, 1, 2], 1), guessed(346, position, 5, [3, 4], 3)]
      step([...slots.slice(0, 340).map((slot) => known(slot, position)), ...guesses])
      runner.rewindSlot(345, 1)
      runner.rewindSlot(346, 4)
      for (const [slot, every] of [
        [347, 1],
        [348, 0],
      ] as const) {
        step([guessed(slot, position, 1, [5 + every], every)])
        runner.rewindSlot(slot, 5 + every)
      }
      many(position + 1)
      many(position + 2)
    }
    seen.push(slots.map((slot) => runner.readState(slot).result()))
    return seen
  }

  test.each([
    ['graphs', 0],
    ['launches', 1],
  ])('equal those of states that are written with every token, in %s', (_, which) => {
    const runner = runners[which]!
    const launch = vi.spyOn(CudaDevice.prototype, 'launch')
    const late = story(runner, () => {})
    const merged = launch.mock.calls
      .filter(([kernel]) => kernel.label.includes('wkv7_merge'))
      .map(([, grid]) => grid[1])
    launch.mockRestore()
    expect(merged.slice(merged.indexOf(64)).slice(0, 2)).toEqual([64, 36])
    // Before a state is read, it is written.
    const always = story(runner, () => {
      for (const slot of slots) runner.readState(slot).result()
    })
    expect(always).toEqual(late)
    expect(late.flat(3).includes(-1)).toBe(true)
  })
})
