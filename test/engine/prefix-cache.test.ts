/** Cached prefixes: whatever is found, the answer is that of a single request, and the cache is limited. */
import { describe, expect, test } from 'vitest'
import { Engine } from '../../src/engine/engine.ts'
import { snapshotPoints } from '../../src/engine/kept/snapshot-points.ts'
import type { EngineLimits } from '../../src/engine/limits.ts'
import type { EngineEvent, GenerateRequest } from '../../src/engine/messages.ts'
import { DEFAULT_STATE_OPTIONS, type StateOptions } from '../../src/engine/states.ts'
import { joinTokens } from '../../src/state/snapshot.ts'
import { DeferredRunner } from '../helpers/deferred-runner.ts'
import { type FakeOptions, FakeRunner } from '../helpers/fake-runner.ts'
import { someTokens, tinyRunner } from '../helpers/runner.ts'
import { Collected, drain, promptOf, requestOf, SAMPLING, soloAnswer, tokenBytes, V } from './kit.ts'

const STATES = DEFAULT_STATE_OPTIONS

function setUp(options: FakeOptions = {}, limits: Partial<EngineLimits> = {}, states: Partial<StateOptions> = {}) {
  const runner = new FakeRunner({ vocabSize: V, maxTokens: 512, ...options })
  const given = { poisonFreedSlots: true, ...limits }
  return { runner, engine: new Engine(runner, tokenBytes, given, { ...STATES, ...states }) }
}

/** Runs a request to its end and checks its answer. Returns how much of the prompt was cached. */
function ask(engine: Engine, request: GenerateRequest): number {
  engine.submit(request)
  const collected = drain(engine)
  for (let index = 0; index < request.n; index++) {
    expect(collected.answer(request.id, index)).toEqual(soloAnswer(request, index))
  }
  return cachedOf(collected.events, request.id)
}

function cachedOf(events: readonly EngineEvent[], id: string): number {
  const event = events.find((candidate) => candidate.type === 'prompt' && candidate.id === id)
  return event?.type === 'prompt' ? (event.cachedTokens ?? -1) : -1
}

describe('snapshot points', () => {
  test.each([
    [31, 0, [], []],
    [32, 0, [], []],
    [33, 0, [], [32]],
    [600, 0, [], [512, 599]],
    [514, 0, [], [513]],
    [100, 0, [40, 96], [40, 96]],
    [100, 0, [40, 60], [60, 99]],
    [100, 0, [40, 100], [40, 99]],
    [100, 96, [40, 96], []],
    [200, 96, [40, 96], [199]],
    [100, 0, [5], [99]],
    [100_000, 0, [], [16384, 32768, 49152, 65536, 81920, 98304, 99999]],
  ])('of %i tokens from %i with boundaries %j', (length, start, boundaries, expected) => {
    const hints = { start, shared: 0, boundaries: Int32Array.from(boundaries), isBusy: false }
    expect(snapshotPoints(length, hints)).toEqual(expected)
  })

  test('are also where a prompt diverges from an earlier one', () => {
    const hints = { start: 512, shared: 580, boundaries: new Int32Array(0), isBusy: true }
    expect(snapshotPoints(600, hints)).toEqual([580])
    expect(snapshotPoints(700, hints)).toEqual([580, 699])
  })

  test.each([
    [64, 0, 0, []],
    [65, 0, 0, [64]],
    [100, 36, 0, []],
    [100, 35, 0, [99]],
    [64, 0, 40, [40]],
    [64, 0, 63, [63]],
    [64, 0, 64, [63]],
  ])('of a short prompt beside answers: %i tokens from %i, %i of them in common', (length, start, shared, expected) => {
    const hints = { start, shared, boundaries: new Int32Array(0), isBusy: true }
    expect(snapshotPoints(length, hints)).toEqual(expected)
  })

  test('hold nothing up: the last token is launched behind the chunk that is copied, before that has landed', () => {
    const runner = new DeferredRunner(new FakeRunner({ vocabSize: V, maxTokens: 512 }))
    runner.patience = 9
    const engine = new Engine(runner, tokenBytes, {}, STATES)
    const request = requestOf({ prompt: promptOf(100), maxTokens: 1 })
    engine.submit(request)
    expect([engine.turn(), engine.turn()]).toEqual([null, null])
    expect(engine.stats).toMatchObject({ steps: 2, promptTokens: 0 })
    expect(drain(engine).answer(request.id)).toEqual(soloAnswer(request))
    expect(ask(engine, { ...request, id: 'again' })).toBe(99)
  })

  test('a short prompt beside answers is read in one step, and copied when it is known to come again', () => {
    const { engine } = setUp({ numSlots: 4 }, { prefillChunk: 64 })
    const collected = new Collected()
    engine.submit(requestOf({ id: 'answer', maxTokens: 500 }))
    collected.add(engine.step())
    const short = { prompt: promptOf(60), maxTokens: 4, n: 1 }
    const seen = ['first', 'second', 'third'].map((id) => {
      engine.submit(requestOf({ ...short, id }))
      let steps = 0
      while (!collected.of(id).some(({ type }) => type === 'text')) {
        collected.add(engine.step())
        steps++
      }
      while (collected.answer(id) === null) collected.add(engine.step())
      expect(collected.answer(id)).toEqual(soloAnswer(requestOf({ ...short, id })))
      return [steps, cachedOf(collected.events, id)]
    })
    expect(seen).toEqual([
      [1, 0],
      [2, 0],
      [1, 59],
    ])
  })
})

