/** Rows of one token on cuda beside prompts: their results are the same as without them, to the bit. */
import { expect, test } from 'vitest'
import type { Backend, Ops, StatePool } from '../../src/backend/backend.ts'
import { createCudaBackend } from '../../src/backend/cuda/cuda.ts'
import { openCheckpoint } from '../../src/model/checkpoint.ts'
import { loadModel } from '../../src/model/run/load-model.ts'
import { ModelRunner } from '../../src/model/run/model-runner.ts'
import { capacityFor, normals, raggedBatch, randomNorm, runOnce, wkv7Weights } from '../backend/kit.ts'
import { ARCHITECTURES, draw, someTokens, tinyModel } from '../helpers/runner.ts'
import { backendOfGroup, describeCuda } from './kit.ts'
import { halves, poisonedHalves, randomStates } from './ops-kit.ts'

const C = 192
const SHAPE = { layers: 1, channels: C, heads: 3, headSize: 64 }
/** Rows alone, then all together: two of one token, one short, one long. */
const LENGTHS = [1, 1, 9, 50]
const SLOTS = [3, 0, 4, 1]

/** Records one op with inputs of this many tokens. */
type Build = (
  ops: Ops,
  backend: Backend,
  input: (seed: number) => ReturnType<Backend['activation']>,
  states: StatePool,
  tokens: number,
) => ReturnType<Backend['activation']>

const BUILDS: Readonly<Record<string, Build>> = {
  shiftMix: (ops, backend, _, states, tokens) => {
    const out = poisonedHalves(backend, [tokens + 2, C])
    const x = backend.tensor([tokens + 2, C], normals(Math.max(100, tokens + 2) * C, 9).slice(0, (tokens + 2) * C))
    const mix = backend.tensor([C], normals(C, 20))
    ops.shiftMix([out], x, randomNorm(backend, C, 1e-5, 1), [mix], states, 0, 1)
    return out
  },
  wkv7: (ops, backend, input, states, tokens) => {
    const out = poisonedHalves(backend, [tokens + 2, C])
    const operands = {
      ...{ r: input(1), k: input(2), v: input(3), w: input(4), a: input(5), g: input(6) },
      ...{ vGate: input(7), vFirst: input(8) },
    }
    const weights = wkv7Weights(backend, C)
    ops.wkv7(out, operands, weights, states, 0)
    return out
  },
  wkv6: (ops, backend, input, states, tokens) => {
    const out = poisonedHalves(backend, [tokens + 2, C])
    const weights = { u: backend.tensor([C], normals(C, 6)), ln_x: randomNorm(backend, C, 64e-5, 7) }
    const operands = { r: input(1), k: input(2), v: input(3), w: input(4), g: input(5) }
    ops.wkv6(out, operands, weights, states, 0)
    return out
  },
}

/** Outputs and states of the first `count` rows, run alone. */
function run(backend: Backend, build: Build, count: number) {
  const lengths = LENGTHS.slice(0, count)
  const tokens = lengths.reduce((a, b) => a + b, 0)
  const capacity = capacityFor(tokens, count)
  const batch = raggedBatch(capacity, lengths, SLOTS.slice(0, count), 1)
  const states = randomStates(backend, SHAPE)
  // One long sequence; every run has a beginning of it.
  const input = (seed: number) => backend.activation([tokens + 2, C], halves(100 * C, seed).slice(0, (tokens + 2) * C))
  let out: ReturnType<Build> | null = null
  runOnce(backend, capacity, batch, (ops) => {
    out = build(ops, backend, input, states, tokens)
  })
  return lengths.map((length, row) => {
    const start = lengths.slice(0, row).reduce((a, b) => a + b, 0)
    return [backend.readTensor(out!, start * C, length * C).result(), states.read(SLOTS[row]!).result()]
  })
}

