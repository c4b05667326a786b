/**
 * Answers that give up their slots for a while: a newcomer does not wait for the holders of all slots, and no answer
 * changes. property.test.ts and state-lives.test.ts cover all moments of such lives.
 */
import { describe, expect, test } from 'vitest'
import type { Engine } from '../../src/engine/engine.ts'
import type { EngineEvent, GenerateRequest } from '../../src/engine/messages.ts'
import { FakeRunner } from '../helpers/fake-runner.ts'
import { directGrammars, JSON_V, jsonTokens } from '../helpers/grammars.ts'
import { BACKENDS, someTokens, tinyRunner } from '../helpers/runner.ts'
import { Collected, drain, engineOver, LOOPS, promptOf, requestOf, SAMPLING, soloAnswer, V } from './kit.ts'
import { call, settle, setUp, toldOf, transcript, turnOf } from './session-kit.ts'

const FOR_EVER = { strings: [], tokens: [], ignoreEos: true }

/** Steps until `isTrue`. */
function stepUntil(engine: Engine, isTrue: () => boolean, collected = new Collected(), most = 2000): number {
  for (let steps = 0; steps < most; steps++) {
    if (isTrue()) return steps
    collected.add(engine.step())
  }
  throw new Error(`not after ${most} steps`)
}

/** Requests of one key in all slots and in the queue, almost endless. */
function flood(count: number, parts: Partial<GenerateRequest> = {}): GenerateRequest[] {
  return Array.from({ length: count }, (_, i) =>
    requestOf({
      id: `bob${i}`,
      tenant: 'bob',
      prompt: promptOf(5 + i, i),
      maxTokens: 110,
      stop: FOR_EVER,
      sampling: {
        ...SAMPLING,
        temperature: i % 2,
        seed: BigInt(i),
        presencePenalty: i % 3 === 0 ? 0.5 : 0,
      },
      ...parts,
    }),
  )
}

