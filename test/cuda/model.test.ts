import { afterAll, beforeAll, expect, test } from 'vitest'
import type { Backend } from '../../src/backend/backend.ts'
import { type CudaOptions, createCudaBackend } from '../../src/backend/cuda/cuda.ts'
import { type Flight, landed } from '../../src/backend/flight.ts'
import { createReferenceBackend } from '../../src/backend/reference/reference.ts'
import type { WeightType } from '../../src/backend/weight-types.ts'
import { openCheckpoint } from '../../src/model/checkpoint.ts'
import { loadModel } from '../../src/model/run/load-model.ts'
import { ModelRunner } from '../../src/model/run/model-runner.ts'
import type { StateData } from '../../src/model/runner.ts'
import { ARCHITECTURES, draw, someTokens, type TestArchitecture, tinyModel } from '../helpers/runner.ts'
import { describeCuda, hasFp8 } from './kit.ts'

const SLOTS = 40

function runnerOn(architecture: TestArchitecture, backend: Backend, weightType?: WeightType): ModelRunner {
  const checkpoint = openCheckpoint(tinyModel(architecture))
  const model = loadModel(checkpoint, backend, { weightType })
  checkpoint.close()
  return new ModelRunner(model, backend, { numSlots: SLOTS, maxTokens: 256, fingerprint: '' })
}

/** Largest difference, in units of the largest logit. */
function difference(actual: Float32Array, expected: Float32Array): number {
  const size = expected.reduce((max, x) => Math.max(max, Math.abs(x)), 0)
  // Math.max keeps a NaN.
  return expected.reduce((max, x, i) => Math.max(max, Math.abs(actual[i]! - x)), 0) / size
}

/** Feeds a row in chunks; returns the logits after its last token. */
function feed(runner: ModelRunner, slot: number, tokens: Int32Array, size: number): Float32Array {
  for (let start = 0; start < tokens.length - 1; start += size) {
    const chunk = tokens.subarray(start, Math.min(start + size, tokens.length - 1))
    runner.step([{ slot, tokens: chunk, samples: [] }])
  }
  const last = tokens.slice(-1)
  return runner.step([{ slot, tokens: last, samples: [], allLogits: true }])[0]!.logits!
}

