import { describe, expect, test, vi } from 'vitest'
import { Engine } from '../../src/engine/engine.ts'
import type { EngineLimits } from '../../src/engine/limits.ts'
import { type FakeOptions, FakeRunner } from '../helpers/fake-runner.ts'
import { Collected, drain, promptOf, requestOf, SAMPLING, soloAnswer, tokenBytes, V } from './kit.ts'

function setUp(options: FakeOptions = {}, limits: Partial<EngineLimits> = {}) {
  const runner = new FakeRunner({ vocabSize: V, ...options })
  const engine = new Engine(runner, tokenBytes, { poisonFreedSlots: true, ...limits })
  return { runner, engine }
}

/** Steps until a choice of `id` has its first token; returns their number. */
function stepsToFirstToken(engine: Engine, collected: Collected, id: string): number {
  for (let steps = 1; steps < 10_000; steps++) {
    collected.add(engine.step())
    if (collected.of(id).some((event) => event.type === 'text')) return steps
  }
  throw new Error(`${id} never got a token`)
}

describe('fairness', () => {
  test('beside answers few prompt tokens are scored per step if scoring takes long', () => {
    // The target time is zero, so each scored token is one too many; plain prompts get at least eight.
    const { engine } = setUp({ numSlots: 4, maxTokens: 64 }, { itlTargetMs: 1e-6 })
    const collected = new Collected()
    engine.submit(requestOf({ id: 'answer', maxTokens: 200 }))
    collected.add(engine.step())
    const ask = { prompt: promptOf(40), maxTokens: 1 }
    engine.submit(requestOf({ ...ask, id: 'plain' }))
    expect(stepsToFirstToken(engine, collected, 'plain')).toBeLessThan(8)
    engine.submit(requestOf({ ...ask, id: 'scored', promptLogprobs: 2 }))
    expect(stepsToFirstToken(engine, collected, 'scored')).toBeGreaterThan(18)
    expect(collected.answer('scored')).toEqual(soloAnswer(requestOf({ ...ask, id: 'scored' })))
    const [first] = collected.of('scored')
    expect(first).toMatchObject({ type: 'prompt', logprobs: { length: 40 } })
  })

  test('a 100k-token prompt among 62 streams and short prompts', () => {
    const { engine, runner } = setUp({ numSlots: 64, maxTokens: 512 }, { prefillChunk: 256 })
    const streams = Array.from({ length: 62 }, (_, i) => `s${i}`)
    const collected = new Collected()
    for (const id of streams) engine.submit(requestOf({ id, maxTokens: 3000 }))
    collected.add(engine.step())
    const before = runner.log.length
    engine.submit(requestOf({ id: 'long', prompt: promptOf(100_000), maxTokens: 1 }))
    engine.submit(requestOf({ id: 'short', prompt: promptOf(100), maxTokens: 1 }))
    expect(stepsToFirstToken(engine, collected, 'short')).toBe(1)
    engine.submit(requestOf({ id: 'short2', prompt: promptOf(300), maxTokens: 1 }))
    expect(stepsToFirstToken(engine, collected, 'short2')).toBe(3)
    stepsToFirstToken(engine, collected, 'long')
    const steps = runner.log.slice(before)
    // Every stream is in every step, no step exceeds the chunk by more, and the long prompt loses only what others got.
    for (const step of steps) {
      expect(step.rows).toBeGreaterThanOrEqual(62)
      expect(step.tokens).toBeLessThanOrEqual(64 + 256)
    }
    expect(steps.length).toBeLessThanOrEqual(Math.ceil((100_000 + 400) / 256) + 1)
  })

  test('a queue of short prompts does not starve a long one', () => {
    const { engine } = setUp({ numSlots: 8, maxTokens: 64 })
    const collected = new Collected()
    engine.submit(requestOf({ id: 'long', prompt: promptOf(3200), maxTokens: 1 }))
    let steps = 0
    for (; collected.answer('long') === null; steps++) {
      for (let i = 0; i < 3; i++) {
        const id = `s${steps}.${i}`
        engine.submit(requestOf({ id, prompt: promptOf(40), maxTokens: 1 }))
      }
      collected.add(engine.step())
    }
    expect(steps).toBeLessThanOrEqual(2 * (3200 / 64) + 4)
  })

  test('the padding of a step is filled with prompt tokens, beside answers and alone', () => {
    const { engine, runner } = setUp({ numSlots: 8, maxTokens: 100 }, { prefillChunk: 20 })
    runner.grain = 16
    for (let i = 0; i < 3; i++) engine.submit(requestOf({ id: `${i}`, maxTokens: 50 }))
    for (let i = 0; i < 3; i++) engine.step()
    engine.submit(requestOf({ id: 'long', prompt: promptOf(60), maxTokens: 1 }))
    const before = runner.log.length
    for (let i = 0; i < 3; i++) engine.step()
    // 3 answers and 20 tokens are padded to 32; then two tokens of the prompt are left.
    expect(runner.log.slice(before).map(({ tokens }) => tokens)).toEqual([32, 32, 5])
  })

  test('slow steps reduce the share of prompts, and fast ones increase it', () => {
    const { engine, runner } = setUp({ numSlots: 8, maxTokens: 4096 }, { itlTargetMs: 4 })
    // The time of a step per token, by the clock that the engine reads.
    const now = vi.spyOn(performance, 'now')
    let clock = 0
    now.mockImplementation(() => clock)
    let each = 0.1
    runner.onStep = (rows) => {
      clock += each * rows.reduce((sum, { tokens }) => sum + tokens.length, 0)
    }
    engine.submit(requestOf({ id: 'answer', maxTokens: 1000 }))
    engine.step()
    engine.submit(requestOf({ id: 'long', prompt: promptOf(100_000), maxTokens: 1 }))
    const sizeAfter = (steps: number) => {
      for (let i = 0; i < steps; i++) engine.step()
      return runner.log.at(-1)!.tokens
    }
    expect(sizeAfter(1)).toBe(33)
    expect(sizeAfter(8) * each).toBeCloseTo(4, 0)
    each = 0.01
    expect(sizeAfter(40) * each).toBeCloseTo(4, 0)
    now.mockRestore()
  })

  test('without decoding requests a prompt gets the whole step', () => {
    const { engine, runner } = setUp({ maxTokens: 512 }, { prefillChunk: 16 })
    engine.submit(requestOf({ prompt: promptOf(1024), maxTokens: 1 }))
    drain(engine)
    expect(runner.log.map(({ tokens }) => tokens)).toEqual([512, 512])
  })

  test('with all slots decoding, prompts keep a quarter of the step', () => {
    const { engine, runner } = setUp({ numSlots: 100, maxTokens: 40 })
    expect(engine.info.numSlots).toBe(30)
    for (let i = 0; i < 29; i++) engine.submit(requestOf({ id: `${i}`, maxTokens: 50 }))
    for (let i = 0; i < 4; i++) engine.step()
    engine.submit(requestOf({ id: 'new', prompt: promptOf(33), maxTokens: 1 }))
    const before = runner.log.length
    expect(stepsToFirstToken(engine, new Collected(), 'new')).toBe(3)
    expect(runner.log.slice(before).map(({ tokens }) => tokens)).toEqual([40, 40, 40])
  })

  test('admission is first come first served, also for many choices', () => {
    const { engine } = setUp({ numSlots: 4 })
    engine.submit(requestOf({ id: 'first', n: 3, maxTokens: 5 }))
    engine.submit(requestOf({ id: 'wide', n: 4, maxTokens: 2 }))
    engine.submit(requestOf({ id: 'narrow', maxTokens: 2 }))
    const order = drain(engine).events.filter((event) => event.type === 'prompt')
    expect(order.map(({ id }) => id)).toEqual(['first', 'wide', 'narrow'])
  })
})