describe.each(LOOPS)('%s', (loop) => {
  test('a newcomer is answered soon, and the answer that gave up its slot ends as it would have', () => {
    const runner = new FakeRunner({ vocabSize: V, numSlots: 4, maxTokens: 64 })
    const engine = engineOver(runner, { poisonFreedSlots: true }, null, loop)
    const rows = flood(7)
    for (const request of rows) engine.submit(request)
    const collected = new Collected()
    for (let i = 0; i < 60; i++) collected.add(engine.step())
    const alice = requestOf({ id: 'alice', tenant: 'alice', prompt: promptOf(9), maxTokens: 4 })
    engine.submit(alice)
    const steps = stepUntil(engine, () => collected.answer('alice') !== null, collected)
    // Bob's first one would have ended after some hundreds.
    expect(steps).toBeLessThan(40)
    expect(engine.stats.preemptions).toBe(1)
    drain(engine, collected)
    for (const request of [alice, ...rows]) expect(collected.answer(request.id)).toEqual(soloAnswer(request))
    expect(engine.failure).toBeNull()
    expect(engine.stats).toMatchObject({ freeSlots: 4, running: 0, preempted: 0 })
  })

  test('prompts that are being read can lose their slots, too', () => {
    const runner = new FakeRunner({ vocabSize: V, numSlots: 4, maxTokens: 64 })
    const engine = engineOver(runner, { poisonFreedSlots: true }, null, loop)
    const rows = flood(4, { prompt: promptOf(6000), maxTokens: 5, n: 2 })
    for (const request of rows) engine.submit(request)
    const collected = new Collected()
    for (let i = 0; i < 30; i++) collected.add(engine.step())
    const alice = requestOf({ id: 'alice', tenant: 'alice', prompt: promptOf(9), maxTokens: 4 })
    engine.submit(alice)
    expect(stepUntil(engine, () => collected.answer('alice') !== null, collected)).toBeLessThan(40)
    drain(engine, collected)
    for (const request of rows)
      for (const index of [0, 1]) expect(collected.answer(request.id, index)).toEqual(soloAnswer(request, index))
    expect(engine.stats).toMatchObject({ freeSlots: 4, failed: 0 })
  })

  test('with a key in every slot the keys take turns', () => {
    const runner = new FakeRunner({ vocabSize: V, numSlots: 2, maxTokens: 64 })
    const engine = engineOver(runner, { poisonFreedSlots: true }, null, loop)
    const rows = flood(4).map((request, i) => ({ ...request, tenant: `key ${i}`, maxTokens: 200 }))
    for (const request of rows) engine.submit(request)
    const collected = new Collected()
    const hasBegun = ({ id }: GenerateRequest) => collected.of(id).length > 0
    stepUntil(engine, () => rows.every(hasBegun), collected)
    expect(rows.map(({ id }) => collected.answer(id))).toEqual([null, null, null, null])
    drain(engine, collected)
    for (const request of rows) expect(collected.answer(request.id)).toEqual(soloAnswer(request))
    // And not in ever shorter turns: 800 tokens in pieces of some 64.
    expect(engine.stats.preemptions).toBeLessThan(40)
  })

  test('a mixture goes on when all of its states are back, however they come', () => {
    const mixture = [0.6, 0.4].map((weight) => ({ startState: null, weight }))
    const mixed = requestOf({ id: 'mixed', prompt: someTokens(9, 1), maxTokens: 60, mixture })
    const urgent = requestOf({ id: 'urgent', prompt: someTokens(5, 2), maxTokens: 4, n: 2, priority: 1 })
    const [alone, beside] = [[mixed], [mixed, urgent]].map((requests) => {
      const runner = tinyRunner('cpu', { slots: 3, maxTokens: 48 })
      // States so large that one a turn is copied.
      Object.assign(runner.info, { stateBytes: 2 ** 26 })
      const bytes = { bytesOf: (token: number) => Uint8Array.of(97 + (token % 7)) }
      const engine = engineOver(runner, { poisonFreedSlots: true }, null, loop, bytes)
      const collected = new Collected()
      for (const request of requests) {
        engine.submit(request)
        for (let i = 0; i < 40; i++) collected.add(engine.step())
      }
      drain(engine, collected)
      const { preemptions } = engine.stats
      engine.dispose()
      return { answer: collected.answer('mixed'), preemptions }
    })
    expect([alone!.preemptions, beside!.preemptions]).toEqual([0, 1])
    expect(beside!.answer).not.toBeNull()
    expect(beside!.answer).toEqual(alone!.answer)
  })

  test('a higher priority takes the slots of a lower one, also of the same key', () => {
    const runner = new FakeRunner({ vocabSize: V, numSlots: 2, maxTokens: 64 })
    const engine = engineOver(runner, { poisonFreedSlots: true }, null, loop)
    const rows = flood(3)
    for (const request of rows) engine.submit(request)
    const collected = new Collected()
    for (let i = 0; i < 40; i++) collected.add(engine.step())
    const [same, urgent] = [0, 1].map((priority) =>
      requestOf({ id: `p${priority}`, tenant: 'bob', prompt: promptOf(9), maxTokens: 4, priority }),
    )
    engine.submit(same!)
    engine.submit(urgent!)
    expect(stepUntil(engine, () => collected.answer('p1') !== null, collected)).toBeLessThan(40)
    expect(collected.of('p0')).toEqual([])
    drain(engine, collected)
    for (const request of [...rows, same!, urgent!]) expect(collected.answer(request.id)).toEqual(soloAnswer(request))
  })

  test('without memory for states no answer gives up its slot', () => {
    const runner = new FakeRunner({ vocabSize: V, numSlots: 2, maxTokens: 64 })
    const engine = engineOver(runner, { preemptBytes: 0 }, null, loop)
    for (const request of flood(4)) engine.submit(request)
    for (let i = 0; i < 40; i++) engine.step()
    engine.submit(requestOf({ id: 'alice', tenant: 'alice', prompt: promptOf(9), maxTokens: 4 }))
    for (let i = 0; i < 40; i++) engine.step()
    expect(engine.stats).toMatchObject({ preemptions: 0, waiting: 3 })
    engine.dispose()
  })

  test('a turn that is cancelled while preempted is kept as far as it was reported', async () => {
    const { engine } = setUp({ fake: { numSlots: 2 }, loop, states: { prefixBytes: 0 } })
    const collected = new Collected()
    const use = { onCancel: 'keep' } as const
    engine.submit(turnOf({ id: 't', prompt: promptOf(6), maxTokens: 300, stop: FOR_EVER }, use))
    engine.submit(turnOf({ id: 'u', prompt: promptOf(7), maxTokens: 300, stop: FOR_EVER }, { ...use, id: 'u' }))
    for (let i = 0; i < 40; i++) collected.add(engine.step())
    for (const id of ['a', 'b'])
      engine.submit(requestOf({ id, prompt: promptOf(9), maxTokens: 200, stop: FOR_EVER, priority: 1 }))
    stepUntil(engine, () => engine.stats.preempted === 2, collected)
    const told = collected.of('t').flatMap((event) => (event.type === 'text' ? event.tokens : []))
    engine.cancel('t')
    engine.cancel('u')
    await settle(engine, collected)
    const kept = await transcript(engine)
    expect([...kept]).toEqual([...promptOf(6), ...kept.slice(6)])
    expect([...kept.slice(6, 6 + told.length)]).toEqual(told)
    expect(told.length).toBeGreaterThan(8)
    await settle(engine)
    expect(engine.stats).toMatchObject({ freeSlots: 2, running: 0, preempted: 0 })
    engine.dispose()
  })

  test('preempted turns continue, fork and end at stop strings as usual', async () => {
    const ask = (engine: Engine, id: string, priority: number) => {
      const stop = { strings: ['no such text', 'ab'], tokens: [], ignoreEos: true }
      engine.submit(turnOf({ id, prompt: promptOf(6), maxTokens: 60, stop, priority: 0 }))
      return priority
    }
    const run = async (isDisturbed: boolean) => {
      const { engine } = setUp({ fake: { numSlots: 1 }, loop, states: { prefixBytes: 0 } })
      const results: unknown[] = []
      for (const id of ['one', 'two']) {
        const collected = new Collected()
        ask(engine, id, 0)
        for (let i = 0; i < 200 && engine.hasWork; i++) {
          if (isDisturbed && i % 25 === 20)
            engine.submit(requestOf({ id: `${id}${i}`, prompt: promptOf(4), maxTokens: 3, priority: 1 }))
          collected.add(engine.step())
        }
        await settle(engine, collected)
        results.push(collected.answer(id), toldOf(collected, id).position, [...(await transcript(engine))])
      }
      const forked = await call(engine, 'sessions.fork', {
        tenant: '',
        id: 's',
        newId: 'f',
        turn: 1,
      })
      results.push(forked.head)
      const { preemptions } = engine.stats
      engine.dispose()
      return { results, preemptions }
    }
    const [alone, disturbed] = [await run(false), await run(true)]
    expect(disturbed.results).toEqual(alone.results)
    expect(disturbed.preemptions).toBeGreaterThan(0)
  })
})

