/**
 * Rows with guesses on a GPU: draws, penalty counts and states compared with a step per token, and the engine's answers
 * with and without guesses, on the GPU and on the CPU. Equal to the bit if the order of additions is the same.
 */
import { isDeepStrictEqual } from 'node:util'
import { beforeAll, expect, test } from 'vitest'
import { createCudaBackend } from '../../src/backend/cuda/cuda.ts'
import type { ProposerSource } from '../../src/engine/speculation/proposer.ts'
import { loadRunner } from '../../src/host/load.ts'
import { openCheckpoint } from '../../src/model/checkpoint.ts'
import { loadModel } from '../../src/model/run/load-model.ts'
import { ModelRunner } from '../../src/model/run/model-runner.ts'
import type { BatchRow, Drawn, SampleSpec } from '../../src/model/runner.ts'
import { rmsRatio } from '../backend/kit.ts'
import { draftOver, SCRIPTS, type Script, scripted, type Truth } from '../engine/guesses.ts'
import { type Answer, Collected, engineOver, requestOf, SAMPLING } from '../engine/kit.ts'
import { begin, guessed, oneByOne, PENALISED, type Way } from '../helpers/guessing.ts'
import { ARCHITECTURES, draw, someTokens, type TestArchitecture, tinyModel } from '../helpers/runner.ts'
import { describeCuda } from './kit.ts'

const VOCAB = 512
const NUM_DRAWN = 24
const SPECS: readonly Partial<SampleSpec>[] = [
  { temperature: 0, logprobs: 2 },
  { temperature: 1, topP: 0.9, logprobs: 3 },
  { temperature: 1, topP: 0.9, logprobs: 0, ...PENALISED, penaltyDecay: 0.9 },
  { temperature: 1.5, topK: 20, noise: 0, bias: new Map([[5, -Infinity]]) },
]

function runnerOf(graphs: boolean, wkv: 'f32' | 'f16', architecture: TestArchitecture): ModelRunner {
  const backend = createCudaBackend({ graphs, wkv })
  const checkpoint = openCheckpoint(tinyModel(architecture))
  const model = loadModel(checkpoint, backend, {})
  checkpoint.close()
  const sizes = { numSlots: 8, maxTokens: 64, numSpares: 4, numKept: 24 }
  return new ModelRunner(model, backend, { ...sizes, fingerprint: '' })
}

/** Rows of one token that only fill a step: a step of 3 tokens or more is computed differently from one of 1 or 2. */
function beside(count: number): BatchRow[] {
  return Array.from({ length: count }, (_, i) => ({ slot: 6 + i, tokens: Int32Array.of(7 + i), samples: [] }))
}

const WAYS: readonly Way[] = [
  { length: 1, wrongEvery: Number.POSITIVE_INFINITY },
  { length: 4, wrongEvery: Number.POSITIVE_INFINITY },
  { length: 7, wrongEvery: Number.POSITIVE_INFINITY },
  { length: 3, wrongEvery: 1 },
  { length: 5, wrongEvery: 4 },
]

/** If steps add in another order, a draw between two tokens may rarely differ. */
function expectNear(got: readonly Drawn[], expected: readonly Drawn[], what: string): void {
  const same = got.filter(({ token }, i) => token === expected[i]!.token)
  expect(same.length, what).toBeGreaterThanOrEqual(0.85 * got.length)
  for (const [i, { token, logprob }] of got.entries()) {
    const other = expected[i]!
    if (logprob === null || token !== other.token) continue
    expect(Math.abs(logprob.logprob - other.logprob!.logprob), `${what}, draw ${i}`).toBeLessThan(0.05)
  }
}

function isSameTokens(a: readonly Drawn[], b: readonly Drawn[]): boolean {
  return a.every(({ token }, i) => token === b[i]!.token)
}