test('a choice that ends early gives its slot to the next request while the others continue', () => {
  const { engine } = setUp({ numSlots: 2 })
  const open = requestOf({ id: 'two', n: 2, maxTokens: 30 })
  const [token] = soloAnswer(open, 1).tokens
  expect(soloAnswer(open, 0).tokens).not.toContain(token)
  engine.submit({ ...open, stop: { strings: [], tokens: [token!], ignoreEos: true } })
  engine.submit(requestOf({ id: 'next', maxTokens: 5 }))
  const ends = drain(engine).events.filter((event) => event.type === 'finish')
  expect(ends.map(({ id, index }) => `${id}/${index}`)).toEqual(['two/1', 'next/0', 'two/0'])
})

describe('cancel', () => {
  const phases = [
    ['queued', 0, { running: 1, waiting: 1 }],
    ['prefilling', 3, { running: 1, waiting: 0 }],
    ['decoding', 8, { running: 1, waiting: 0 }],
  ] as const

  test.each(phases)('%s: the slots are used in the next step', (phase, steps) => {
    const { engine, runner } = setUp({ numSlots: 2, maxTokens: 32 })
    const collected = new Collected()
    if (phase === 'queued') {
      engine.submit(requestOf({ id: 'other', n: 2, maxTokens: 50 }))
      engine.step()
    }
    engine.submit(requestOf({ id: 'gone', n: 2, prompt: promptOf(200), maxTokens: 50 }))
    for (let i = 0; i < steps; i++) collected.add(engine.step())
    const isAnswering = collected.of('gone').some((event) => event.type === 'text')
    expect(isAnswering).toBe(phase === 'decoding')
    engine.cancel('gone')
    expect(engine.stats).toMatchObject({ aborted: 1, waiting: 0 })
    if (phase === 'queued') {
      expect(engine.stats.running).toBe(1)
      engine.cancel('other')
    }
    expect(engine.stats).toMatchObject({ freeSlots: 2, running: 0 })
    const next = requestOf({ id: 'next', n: 2, maxTokens: 5 })
    engine.submit(next)
    const before = runner.log.length
    const after = drain(engine)
    expect(runner.log[before]).toMatchObject({ tokens: 3 })
    expect(after.of('gone')).toEqual([])
    expect(after.answer('next', 1)).toEqual(soloAnswer(next, 1))
  })

  test('the id can be reused at once; unknown ids are ignored', () => {
    const { engine } = setUp()
    engine.submit(requestOf({ maxTokens: 100 }))
    engine.step()
    engine.cancel('a')
    engine.cancel('a')
    engine.cancel('never seen')
    const again = requestOf({ prompt: promptOf(9), maxTokens: 4 })
    engine.submit(again)
    expect(drain(engine).answer('a')).toEqual(soloAnswer(again))
    expect(engine.stats.aborted).toBe(1)
  })
})