test.each(LOOPS)('an answer with a grammar continues within it, %s', async (loop) => {
  const grammars = await directGrammars()
  const request = (id: string) =>
    requestOf({
      id,
      tenant: 'bob',
      prompt: Int32Array.of(5, 6, 7),
      maxTokens: 3000,
      sampling: { ...SAMPLING, temperature: 1, seed: 3n },
      constraint: {
        type: 'schema',
        schema: { type: 'array', minItems: 6, items: { type: 'integer' } },
      },
    })
  const run = async (isDisturbed: boolean) => {
    const runner = new FakeRunner({ vocabSize: JSON_V, numSlots: 1, maxTokens: 32 })
    const engine = engineOver(runner, { poisonFreedSlots: true }, null, loop, jsonTokens, grammars)
    engine.submit(request('c'))
    await new Promise(setImmediate)
    const collected = new Collected()
    for (let i = 0; engine.hasWork; i++) {
      if (isDisturbed && i % 30 === 12)
        engine.submit(
          requestOf({
            id: `n${i}`,
            tenant: 'alice',
            prompt: Int32Array.of(1),
            maxTokens: 2,
            priority: 1,
          }),
        )
      collected.add(engine.step())
    }
    const { preemptions } = engine.stats
    engine.dispose()
    return { answer: collected.answer('c'), preemptions }
  }
  const [alone, disturbed] = [await run(false), await run(true)]
  expect(disturbed.answer).toEqual(alone.answer)
  expect(disturbed.preemptions).toBeGreaterThan(0)
})