/** What wkv7 makes of the outputs of an op, in one program or in one after the other. A long row takes longer than the others. */
function readAfter(backend: Backend, build: Build, isOne: boolean) {
  const tokens = 1 + 1 + 9 + 600
  const capacity = capacityFor(tokens, SLOTS.length)
  const batch = raggedBatch(capacity, [1, 1, 9, 600], SLOTS, 1)
  const states = randomStates(backend, SHAPE)
  const input = (seed: number) => backend.activation([tokens + 2, C], halves((tokens + 2) * C, seed))
  let out = input(1)
  const builds = [build, BUILDS.wkv7!].map((one) => (ops: Ops) => {
    const read = out
    out = one(ops, backend, (seed) => (seed === 1 ? read : input(seed)), states, tokens)
  })
  const both = (ops: Ops) => {
    for (const record of builds) record(ops)
  }
  for (const record of isOne ? [both] : builds) runOnce(backend, capacity, batch, record)
  return backend.readTensor(out, 0, tokens * C).result()
}

for (const wkv of ['f32', 'f16'] as const)
  describeCuda(`rows beside others, ${wkv} states`, () => {
    const cuda = backendOfGroup({ wkv })

    test.each(Object.keys(BUILDS))('%s of a row is the same with and without longer rows', (op) => {
      const all = run(cuda(), BUILDS[op]!, LENGTHS.length)
      for (let count = 1; count < LENGTHS.length; count++)
        expect(run(cuda(), BUILDS[op]!, count), `${count} rows`).toEqual(all.slice(0, count))
    })

    // Of the kernels of an op only the last is waited for, and that one waits for the others.
    test.each(['shiftMix', 'wkv7'])('what reads the results of %s waits for all rows', (op) => {
      const together = readAfter(cuda(), BUILDS[op]!, true)
      expect(together.every(Number.isFinite)).toBe(true)
      expect(together).toEqual(readAfter(cuda(), BUILDS[op]!, false))
    })
  })

for (const architecture of ARCHITECTURES)
  describeCuda(`answers of ${architecture} beside prompts`, () => {
    const runnerOf = (graphs: boolean) => {
      const backend = createCudaBackend({ graphs })
      const checkpoint = openCheckpoint(tinyModel(architecture))
      const model = loadModel(checkpoint, backend, {})
      checkpoint.close()
      return new ModelRunner(model, backend, { numSlots: 40, maxTokens: 512, fingerprint: '' })
    }

    /** Logits and states of three answers over a few steps, with these prompts in other slots. */
    const answers = (runner: ModelRunner, prompts: readonly number[]) => {
      for (let slot = 0; slot < 3 + prompts.length; slot++) runner.clearSlot(slot)
      const seen: unknown[] = []
      for (let position = 0; position < 4; position++) {
        const rows = [0, 1, 2].map((slot) => ({
          slot,
          tokens: someTokens(1, 10 * slot + position),
          samples: [draw(slot, { temperature: 0, position })],
          allLogits: true,
        }))
        const others = prompts.map((length, i) => ({ slot: 3 + i, tokens: someTokens(length, 100 + i), samples: [] }))
        // Prompts between answers: rows may come in any order.
        const step = [rows[0]!, ...others, rows[1]!, rows[2]!]
        const results = runner.step(step)
        for (const row of rows) {
          const { drawn, logits } = results[step.indexOf(row)]!
          seen.push(drawn, Float32Array.from(logits!))
        }
      }
      return [...seen, ...[0, 1, 2].map((slot) => runner.readState(slot).result())]
    }

    // Up to 16 tokens: larger products are the library's, whose order of additions depends on the number of tokens.
    test('are the same as alone, to the bit, in steps of up to 16 tokens', () => {
      const runner = runnerOf(true)
      const alone = answers(runner, [])
      for (const prompts of [[2], [13], [3, 7], [2, 2, 2, 2]])
        expect(answers(runner, prompts), `prompts ${prompts}`).toEqual(alone)
      runner.dispose()
    })

    test('are the same in a graph and without, beside prompts of any length', () => {
      const [graphs, single] = [runnerOf(true), runnerOf(false)]
      for (const prompts of [[20], [40], [300], [2, 33, 100], [1, 5, 31, 32]])
        expect(answers(graphs, prompts), `prompts ${prompts}`).toEqual(answers(single, prompts))
      for (const runner of [graphs, single]) runner.dispose()
    })
  })