describe('a hit', () => {
  test('the same prompt twice feeds one token', () => {
    const { engine, runner } = setUp()
    const request = requestOf({ prompt: promptOf(300), maxTokens: 4 })
    expect(ask(engine, request)).toBe(0)
    const before = runner.log.length
    expect(ask(engine, request)).toBe(299)
    expect(runner.log[before]).toMatchObject({ rows: 1, tokens: 1 })
    expect(engine.stats.states).toMatchObject({ cachedTokens: 299, prefixHits: 1, prefixMisses: 1 })
  })

  test('A, B, A and one token more or less, around every boundary', () => {
    for (const length of [32, 33, 64, 511, 512, 513, 1023, 1024, 1025]) {
      const { engine } = setUp()
      const a = requestOf({ prompt: promptOf(length), maxTokens: 5 })
      const b = requestOf({ prompt: promptOf(length, 2), maxTokens: 5 })
      const shorter = requestOf({ prompt: a.prompt.slice(0, -1), maxTokens: 5 })
      const longer = requestOf({ prompt: joinTokens(a.prompt, [1]), maxTokens: 5 })
      expect([ask(engine, a), ask(engine, b)]).toEqual([0, 0])
      expect(ask(engine, a)).toBe(length < 33 ? 0 : length - 1)
      expect(ask(engine, longer)).toBeGreaterThanOrEqual(length < 33 ? 0 : length - 1)
      ask(engine, shorter)
    }
  })

  test('ends where the prompts differ, however late', () => {
    const { engine } = setUp()
    const prompt = promptOf(200)
    const boundaries = Int32Array.of(150)
    ask(engine, requestOf({ prompt, boundaries, maxTokens: 2 }))
    const last = prompt.slice()
    last[199] = (last[199]! + 1) % V
    expect(ask(engine, requestOf({ prompt: last, maxTokens: 2 }))).toBe(199)
    const early = prompt.slice()
    early[149] = (early[149]! + 1) % V
    expect(ask(engine, requestOf({ prompt: early, maxTokens: 2 }))).toBe(0)
    const late = prompt.slice()
    late[150] = (late[150]! + 1) % V
    expect(ask(engine, requestOf({ prompt: late, maxTokens: 2 }))).toBe(150)
  })

  test('continues the conversation at the end of its answer', () => {
    const { engine } = setUp()
    const first = requestOf({ prompt: promptOf(100), maxTokens: 12 })
    ask(engine, first)
    const answer = soloAnswer(first).tokens
    const next = requestOf({ prompt: joinTokens(first.prompt, answer, [4, 5, 6]), maxTokens: 3 })
    // The last token of the answer was drawn and never fed.
    expect(ask(engine, next)).toBe(111)
  })

  test('on an unannounced prefix of 2 000 tokens covers 95 % of all prompt tokens and more', () => {
    const { engine } = setUp()
    const shared = promptOf(2000)
    let [cached, all] = [0, 0]
    for (let i = 0; i < 60; i++) {
      const prompt = joinTokens(shared, [(i * 7) % 97, i], promptOf(5 + ((i * 11) % 40), i))
      cached += ask(engine, requestOf({ prompt, maxTokens: 3 }))
      all += prompt.length
    }
    expect(cached / all).toBeGreaterThan(0.95)
  })

  test('with several choices, penalties, and prompt log-probabilities, which need every token', () => {
    const { engine } = setUp()
    const sampling = { ...SAMPLING, repetitionPenalty: 1.2, presencePenalty: 1 }
    const request = requestOf({ prompt: promptOf(90), n: 3, maxTokens: 6, sampling })
    expect([ask(engine, request), ask(engine, request)]).toEqual([0, 89])
    expect(ask(engine, { ...request, promptLogprobs: 2 })).toBe(0)
  })

  test('later requests in the queue find what earlier ones have read', () => {
    const { engine } = setUp({ numSlots: 2 })
    const requests = Array.from({ length: 8 }, (_, i) =>
      requestOf({ id: `r${i}`, prompt: joinTokens(promptOf(80), [i]), maxTokens: 3 }),
    )
    for (const request of requests) engine.submit(request)
    const collected = drain(engine)
    for (const request of requests) expect(collected.answer(request.id)).toEqual(soloAnswer(request))
    const cached = requests.map(({ id }) => cachedOf(collected.events, id))
    expect(cached).toEqual([0, 0, 80, 80, 80, 80, 80, 80])
  })
})

