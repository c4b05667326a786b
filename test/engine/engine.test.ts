import { describe, expect, test } from 'vitest'
import { Engine } from '../../src/engine/engine.ts'
import { type EngineLimits, lineLength } from '../../src/engine/limits.ts'
import type { GenerateRequest } from '../../src/engine/messages.ts'
import { SkeinError } from '../../src/errors.ts'
import { type FakeOptions, FakeRunner } from '../helpers/fake-runner.ts'
import { Collected, drain, promptOf, requestOf, SAMPLING, soloAnswer, tokenBytes, V } from './kit.ts'

function setUp(options: FakeOptions = {}, limits: Partial<EngineLimits> = {}) {
  const runner = new FakeRunner({ vocabSize: V, ...options })
  const engine = new Engine(runner, tokenBytes, { poisonFreedSlots: true, ...limits })
  return { runner, engine }
}

function codeOf(run: () => void): string {
  try {
    run()
  } catch (error) {
    return error instanceof SkeinError ? error.code : String(error)
  }
  return 'nothing thrown'
}

describe('answers', () => {
  test('a single request gives the text of the scripted language', () => {
    const { engine } = setUp()
    const request = requestOf({ maxTokens: 40 })
    engine.submit(request)
    expect(drain(engine).answer('a')).toEqual(soloAnswer(request))
  })

  test.each([1, 2, 3, 7, 16, 64, 255, 1000])('a step of %i tokens does not change the text', (maxTokens) => {
    const { engine } = setUp({ maxTokens, numSlots: 3 })
    const request = requestOf({ prompt: promptOf(255), maxTokens: 20 })
    engine.submit(request)
    expect(drain(engine).answer('a')).toEqual(soloAnswer(request))
  })

  test.each([2, 7, 32])('a batch of %i that join and leave gives the answers of single requests', (count) => {
    const { engine } = setUp({ numSlots: 8, maxTokens: 40 }, { prefillChunk: 10 })
    const collected = new Collected()
    const requests = Array.from({ length: count }, (_, i) =>
      requestOf({ id: `r${i}`, prompt: promptOf(1 + ((i * 13) % 70), i), maxTokens: 1 + ((i * 7) % 25) }),
    )
    for (const request of requests) {
      engine.submit(request)
      collected.add(engine.step())
    }
    drain(engine, collected)
    for (const request of requests) expect(collected.answer(request.id)).toEqual(soloAnswer(request))
    expect(engine.stats.freeSlots).toBe(8)
  })

  test('n choices are forks of one prefill with random streams of their own', () => {
    const { engine, runner } = setUp()
    const request = requestOf({ n: 5, prompt: promptOf(100), maxTokens: 12 })
    engine.submit(request)
    const collected = drain(engine)
    const answers = [0, 1, 2, 3, 4].map((index) => collected.answer('a', index))
    expect(answers).toEqual([0, 1, 2, 3, 4].map((index) => soloAnswer(request, index)))
    expect(new Set(answers.map((answer) => answer?.text)).size).toBe(5)
    expect(runner.calls.copies).toBe(4)
    expect(engine.stats.promptTokens).toBe(100)
  })

  test('a first choice that ends with its first token leaves the prompt to the others', () => {
    const { engine } = setUp()
    const open = requestOf({ n: 3, maxTokens: 6 })
    const [first] = soloAnswer(open, 0).tokens
    const others = [1, 2].map((index) => soloAnswer(open, index).tokens[0])
    expect(others).not.toContain(first)
    const request = { ...open, stop: { strings: [], tokens: [first!], ignoreEos: true } }
    engine.submit(request)
    const collected = drain(engine)
    for (const index of [0, 1, 2]) {
      expect(collected.answer('a', index)).toEqual(soloAnswer(request, index))
    }
    expect(collected.answer('a', 0)?.completionTokens).toBe(1)
  })

  test.each([
    { presencePenalty: 0.5 },
    { frequencyPenalty: 0.5 },
    { repetitionPenalty: 1.2 },
    { logitBias: [[5, 1.5] as const] },
    { bannedTokens: [5, 6, 7, 8, 9, 10] },
    { temperature: 0 },
    { seed: 2n ** 64n - 1n },
  ])('sampling parameters %o reach the runner for every choice', (sampling) => {
    const { engine } = setUp({ numSlots: 4 })
    const collected = new Collected()
    const requests = ['a', 'b', 'c'].map((id) =>
      requestOf({ id, n: 2, maxTokens: 15, sampling: { ...SAMPLING, ...sampling } }),
    )
    for (const request of requests) engine.submit(request)
    drain(engine, collected)
    for (const request of requests) {
      expect(collected.answer(request.id, 1)).toEqual(soloAnswer(request, 1))
    }
  })

  test('without a seed one is drawn and reported, and repeats the text', () => {
    const { engine } = setUp()
    const request = requestOf({ sampling: { ...SAMPLING, seed: null }, maxTokens: 20 })
    engine.submit(request)
    const collected = drain(engine)
    const [prompt] = collected.of('a')
    const seed = prompt?.type === 'prompt' ? prompt.seed! : 0n
    expect(collected.answer('a')).toEqual(soloAnswer({ ...request, sampling: { ...SAMPLING, seed } }))
    engine.submit(request)
    const [again] = drain(engine).of('a')
    expect(again).not.toMatchObject({ seed })
  })
})