const cases = ARCHITECTURES.flatMap((architecture) =>
  [true, false].flatMap((graphs) => (['f32', 'f16'] as const).map((wkv) => ({ architecture, graphs, wkv }))),
)
for (const { architecture, graphs, wkv } of cases)
  describeCuda(`guesses of ${architecture}, graphs ${graphs}, ${wkv} states`, () => {
    test.each([0, 2])('draws and states equal those of single tokens, beside %i others', (others) => {
      const runner = runnerOf(graphs, wkv, architecture)
      for (const fields of SPECS) {
        const truth = oneByOne(runner, fields, NUM_DRAWN, beside(others))
        for (const way of WAYS) {
          const { drawn } = guessed(runner, fields, truth, way, beside(others))
          const what = JSON.stringify({ ...fields, bias: null, ...way })
          // Single tokens that feed the same tokens draw the same.
          expectNear(drawn, oneByOne(runner, fields, NUM_DRAWN, beside(others), drawn), what)
          const [got, expected] = [1, 0].map((slot) => runner.readState(slot).result())
          // All guesses were right, so nothing has to be fed again.
          if (way.wrongEvery === Number.POSITIVE_INFINITY && isSameTokens(drawn, truth))
            for (const [i, array] of got!.entries()) expect(rmsRatio(array, expected![i]!), what).toBeLessThan(0.03)
        }
      }
      runner.dispose()
    })

    test('the states of several rows are kept in one step, and come back', () => {
      const runner = runnerOf(graphs, wkv, architecture)
      const slots = [0, 3, 5]
      for (const slot of slots) begin(runner, slot, { temperature: 0, seed: BigInt(slot) })
      for (let round = 0; round < 3; round++) {
        const before = slots.map((slot) => runner.readState(slot).result())
        const rows = slots.map((slot, i): BatchRow => {
          const samples = [0, 1, 2].map((position) => draw(slot, { position }))
          const tokens = Int32Array.from(samples, (_, t) => 11 * slot + 7 * round + t)
          return { slot, tokens, samples, guesses: { count: 2, spares: [i], every: 0 } }
        })
        runner.step(rows)
        const after = slots.map((slot) => runner.readState(slot).result())
        for (const [i, state] of after.entries()) expect(state).not.toEqual(before[i])
        runner.rewindSlot(slots[round]!, round)
        for (const [i, slot] of slots.entries())
          expect(runner.readState(slot).result(), `${slot}`).toEqual((i === round ? before : after)[i])
      }
      runner.dispose()
    })

    /** Steps by one launch for all layers and by op, with rows of one token beside. */
    const STEPS = [
      [1, 2, 0, 1],
      [1, 4, 0, 1],
      [1, 8, 0, 1],
      [2, 3, 2, 1],
      [1, 5, 2, 2],
      [3, 4, 0, 1],
      [2, 7, 1, 3],
      [1, 24, 0, 1],
      [1, 31, 2, 3],
    ] as const
    test.runIf(architecture !== 'rwkv6').each(STEPS)(
      'states between the tokens of %i rows of %i are kept, beside %i, every %i',
      (numRows, length, others, every) => {
        const runner = runnerOf(graphs, wkv, architecture)
        const tokensOf = (slot: number) => someTokens(length, 5 + slot)
        const rowOf = (slot: number, count: number, more: Partial<BatchRow> = {}): BatchRow => {
          const samples = Array.from({ length: more.guesses ? count : 1 }, (_, position) => draw(slot, { position }))
          return { slot, tokens: tokensOf(slot).slice(0, count), samples, ...more }
        }
        const slots = Array.from({ length: numRows }, (_, i) => 2 * i)
        // Twice: from the second time on a step is a graph, and places hold states of earlier rows.
        for (let round = 0; round < 3; round++) {
          for (const slot of slots) begin(runner, slot, { seed: BigInt(slot) })
          const count = length - 1
          const numKept = Math.ceil(count / every)
          const spares = slots.map((_, i) =>
            Array.from({ length: numKept }, (_, j) => (i * numKept + j + round) % (4 + 24)),
          )
          const rows = slots.map((slot, i) => rowOf(slot, length, { guesses: { count, spares: spares[i]!, every } }))
          runner.step([...rows, ...beside(others)])
          const whole = slots.map((slot) => runner.readState(slot).result())
          for (const [i, slot] of slots.entries())
            for (let j = numKept - 1; j >= 0; j--) {
              // It changes places with the one after it.
              runner.rewindSlot(slot, spares[i]![j]!)
              const kept = runner.readState(slot).result()
              const what = `${numRows}x${length} beside ${others}, slot ${slot} after ${1 + j * every}`
              begin(runner, 5, { seed: BigInt(slot) })
              const tokens = tokensOf(slot).slice(0, 1 + j * every)
              runner.step([rowOf(5, tokens.length, { tokens }), ...beside(others)])
              const expected = runner.readState(5).result()
              for (const [k, array] of kept.entries()) expect(rmsRatio(array, expected[k]!), what).toBeLessThan(0.02)
              expect(kept, what).not.toEqual(whole[i])
            }
          // A slot goes on from such a state as from any other.
          for (const slot of slots) {
            const { token } = runner.step([rowOf(slot, 1)])[0]!.drawn[0]!
            expect(token, `slot ${slot}`).toBeGreaterThanOrEqual(0)
          }
        }
        runner.dispose()
      },
    )

    test('pairs of tokens have the bits of single ones', () => {
      const runner = runnerOf(graphs, wkv, architecture)
      for (const fields of SPECS) {
        const truth = oneByOne(runner, fields, NUM_DRAWN)
        const { drawn } = guessed(runner, fields, truth, WAYS[0]!)
        if (architecture === 'rwkv7') expect(drawn).toEqual(truth)
        else expectNear(drawn, oneByOne(runner, fields, NUM_DRAWN, [], drawn), 'pairs')
      }
      runner.dispose()
    })
  })