for (const architecture of ARCHITECTURES) {
  describeCuda(`${architecture} on cuda`, () => {
    const cudaRunner = (options: CudaOptions = {}) => runnerOn(architecture, createCudaBackend(options))
    const oracle = runnerOn(architecture, createReferenceBackend())
    let runner: ModelRunner
    beforeAll(() => {
      runner = cudaRunner()
    })
    afterAll(() => runner.dispose())

    test.each([1, 5, 30, 100])('%i tokens have the logits of the reference', (count) => {
      const tokens = someTokens(count, count)
      for (const one of [oracle, runner]) one.clearSlot(0)
      const expected = feed(oracle, 0, tokens, 256)
      expect(difference(feed(runner, 0, tokens, 256), expected)).toBeLessThan(3e-3)
      for (const size of [1, 7, 16]) {
        runner.clearSlot(1)
        expect(difference(feed(runner, 1, tokens, size), expected), `by ${size}`).toBeLessThan(3e-3)
      }
    })

    test('f16 states stay close', () => {
      const tokens = someTokens(60, 3)
      const half = cudaRunner({ wkv: 'f16' })
      oracle.clearSlot(0)
      const expected = feed(oracle, 0, tokens, 256)
      for (const size of [1, 9]) {
        half.clearSlot(2)
        expect(difference(feed(half, 2, tokens, size), expected)).toBeLessThan(1e-2)
      }
      half.dispose()
    })

    test.each([2, 9, 33])('alone = among %i rows that come and go', (size) => {
      const tokens = someTokens(16, 1)
      oracle.clearSlot(0)
      const expected = feed(oracle, 0, tokens, 256)
      for (let slot = 0; slot < size; slot++) runner.clearSlot(slot)
      let logits = new Float32Array(0)
      for (const [t, token] of tokens.entries()) {
        const rows = Array.from({ length: size - 1 }, (_, slot) => ({
          slot,
          tokens: someTokens(t % 5 === 4 ? 3 : 1, slot * 100 + t),
          samples: [draw(slot)],
        })).filter(({ slot }) => (slot + t) % 3 !== 0)
        const mine = { slot: size - 1, tokens: Int32Array.of(token), samples: [], allLogits: true }
        rows.splice(t % (rows.length + 1), 0, mine as never)
        const results = runner.step(rows)
        logits = Float32Array.from(results.find((result) => result.logits)!.logits!)
      }
      expect(difference(logits, expected)).toBeLessThan(3e-3)
    })

    test('a graph computes the same as its kernels one by one', () => {
      const eager = cudaRunner({ graphs: false })
      const greedy = (slot: number, position: number) => draw(slot, { temperature: 0, position })
      for (const size of [1, 5, 8, 13, 40]) {
        const next = Array.from({ length: size }, (_, slot) => someTokens(1, slot)[0]!)
        const states = [runner, eager].map((one) => {
          let tokens = next
          for (let slot = 0; slot < size; slot++) one.clearSlot(slot)
          for (let position = 0; position < 8; position++)
            tokens = one
              .step(
                tokens.map((token, slot) => ({
                  slot,
                  tokens: Int32Array.of(token),
                  samples: [greedy(slot, position)],
                })),
              )
              .map(({ drawn }) => drawn[0]!.token)
          return { tokens, state: one.readState(size - 1).result() }
        })
        expect(states[0], `${size} rows`).toEqual(states[1])
      }
      eager.dispose()
    })

    test('a state moves from cuda to the reference and back', () => {
      const tokens = someTokens(50, 9)
      oracle.clearSlot(0)
      const expected = feed(oracle, 0, tokens, 256)
      runner.clearSlot(4)
      runner.step([{ slot: 4, tokens: tokens.subarray(0, 20), samples: [] }])
      runner.copySlot(4, 6)
      runner.poisonSlot(4)
      oracle.writeState(1, runner.readState(6).result()).result()
      oracle.step([{ slot: 1, tokens: tokens.subarray(20, 35), samples: [] }])
      runner.writeState(7, oracle.readState(1).result()).result()
      expect(difference(feed(runner, 7, tokens.subarray(35), 256), expected)).toBeLessThan(3e-3)
    })

    test('changes to a slot after the start of a read do not change what is read', async () => {
      runner.clearSlot(4)
      runner.step([{ slot: 4, tokens: someTokens(20, 9), samples: [] }])
      const state = runner.readState(4).result()
      for (let round = 0; round < 20; round++) {
        runner.writeState(4, state).result()
        const read = runner.readState(4)
        runner.poisonSlot(4)
        runner.clearSlot(4)
        runner.step([{ slot: 4, tokens: someTokens(5, round), samples: [] }])
        expect(await landed(read)).toEqual(state)
      }
    })

    test('states in transfer in both directions, as many as possible, arrive complete', async () => {
      const states = Array.from({ length: 8 }, (_, slot) => {
        runner.clearSlot(slot)
        runner.step([{ slot, tokens: someTokens(10, slot), samples: [] }])
        return runner.readState(slot).result()
      })
      // Often enough that every lane is reused, by reads and by writes.
      for (let round = 0; round < 10; round++) {
        for (let slot = 8; slot < 16; slot++) runner.poisonSlot(slot)
        const writes = new Map<number, Flight<void>>()
        const reads = new Map<number, Flight<StateData>>()
        const end = performance.now() + 10_000
        while (reads.size < 8) {
          if (performance.now() > end) throw new Error(`${reads.size} of 8 states were read`)
          const [next] = [...states.keys()].filter((i) => !writes.has(i))
          if (next !== undefined && runner.canMove) writes.set(next, runner.writeState(8 + next, states[next]!))
          for (const [i, write] of writes)
            if (runner.canMove && !reads.has(i) && write.isDone) {
              reads.set(i, runner.readState(8 + i))
              runner.poisonSlot(8 + i)
            }
          await new Promise((resolve) => setImmediate(resolve))
        }
        for (const [i, read] of reads) expect(await landed(read)).toEqual(states[i])
      }
    })

    test('a write in progress leaves its slot unchanged', () => {
      runner.clearSlot(5)
      runner.step([{ slot: 5, tokens: someTokens(10, 5), samples: [] }])
      const before = runner.readState(5).result()
      const short = before.map((array) => array.slice(1))
      expect(() => runner.writeState(5, short)).toThrow('a state of')
      expect(runner.readState(5).result()).toEqual(before)
    })

    test('a poisoned state fails only its own row', () => {
      runner.clearSlot(0)
      runner.poisonSlot(1)
      const rows = [0, 1].map((slot) => ({ slot, tokens: someTokens(3, slot), samples: [draw(slot)] }))
      const tokens = runner.step(rows).map(({ drawn }) => drawn[0]!.token)
      expect(tokens.map((token) => token >= 0)).toEqual([true, false])
      runner.clearSlot(1)
    })
  })
}

for (const architecture of ARCHITECTURES)
  describeCuda(`${architecture} on cuda in fewer bits`, () => {
    test.each(['i8', 'q4', 'nf4'] as const)('%s has the logits of the reference', (type) => {
      const oracle = runnerOn(architecture, createReferenceBackend(), type)
      const runner = runnerOn(architecture, createCudaBackend(), type)
      const tokens = someTokens(100, 4)
      const expected = feed(oracle, 0, tokens, 256)
      for (const [slot, size] of [1, 9, 40, 99].entries())
        expect(difference(feed(runner, slot, tokens, size), expected), `by ${size}`).toBeLessThan(4e-3)
      runner.dispose()
    })

    test('fp8 is close to f32, and closer if the inputs are not rounded', ({ skip }) => {
      skip(!hasFp8(), 'this card has no fp8')
      const oracle = runnerOn(architecture, createReferenceBackend(), 'f32')
      const runner = runnerOn(architecture, createCudaBackend(), 'fp8')
      const tokens = someTokens(100, 4)
      const expected = feed(oracle, 0, tokens, 256)
      const [few, many] = [16, 99].map((size, slot) => difference(feed(runner, slot, tokens, size), expected))
      expect(few).toBeLessThan(0.05)
      expect(many).toBeLessThan(0.1)
      runner.dispose()
    })
  })