describe('faults', () => {
  test('a row that is not finite fails only its own request', () => {
    const { engine, runner } = setUp({ numSlots: 4 })
    const sick = requestOf({ id: 'sick', n: 2, maxTokens: 20 })
    const well = requestOf({ id: 'well', prompt: promptOf(5), n: 2, maxTokens: 20 })
    engine.submit(sick)
    engine.submit(well)
    const collected = new Collected()
    for (let i = 0; i < 4; i++) collected.add(engine.step())
    runner.notFinite.add(1)
    collected.add(engine.step())
    runner.notFinite.clear()
    expect(engine.stats).toMatchObject({ freeSlots: 2, failed: 1, running: 1 })
    drain(engine, collected)
    expect(collected.error('sick')).toBe('kernel_failed')
    expect(collected.of('sick').at(-1)?.type).toBe('error')
    expect(collected.answer('sick')).toBeNull()
    for (const index of [0, 1]) {
      expect(collected.answer('well', index)).toEqual(soloAnswer(well, index))
    }
    expect(engine.failure).toBeNull()
  })

  test('an error in a step ends the engine and is reported to everyone; who has not begun may try again', () => {
    const { engine, runner } = setUp({ numSlots: 2 })
    engine.submit(requestOf({ id: 'runs', n: 2 }))
    engine.submit(requestOf({ id: 'waits' }))
    engine.step()
    runner.onStep = () => {
      throw new Error('the device fell off the bus')
    }
    const collected = new Collected()
    collected.add(engine.step())
    expect([collected.error('runs'), collected.error('waits')]).toEqual(['internal', 'model_not_loaded'])
    expect(engine.failure?.message).toBe('the device fell off the bus')
    expect(engine.hasWork).toBe(false)
    expect(engine.step()).toEqual([])
    expect(() => engine.submit(requestOf({ id: 'late' }))).toThrow('fell off the bus')
  })

  test('a runner that returns too few results is not trusted', () => {
    const { engine, runner } = setUp()
    runner.launch = () => ({ isDone: true, result: () => [] })
    engine.submit(requestOf())
    expect(engine.step()).toMatchObject([{ type: 'error', error: { code: 'internal' } }])
    expect(engine.failure?.message).toContain('0 results for 1 rows')
  })

  test('freed slots are poisoned only on request', () => {
    for (const poisonFreedSlots of [true, false]) {
      const { engine, runner } = setUp({ numSlots: 2 }, { poisonFreedSlots })
      const before = runner.calls.poisons
      engine.submit(requestOf({ n: 2, sampling: SAMPLING }))
      drain(engine)
      expect(runner.calls.poisons - before).toBe(poisonFreedSlots ? 2 : 0)
      expect(runner.calls.clears).toBe(2)
    }
  })

  test('dispose releases the runner and refuses later requests', () => {
    const { engine, runner } = setUp()
    engine.submit(requestOf())
    engine.dispose()
    expect(runner.isDisposed).toBe(true)
    expect(engine.hasWork).toBe(false)
    expect(() => engine.submit(requestOf())).toThrow('closed')
  })
})