describe('limits', () => {
  test('short prompts, no-store and a cache of no bytes keep nothing', () => {
    const { engine, runner } = setUp()
    ask(engine, requestOf({ prompt: promptOf(20), maxTokens: 5 }))
    ask(engine, requestOf({ prompt: promptOf(200), cache: 'no-store', maxTokens: 5 }))
    ask(engine, requestOf({ prompt: promptOf(200), cache: 'no-store', maxTokens: 5 }))
    expect(engine.stats.states).toMatchObject({ prefixes: 0, prefixBytes: 0, cachedTokens: 0 })
    const none = setUp({}, {}, { prefixBytes: 0 })
    ask(none.engine, requestOf({ prompt: promptOf(200) }))
    ask(none.engine, requestOf({ prompt: promptOf(200) }))
    expect([runner.calls.reads, none.runner.calls.reads]).toEqual([0, 0])
  })

  test('no-store does not use prefixes of others either', () => {
    const { engine } = setUp()
    ask(engine, requestOf({ prompt: promptOf(200) }))
    expect(ask(engine, requestOf({ prompt: promptOf(200), cache: 'no-store' }))).toBe(0)
  })

  test('bytes are limited and the least recently used prefix is evicted first', () => {
    const bytesOfOne = 32 + 4 * 99
    const { engine } = setUp({}, {}, { prefixBytes: 3 * bytesOfOne })
    const request = (seed: number) => requestOf({ prompt: promptOf(100, seed), maxTokens: 0 })
    const [a, b, c, d] = [1, 2, 3, 4].map((seed) => ({ ...request(seed), n: 1 }))
    for (const one of [a!, b!]) ask(engine, one)
    expect(engine.stats.states!.prefixBytes).toBeLessThanOrEqual(3 * bytesOfOne)
    ask(engine, a!)
    ask(engine, c!)
    ask(engine, d!)
    expect(engine.stats.states!.prefixBytes).toBeLessThanOrEqual(3 * bytesOfOne)
    expect(ask(engine, b!)).toBe(0)
  })

  test('tenants do not find prefixes of each other, and cannot imitate another tenant', () => {
    const { engine } = setUp()
    const request = requestOf({ prompt: promptOf(200) })
    const tenants = ['', 'a', 'b', '["a"]', 'a","b']
    for (const tenant of tenants) expect(ask(engine, { ...request, tenant })).toBe(0)
    for (const tenant of tenants) expect(ask(engine, { ...request, tenant })).toBe(199)
  })

  test('every copy is made, whatever else runs', () => {
    const { engine } = setUp({ numSlots: 8 })
    const requests = Array.from({ length: 40 }, (_, i) =>
      requestOf({ id: `r${i}`, prompt: promptOf(64 + i, i), maxTokens: 40 }),
    )
    for (const request of requests) engine.submit(request)
    drain(engine)
    // The prompt less its last token, and the prompt with its answer.
    expect(engine.stats.states!.prefixes).toBe(2 * requests.length)
  })

  test('a request whose numbers are not finite keeps nothing and drops what it began with', () => {
    const { engine, runner } = setUp()
    const request = requestOf({ prompt: promptOf(100) })
    ask(engine, request)
    engine.submit({ ...request, id: 'sick' })
    for (const slot of [0, 1, 2, 3, 4, 5, 6, 7]) runner.notFinite.add(slot)
    const collected = drain(engine)
    expect(collected.error('sick')).toBe('kernel_failed')
    runner.notFinite.clear()
    expect(ask(engine, request)).toBe(0)
  })
})

/** The reference keeps its states in f64, so an f32 copy is rounded: only the kernels promise equality. */
test('on real kernels answers are bit-equal to uncached ones, alone and in a batch', () => {
  const runner = tinyRunner('cpu', { slots: 9, maxTokens: 96 })
  const text = { bytesOf: (token: number) => Uint8Array.of(97 + (token % 7)) }
  const engine = new Engine(runner, text, { poisonFreedSlots: true, prefillChunk: 17 }, STATES)
  const shared = someTokens(70, 1)
  const requests = Array.from({ length: 8 }, (_, i) =>
    requestOf({
      id: `r${i}`,
      prompt: joinTokens(shared, someTokens(1 + 7 * (i % 4), i)),
      boundaries: Int32Array.of(70),
      maxTokens: 8,
      logprobs: 2,
      sampling: { ...SAMPLING, seed: BigInt(i), presencePenalty: i % 2 },
    }),
  )
  const answerTo = (collected: Collected, id: string) => collected.of(id).filter((event) => event.type !== 'prompt')
  const expected = requests.map((request) => {
    engine.submit({ ...request, cache: 'no-store' })
    return answerTo(drain(engine), request.id)
  })
  for (const isBatch of [false, true]) {
    const collected = new Collected()
    for (const request of requests) {
      engine.submit(request)
      if (!isBatch) drain(engine, collected)
    }
    drain(engine, collected)
    for (const [i, { id }] of requests.entries()) {
      expect(answerTo(collected, id)).toEqual(expected[i])
      if (i > 0 || isBatch) expect(cachedOf(collected.events, id)).toBeGreaterThanOrEqual(70)
    }
  }
  engine.dispose()
})