const REQUESTS = Array.from({ length: 10 }, (_, i) =>
  requestOf({
    id: `r${i}`,
    prompt: someTokens(1 + ((i * 29) % 90), i),
    n: 1 + (i % 3),
    maxTokens: 5 + ((i * 5) % 20),
    sampling: {
      ...SAMPLING,
      seed: BigInt(i) ** 20n % 2n ** 64n,
      // Few tokens to draw from, so that rounding seldom decides.
      temperature: i % 2 === 0 ? 0 : 1,
      topK: 2,
      presencePenalty: i % 3 === 0 ? 1 : 0,
      repetitionPenalty: i % 5 === 1 ? 1.3 : 1,
      bannedTokens: i % 2 === 0 ? [] : [3, 4, 5],
    },
    stop: { strings: i % 3 === 2 ? ['a b', 'c d e'] : [], tokens: [i], ignoreEos: false },
    logprobs: i % 4 === 1 ? 3 : null,
  }),
)

const tokenBytes = { bytesOf: (token: number) => Uint8Array.of(97 + (token % 7), 32) }

/** `draft`: the model itself, or its quantised copy. */
type Guesser = Script | 'draft' | 'draft in q4'

function engineOn(device: 'cpu' | 'cuda', guesser: Guesser | undefined, truth: Truth, now?: () => number) {
  const place = { model: tinyModel(), device, slots: 9, maxTokens: 48 } as const
  const proposers: ProposerSource[] = []
  const drafts: { dispose(): void }[] = []
  if (guesser === 'draft' || guesser === 'draft in q4') {
    const draft = loadRunner({ ...place, ...(guesser === 'draft' ? {} : { quant: 'q4' }) })
    proposers.push(draftOver(draft))
    drafts.push(draft)
  } else if (guesser !== undefined) proposers.push(scripted(guesser, truth, VOCAB))
  const runner = loadRunner({ ...place, ...(guesser === undefined ? {} : { speculate: 'lookup' as const }) })
  for (const draft of drafts) runner.keep(draft)
  const limits = { poisonFreedSlots: true, proposers, ...(now === undefined ? {} : { now }) }
  return engineOver(runner, limits, null, 'plain', tokenBytes)
}

/** Turns of the engine as in a worker: the next step is launched before the last has ended. */
function overlapped(engine: ReturnType<typeof engineOn>, collected = new Collected()): Collected {
  while (engine.hasWork) collected.add(engine.turn() ?? [])
  return collected
}

function answersOf(engine: ReturnType<typeof engineOn>): (Answer | null)[] {
  const answers = REQUESTS.flatMap((request) => {
    engine.submit(request)
    const collected = overlapped(engine)
    return Array.from({ length: request.n }, (_, index) => collected.answer(request.id, index))
  })
  engine.dispose()
  return answers
}