/** The reference's states are float64 in slots and float32 elsewhere, so its results are only that close. */
function roundedOn<T>(backend: string, events: readonly T[]): readonly T[] {
  if (backend !== 'reference') return events
  const rounded = (value: unknown): unknown => {
    if (value instanceof Uint8Array || typeof value !== 'object' || value === null)
      return typeof value === 'number' && !Number.isInteger(value) ? expect.closeTo(value, 4) : value
    if (Array.isArray(value)) return value.map(rounded)
    return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, rounded(each)]))
  }
  // The same shape.
  return events.map((event) => rounded(event) as T)
}

describe.each(BACKENDS)('on %s', (backend) => {
  // It is enough if the slowest one shows it once.
  const loops = backend === 'reference' ? LOOPS.slice(1, 2) : LOOPS
  const tokenBytes = { bytesOf: (token: number) => Uint8Array.of(97 + (token % 7), 32) }
  const rows = Array.from({ length: 4 }, (_, i) =>
    requestOf({
      id: `r${i}`,
      tenant: 'bob',
      prompt: someTokens(10 + i * 10, i % 2),
      n: i === 3 ? 2 : 1,
      maxTokens: 26,
      stop: { strings: i === 1 ? ['a b c d', 'zz'] : [], tokens: [], ignoreEos: true },
      sampling: {
        ...SAMPLING,
        seed: BigInt(i),
        temperature: i % 2,
        presencePenalty: i > 1 ? 0.7 : 0,
        frequencyPenalty: i > 1 ? 0.2 : 0,
        penaltyDecay: 0.97,
        repetitionPenalty: i === 3 ? 1.2 : 1,
      },
      logprobs: 3,
    }),
  )
  const newcomer = (id: string) =>
    requestOf({ id, tenant: 'alice', prompt: someTokens(9, 5), maxTokens: 3, n: 2, priority: 1 })

  test.each(loops)('tokens and log-probabilities equal those of a run alone, %s', (loop) => {
    const make = () =>
      engineOver(
        tinyRunner(backend, { slots: 5, maxTokens: 48 }),
        { poisonFreedSlots: true, prefillChunk: 13 },
        null,
        loop,
        tokenBytes,
      )
    const indexOf = (event: object) => ('index' in event ? Number(event.index) : -1)
    const inOrder = (events: readonly EngineEvent[]) => events.toSorted((a, b) => indexOf(a) - indexOf(b))
    const alone = make()
    const expected = rows.map((request) => {
      alone.submit(request)
      return roundedOn(backend, inOrder(drain(alone).of(request.id)))
    })
    alone.dispose()
    const engine = make()
    for (const request of rows) engine.submit(request)
    const collected = new Collected()
    for (let i = 0; engine.hasWork; i++) {
      if (i % 16 === 10 && i < 120) engine.submit(newcomer(`n${i}`))
      collected.add(engine.step())
    }
    expect(rows.map(({ id }) => inOrder(collected.of(id)))).toEqual(expected)
    expect(engine.stats.preemptions).toBeGreaterThan(1)
    expect(engine.stats).toMatchObject({ failed: 0, freeSlots: 5 })
    engine.dispose()
  })
})