describe('ends', () => {
  test('token 0 stops unless ignoreEos is set, and is never text', () => {
    const { engine } = setUp()
    const bannedTokens = Array.from({ length: V - 1 }, (_, i) => i + 1)
    const sampling = { ...SAMPLING, bannedTokens }
    const tokens = [0]
    engine.submit(requestOf({ id: 's', sampling, stop: { strings: [], tokens: [], ignoreEos: false } }))
    engine.submit(requestOf({ id: 'i', sampling, stop: { strings: [], tokens, ignoreEos: true } }))
    const collected = drain(engine)
    const nothing = { text: '', tokens: [] }
    expect(collected.answer('s')).toEqual({ ...nothing, reason: 'stop', matched: 0, completionTokens: 1 })
    const ignored = { text: '', tokens: Array(8).fill(0), reason: 'length', matched: null }
    expect(collected.answer('i')).toEqual({ ...ignored, completionTokens: 8 })
  })

  test.each([0, 1, 2, 33])('maxTokens %i applies to every choice', (maxTokens) => {
    const { engine } = setUp()
    engine.submit(requestOf({ n: 2, maxTokens }))
    const collected = drain(engine)
    for (const index of [0, 1]) {
      const answer = collected.answer('a', index)
      expect(answer).toMatchObject({ reason: 'length', matched: null, completionTokens: maxTokens })
      expect(answer?.tokens).toHaveLength(maxTokens)
    }
    expect(engine.stats.generatedTokens).toBe(2 * maxTokens)
  })

  test('a stop of one row does not end another', () => {
    const { engine } = setUp({ numSlots: 8 })
    const requests = Array.from({ length: 8 }, (_, i) => {
      const open = requestOf({ id: `r${i}`, prompt: promptOf(5 + i, i), maxTokens: 20 })
      const token = soloAnswer(open).tokens[i * 2]!
      return { ...open, stop: { strings: [], tokens: [token], ignoreEos: true } }
    })
    for (const request of requests) engine.submit(request)
    const collected = drain(engine)
    for (const request of requests) expect(collected.answer(request.id)).toEqual(soloAnswer(request))
    const lengths = requests.map(({ id }) => collected.answer(id)?.completionTokens)
    expect(new Set(lengths).size).toBeGreaterThan(4)
    expect(engine.stats).toMatchObject({ finishedStop: 8, finishedLength: 0, freeSlots: 8 })
  })
})