describeCuda('an engine that guesses', () => {
  const none: Truth = () => []
  let onCpu: (Answer | null)[]
  let alone: (Answer | null)[]
  beforeAll(() => {
    onCpu = answersOf(engineOn('cpu', undefined, none))
    alone = answersOf(engineOn('cuda', undefined, none))
  })

  /** If two answers were computed in another order of additions, a draw between two tokens may differ. */
  const same = (a: readonly unknown[], b: readonly unknown[]) =>
    a.filter((one, i) => isDeepStrictEqual(one, b[i])).length / a.length

  test('without guesses most answers equal those of the CPU', () => {
    expect(same(alone, onCpu)).toBeGreaterThan(0.6)
  })

  test.each([...(Object.keys(SCRIPTS) as Script[]), 'draft', 'draft in q4'] as Guesser[])(
    'answers as without, alone and among others that leave, overlapped; guesses %s',
    (script) => {
      const truth: Truth = (_prompt, { id }, choice) => {
        const at = REQUESTS.findIndex((request) => request.id === id)
        const before = REQUESTS.slice(0, Math.max(0, at)).reduce((sum, { n }) => sum + n, 0)
        return at === -1 ? [] : (alone[before + choice]?.tokens ?? [])
      }
      const engine = engineOn('cuda', script, truth)
      const collected = new Collected()
      for (const request of REQUESTS) {
        engine.submit(request)
        engine.submit({ ...request, id: `gone ${request.id}`, maxTokens: 1000 })
        for (let i = 0; i < 40; i++) collected.add(engine.turn() ?? [])
        engine.cancel(`gone ${request.id}`)
      }
      overlapped(engine, collected)
      const answers = REQUESTS.flatMap(({ id, n }) =>
        Array.from({ length: n }, (_, index) => collected.answer(id, index)),
      )
      const { guessedTokens, acceptedTokens } = engine.stats
      const share = same(answers, alone)
      console.info(
        `guesses ${script}: ${(100 * share).toFixed(0)} % of the answers are those without, ${acceptedTokens} of ${guessedTokens} guesses right`,
      )
      expect(answers).not.toContain(null)
      expect(share).toBeGreaterThan(0.6)
      expect(engine.failure).toBeNull()
      expect(engine.stats).toMatchObject({ failed: 0, freeSlots: 9 })
      if (script !== 'wrong') expect(acceptedTokens).toBeGreaterThan(10)
      const isOftenWrong = script !== 'right' && script !== 'draft'
      if (isOftenWrong) expect(guessedTokens - acceptedTokens).toBeGreaterThan(10)
      engine.dispose()
    },
  )

  test.each([
    ['right', 1],
    ['right', 8],
    ['draft in q4', 1],
    ['draft in q4', 8],
  ] as const)('tokens have the distribution without guesses; guesses %s, %i answers at once', (guesser, atOnce) => {
    const [NUM_TRIALS, CHOICES] = [2000, 4]
    const prompt = someTokens(9, 5)
    const ask = { prompt, maxTokens: 6, stop: { strings: [], tokens: [], ignoreEos: true } }
    const plain = engineOn('cuda', undefined, none)
    const greedily = (fields: object) => {
      const sampling = { ...SAMPLING, temperature: 0 }
      plain.submit(requestOf({ ...ask, id: 'g', sampling, logprobs: CHOICES, ...fields }))
      return overlapped(plain)
    }
    const likely = greedily({}).answer('g')!.tokens
    // Guesses of the likeliest tokens are often right, and often not; by this clock they take no time.
    const engine = engineOn(
      'cuda',
      guesser,
      () => likely,
      () => 0,
    )
    const answers: (readonly number[])[] = []
    for (let trial = 0; trial < NUM_TRIALS; trial += atOnce) {
      const ids = Array.from({ length: atOnce }, (_, i) => `${trial + i}`)
      for (const id of ids) {
        const sampling = { ...SAMPLING, seed: BigInt(id), temperature: 1, topK: CHOICES }
        engine.submit(requestOf({ ...ask, id, sampling }))
      }
      const collected = overlapped(engine)
      answers.push(...ids.map((id) => collected.answer(id)!.tokens))
    }
    for (const given of [0, 1, 2, 3]) {
      const begin = likely.slice(0, given)
      const next = answers.filter((tokens) => begin.every((token, i) => tokens[i] === token)).map((t) => t[given])
      const text = greedily({ prompt: Int32Array.from([...prompt, ...begin]), maxTokens: 1 }).of('g')
      const [first] = text.flatMap((event) => (event.type === 'text' ? event.logprobs! : []))
      const total = first!.top.reduce((sum, { logprob }) => sum + Math.exp(logprob), 0)
      const chiSquare = first!.top.reduce((sum, { token, logprob }) => {
        const expected = (next.length * Math.exp(logprob)) / total
        return sum + (next.filter((one) => one === token).length - expected) ** 2 / expected
      }, 0)
      expect(next.every((token) => first!.top.some((one) => one.token === token))).toBe(true)
      // With 3 degrees of freedom, one in 10,000 exceeds this; the seeds are fixed.
      expect(chiSquare).toBeLessThan(21.1)
    }
    const { guessedTokens, acceptedTokens } = engine.stats
    expect(acceptedTokens).toBeGreaterThan(NUM_TRIALS / 20)
    expect(guessedTokens - acceptedTokens).toBeGreaterThan(NUM_TRIALS / 20)
    for (const one of [engine, plain]) one.dispose()
  })
})