describe('refusals', () => {
  const bad: [string, Partial<GenerateRequest>, string][] = [
    ['empty prompt', { prompt: new Int32Array(0) }, 'invalid_request'],
    ['token beyond the vocabulary', { prompt: Int32Array.of(V) }, 'invalid_request'],
    ['negative token', { prompt: Int32Array.of(-1) }, 'invalid_request'],
    ['prompt over the limit', { prompt: promptOf(1001) }, 'too_large'],
    ['n = 0', { n: 0 }, 'invalid_request'],
    ['more choices than slots', { n: 9 }, 'too_large'],
    ['fraction of a token', { maxTokens: 1.5 }, 'invalid_request'],
    ['NaN temperature', { sampling: { ...SAMPLING, temperature: Number.NaN } }, 'invalid_request'],
    ['infinite f32', { sampling: { ...SAMPLING, presencePenalty: 1e39 } }, 'invalid_request'],
    ['part of a top-k', { sampling: { ...SAMPLING, topK: 1.5 } }, 'invalid_request'],
    ['top-k of 33 bits', { sampling: { ...SAMPLING, topK: 2 ** 32 + 1 } }, 'invalid_request'],
    ['division by 0', { sampling: { ...SAMPLING, repetitionPenalty: 0 } }, 'invalid_request'],
    ['division by 0 in f32', { sampling: { ...SAMPLING, repetitionPenalty: 1e-60 } }, 'invalid_request'],
    ['infinite bias', { sampling: { ...SAMPLING, logitBias: [[1, 1e39]] } }, 'invalid_request'],
    ['seed of 65 bits', { sampling: { ...SAMPLING, seed: 2n ** 64n } }, 'invalid_request'],
    ['bias of no token', { sampling: { ...SAMPLING, logitBias: [[V, 1]] } }, 'invalid_request'],
    ['ban of no token', { sampling: { ...SAMPLING, bannedTokens: [-1] } }, 'invalid_request'],
    ['ban of all', { sampling: { ...SAMPLING, bannedTokens: [...Array(V).keys()] } }, 'invalid_request'],
    ['logprobs 21', { logprobs: 21 }, 'invalid_request'],
    ['empty stop', { stop: { strings: [''], tokens: [], ignoreEos: true } }, 'invalid_request'],
    ['half a pair', { stop: { strings: ['\ud83d'], tokens: [], ignoreEos: true } }, 'invalid_request'],
  ]
  test.each(bad)('%s', (_, parts, code) => {
    const { engine } = setUp({ numSlots: 8 }, { maxPromptTokens: 1000 })
    expect(codeOf(() => engine.submit(requestOf(parts)))).toBe(code)
    expect(engine.hasWork).toBe(false)
  })

  test('an id in use is refused and the running request continues', () => {
    const { engine } = setUp()
    const request = requestOf()
    engine.submit(request)
    expect(codeOf(() => engine.submit(requestOf({ maxTokens: 1 })))).toBe('invalid_request')
    expect(drain(engine).answer('a')).toEqual(soloAnswer(request))
  })

  test('a request that reads its prompt is counted until the last part is in flight', () => {
    const { engine } = setUp({ maxTokens: 12 })
    engine.submit(requestOf({ prompt: promptOf(25), maxTokens: 20 }))
    engine.submit(requestOf({ id: 'b', prompt: promptOf(3), maxTokens: 20 }))
    const counts = Array.from({ length: 4 }, () => {
      engine.step()
      return engine.stats.prefilling
    })
    expect(counts).toEqual([1, 1, 0, 0])
    expect(engine.stats).toMatchObject({ running: 2 })
  })

  test('queue_full counts only requests that must wait', () => {
    const { engine } = setUp({ numSlots: 4 }, { maxWaiting: 2 })
    for (const id of ['a', 'b', 'c', 'd', 'e', 'f']) engine.submit(requestOf({ id }))
    expect(codeOf(() => engine.submit(requestOf({ id: 'g' })))).toBe('queue_full')
    engine.step()
    expect(codeOf(() => engine.submit(requestOf({ id: 'g' })))).toBe('queue_full')
    expect(engine.stats).toMatchObject({ waiting: 2, running: 4, prefilling: 0 })
    expect(drain(engine).answer('f')).toEqual(soloAnswer(requestOf({ id: 'f' })))
    engine.submit(requestOf({ id: 'g' }))
  })

  test('by default eight may wait per slot, but at least 512', () => {
    expect([4, 64, 100].map((numSlots) => lineLength(null, numSlots))).toEqual([512, 512, 800])
    expect(lineLength(7, 100)).toBe(7)
    expect(setUp({ numSlots: 4 }).engine.info.maxWaiting).toBe(512)
  })

  test('maxWaiting 0 accepts what can run at once', () => {
    const { engine } = setUp({ numSlots: 4 }, { maxWaiting: 0 })
    engine.submit(requestOf({ id: 'a', n: 3 }))
    expect(codeOf(() => engine.submit(requestOf({ id: 'b', n: 2 })))).toBe('queue_full')
    engine.submit(requestOf({ id: 'c' }))
    expect(drain(engine).answer('c')).toEqual(soloAnswer(requestOf({ id: 'c' })))
  })

  test('a runner with few draws or tokens per step offers fewer slots, and says so', () => {
    expect(setUp({ numSlots: 8, maxSamples: 3 }).engine.info.numSlots).toBe(3)
    expect(setUp({ numSlots: 8, maxTokens: 8 }).engine.info.numSlots).toBe(6)
    expect(setUp({ numSlots: 8, maxTokens: 1 }).engine.info.numSlots).toBe(1)
    const { engine } = setUp({ numSlots: 8, maxTokens: 4 })
    expect(codeOf(() => engine.submit(requestOf({ n: 4 })))).toBe('too_large')
  })
})
