/** Sessions in one process: what a turn keeps, who may write, branches, and edge cases. */
import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import type { GenerateRequest } from '../../src/engine/messages.ts'
import { joinTokens } from '../../src/state/snapshot.ts'
import { decodeSnapshot, encodeSnapshot } from '../../src/state/snapshot-file.ts'
import { newFolder } from '../helpers/direct-store.ts'
import { trials } from '../helpers/slow.ts'
import { Collected, drain, LOOPS, promptOf, requestOf, SAMPLING, soloAnswer, textOf, V } from './kit.ts'
import {
  answerAfter,
  call,
  openAt,
  refusal,
  type SetUp,
  settle,
  setUp,
  tell,
  toldOf,
  transcript,
  turnOf,
  withoutSeal,
  withSteps,
} from './session-kit.ts'

const REF = { tenant: '', id: 's' }

/** Runs turns one after another; every answer must equal that of the whole conversation as one prompt. */
async function converse(turns: readonly GenerateRequest[], options: SetUp = {}) {
  const world = setUp(options)
  let history: Int32Array = new Int32Array(0)
  for (const [i, request] of turns.entries()) {
    const { collected, position } = await tell(world.engine, request)
    const { answer, text } = answerAfter(history, request)
    expect(collected.answer(request.id)).toEqual(answer)
    expect(position).toMatchObject({ id: 's', turn: i + 1, version: i + 1 })
    const before = history
    history = await transcript(world.engine)
    expect(history.slice(0, before.length + request.prompt.length)).toEqual(joinTokens(before, request.prompt))
    expect(textOf([...history], false)).toBe(
      // Unfinished characters at the end of an answer are shown as U+FFFD and kept as they are.
      answer.reason === 'length' ? textOf([...before, ...request.prompt, ...answer.tokens], false) : text,
    )
  }
  return { ...world, history }
}

describe('a turn', () => {
  test('continues the conversation as if it had never stopped', async () => {
    const { history, runner } = await converse([
      turnOf({ prompt: promptOf(40), maxTokens: 9 }),
      turnOf({ prompt: promptOf(3, 2), maxTokens: 5 }),
      turnOf({ prompt: promptOf(600, 3), maxTokens: 1 }),
      turnOf({ prompt: promptOf(1, 4), maxTokens: 0 }),
      turnOf({ prompt: promptOf(1, 5), maxTokens: 7 }),
    ])
    expect(history.length).toBe(40 + 9 + 3 + 5 + 600 + 1 + 1 + 1 + 7)
    // Tokens of earlier turns were not read again: only what was new, and the unfed tails.
    const read = runner.log.reduce((sum, step) => sum + step.tokens, 0)
    expect(read).toBe(40 + 8 + (1 + 3 + 4) + (1 + 600) + (1 + 1) + (1 + 6))
  })

  test('reports its cost and its place', async () => {
    const { engine } = setUp()
    await tell(engine, turnOf({ prompt: promptOf(10), maxTokens: 4 }))
    const { collected } = await tell(engine, turnOf({ prompt: promptOf(5), maxTokens: 1 }))
    expect(collected.of('a')[0]).toMatchObject({
      type: 'prompt',
      cachedTokens: 13,
      contextTokens: 19,
      session: { id: 's', turn: 1, version: 1 },
    })
  })

  test('with nothing new continues from the unfed tail, and is refused without one', async () => {
    const nothing = turnOf({ prompt: new Int32Array(0), maxTokens: 4 })
    await converse([turnOf({ maxTokens: 3 }), nothing, nothing])
    const { engine } = setUp()
    const { collected } = await tell(engine, turnOf({ id: 'first', prompt: new Int32Array(0) }))
    expect(collected.error('first')).toBe('invalid_request')
    const stop = { strings: [], tokens: Array.from({ length: 97 }, (_, id) => id), ignoreEos: false }
    await tell(engine, turnOf({ stop }))
    expect((await tell(engine, nothing)).collected.error('a')).toBe('invalid_request')
    expect(engine.stats).toMatchObject({ freeSlots: 8, states: { sessions: 1 } })
  })

  const numTalks = trials(100, 300)
  test(`${numTalks} conversations with stops of every kind: the kept state, its tokens and the text agree`, async () => {
    const seen = { stop: 0, length: 0 }
    const stops = fc.record({
      strings: fc.array(fc.constantFrom('ab', 'b', 'ca', 'aab', 'c', 'é', 'ba', '世'), { maxLength: 3 }),
      tokens: fc.array(fc.integer({ min: 11, max: 40 }), { maxLength: 3 }),
      ignoreEos: fc.boolean(),
    })
    const turns = fc.array(fc.record({ length: fc.integer({ min: 1, max: 70 }), seed: fc.nat(50), stop: stops }), {
      minLength: 1,
      maxLength: 4,
    })
    await fc.assert(
      fc.asyncProperty(turns, fc.boolean(), fc.constantFrom(...LOOPS), async (given, isTight, loop) => {
        const requests = given.map(({ length, seed, stop }) => {
          // Partial characters only make it hard to compare texts; answer-tokens.test.ts has them.
          const bannedTokens = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
          const sampling = { ...SAMPLING, seed: BigInt(seed), bannedTokens }
          const prompt = promptOf(length, seed).map((token) => 14 + (token % 12))
          return turnOf({ prompt, stop, maxTokens: 24, sampling })
        })
        const sizes = { slots: 0, memory: LITTLE }
        const states = isTight ? { sizes } : {}
        const { engine } = await converse(requests, { fake: { layers: 3 }, states, loop })
        seen.stop += engine.stats.finishedStop
        seen.length += engine.stats.finishedLength
        engine.dispose()
      }),
      { numRuns: numTalks, seed: 11 },
    )
    expect(Math.min(seen.stop, seen.length)).toBeGreaterThan(numTalks / 6)
  })

  test('whose slot is needed moves to memory and back', async () => {
    const turn = turnOf({ prompt: promptOf(20), maxTokens: 6 })
    const { engine, runner } = await converse([turn], { fake: { numSlots: 2 } })
    expect(await call(engine, 'sessions.get', REF)).toMatchObject({ turns: [{ tier: 'device' }] })
    engine.submit(requestOf({ id: 'wide', n: 2, cache: 'no-store' }))
    const { collected } = toldOf(await settle(engine), 'wide')
    expect(collected.answer('wide', 1)).toEqual(soloAnswer(requestOf({ n: 2 }), 1))
    expect(await call(engine, 'sessions.get', REF)).toMatchObject({ turns: [{ tier: 'memory' }] })
    const history = await transcript(engine)
    const next = turnOf({ prompt: promptOf(4), maxTokens: 6 })
    const told = await tell(engine, next)
    expect(told.collected.answer('a')).toEqual(answerAfter(history, next).answer)
    expect(runner.calls.writes).toBe(1)
  })

  test('first turns share prefixes with plain prompts', async () => {
    const { engine } = setUp()
    await tell(engine, requestOf({ prompt: promptOf(100) }))
    const { cachedTokens } = await tell(engine, turnOf({ prompt: promptOf(100) }))
    expect(cachedTokens).toBe(99)
  })
})

const LITTLE = { count: 1, bytes: Number.POSITIVE_INFINITY }

describe('concurrent writes', () => {
  test('a second request waits for its turn, in order, also past one that left', async () => {
    const { engine } = setUp()
    const requests = ['a', 'b', 'c', 'd'].map((id, i) => turnOf({ id, prompt: promptOf(5, i), maxTokens: 3 + i }))
    for (const request of requests) engine.submit(request)
    const collected = new Collected()
    collected.add(engine.step())
    engine.cancel('c')
    await settle(engine, collected)
    let history: Int32Array = new Int32Array(0)
    for (const [i, request] of [requests[0]!, requests[1]!, requests[3]!].entries()) {
      expect(collected.answer(request.id)).toEqual(answerAfter(history, request).answer)
      expect(toldOf(collected, request.id).position?.turn).toBe(i + 1)
      history = await transcript(engine, 's', i + 1)
    }
  })

  test('it is decided when its turn comes whether a request starts or continues the session', async () => {
    const promptAtBeginning = promptOf(4, 8)
    const later = turnOf({ id: 'b', prompt: promptOf(5, 9), promptAtBeginning, maxTokens: 6 })
    const { engine } = setUp()
    engine.submit(turnOf({ maxTokens: 8 }))
    engine.submit(later)
    const continued = await settle(engine)
    const history = await transcript(engine, 's', 1)
    expect(continued.answer('b')).toEqual(answerAfter(history, later).answer)
    // The other way round: the turn that it waits for is deleted.
    engine.submit(turnOf({ id: 'c', maxTokens: 8 }))
    engine.submit(later)
    await engine.call('sessions.delete', REF)
    const begun = await settle(engine)
    const first = { ...later, prompt: promptAtBeginning }
    expect(begun.answer('b')).toEqual(answerAfter(new Int32Array(0), first).answer)
    expect((await transcript(engine)).slice(0, 4)).toEqual(promptAtBeginning)
    expect(begun.of('b').find(({ type }) => type === 'prompt')).toMatchObject({ contextTokens: 4 })
  })

  test('or it gets a conflict, as requested; a version that no longer exists is a conflict too', async () => {
    const { engine } = setUp()
    engine.submit(turnOf())
    expect(() => engine.submit(turnOf({ id: 'b' }, { ifBusy: 'conflict' }))).toThrow('written to')
    engine.submit(turnOf({ id: 'c' }, { ifVersion: 0 }))
    engine.submit(turnOf({ id: 'd' }, { ifVersion: 1 }))
    const collected = await settle(engine)
    expect([collected.error('c'), collected.error('d')]).toEqual(['conflict', null])
    expect(toldOf(collected, 'd').position).toMatchObject({ id: 's', turn: 2, version: 2 })
  })

  test('an unknown session is created only on request', () => {
    const { engine } = setUp()
    expect(() => engine.submit(turnOf({}, { ifMissing: 'error' }))).toThrow('there is no session s')
    expect(() => engine.submit(turnOf({}, { from: 3 }))).toThrow('there is no session s')
    expect(engine.isIdle).toBe(true)
    engine.submit(turnOf({}, { from: 0 }))
    expect(engine.isIdle).toBe(false)
    drain(engine)
  })

  test.each([
    [{ n: 2 }, 'n must be 1'],
    [{ promptLogprobs: 1 }, 'promptLogprobs'],
    [{ cache: 'no-store' as const }, 'no-store'],
    [{ boundaries: Int32Array.of(3, 2) }, 'ascending'],
    [{ promptAtBeginning: Int32Array.of(V) }, `has token ${V}`],
  ])('%j is refused in a session', (parts, message) => {
    expect(() => setUp().engine.submit(turnOf(parts))).toThrow(message)
  })
})

describe('cancelling', () => {
  const longTurn = (onCancel: 'drop' | 'keep') =>
    turnOf({ id: 'long', prompt: promptOf(20, 9), maxTokens: 50 }, { onCancel })

  test.each([0, 1, 2, 9])('after %i steps nothing is saved and the next turn continues as before', async (steps) => {
    const { engine } = setUp({ fake: { maxTokens: 16 } })
    await tell(engine, turnOf({ prompt: promptOf(12) }))
    const history = await transcript(engine)
    engine.submit(longTurn('drop'))
    for (let i = 0; i < steps; i++) engine.step()
    engine.cancel('long')
    expect(await call(engine, 'sessions.get', REF)).toMatchObject({ head: 1, isBusy: false })
    const next = turnOf({ prompt: promptOf(4, 2) })
    const { collected } = await tell(engine, next)
    expect(collected.answer('a')).toEqual(answerAfter(history, next).answer)
    expect(engine.stats.freeSlots).toBe(8)
  })

  test.each(LOOPS)('keeps the answer as far as it was drawn, on request, %s', async (loop) => {
    const { engine } = setUp({ loop })
    engine.submit(longTurn('keep'))
    const collected = new Collected()
    for (let i = 0; i < 6; i++) collected.add(engine.step())
    const { generatedTokens } = engine.stats
    engine.cancel('long')
    // The steps in flight are read first, and a request for the session waits for that.
    const kept = await transcript(engine)
    const numDrawn = engine.stats.generatedTokens
    expect(numDrawn - generatedTokens).toBeLessThanOrEqual(loop === 'plain' ? 0 : 2)
    const drawn = soloAnswer(longTurn('keep')).tokens.slice(0, numDrawn)
    expect(kept).toEqual(joinTokens(promptOf(20, 9), drawn))
    engine.submit(longTurn('keep'))
    engine.cancel('long')
    expect(await call(engine, 'sessions.get', REF)).toMatchObject({ head: 1, isBusy: false })
  })

  test('while a cancelled answer is being kept, the next turn waits for that without a conflict', async () => {
    const { engine } = setUp({ loop: 'overlapped' })
    engine.submit(longTurn('keep'))
    for (let i = 0; i < 6; i++) engine.step()
    engine.cancel('long')
    expect(engine.isIdle).toBe(false)
    const next = turnOf({ id: 'next', prompt: promptOf(4) }, { ifBusy: 'conflict' })
    engine.submit(next)
    const collected = await settle(engine)
    expect(collected.of('long')).toEqual([])
    expect(collected.error('next')).toBeNull()
    const first = await transcript(engine, 's', 1)
    expect(collected.answer('next')).toEqual(answerAfter(first, next).answer)
  })

  test('a request whose numbers are not finite saves nothing', async () => {
    const { engine, runner } = setUp()
    await tell(engine, turnOf())
    const history = await transcript(engine)
    engine.submit(longTurn('keep'))
    engine.step()
    for (let slot = 0; slot < 8; slot++) runner.notFinite.add(slot)
    expect((await settle(engine)).error('long')).toBe('kernel_failed')
    runner.notFinite.clear()
    expect(await transcript(engine)).toEqual(history)
  })
})

describe('branches', () => {
  async function threeTurns() {
    const { engine, runner } = setUp({ fake: { numSlots: 5 } })
    for (const seed of [1, 2, 3]) await tell(engine, turnOf({ prompt: promptOf(5, seed) }))
    const histories: Int32Array[] = [new Int32Array(0)]
    for (const turn of [1, 2, 3]) histories.push(await transcript(engine, 's', turn))
    return { engine, runner, histories }
  }

  test('from any turn, including the first and the empty one; none is changed', async () => {
    const { engine, histories } = await threeTurns()
    for (const [i, from] of [1, 0, 3, 2, 1].entries()) {
      const request = turnOf({ prompt: promptOf(4, 7) }, { from })
      const { collected, position } = await tell(engine, request)
      expect(collected.answer('a')).toEqual(answerAfter(histories[from]!, request).answer)
      expect(position).toMatchObject({ id: 's', turn: 4 + i, version: 4 + i })
    }
    for (const turn of [1, 2, 3]) expect(await transcript(engine, 's', turn)).toEqual(histories[turn])
    const { turns } = await call(engine, 'sessions.get', REF)
    expect(turns.map(({ parent }) => parent)).toEqual([0, 1, 2, 1, 0, 3, 2, 1])
  })

  test('rewind and undo, also forward again', async () => {
    const { engine, histories } = await threeTurns()
    const rewind = (turn: number | 'undo') => call(engine, 'sessions.rewind', { ...REF, turn })
    expect(await rewind('undo')).toMatchObject({ head: 2, version: 4 })
    expect(await rewind('undo')).toMatchObject({ head: 1, version: 5 })
    expect(await rewind('undo')).toMatchObject({ head: 0, version: 6 })
    expect(await refusal(engine, 'sessions.rewind', { ...REF, turn: 'undo' })).toBe('conflict')
    expect(await rewind(3)).toMatchObject({ head: 3, version: 7 })
    expect(await rewind(2)).toMatchObject({ head: 2 })
    expect(await refusal(engine, 'sessions.rewind', { ...REF, turn: 9 })).toBe('not_found')
    const stale = { ...REF, turn: 1, ifVersion: 7 }
    expect(await refusal(engine, 'sessions.rewind', stale)).toBe('conflict')
    const request = turnOf({ prompt: promptOf(4, 7) })
    const { collected } = await tell(engine, request)
    expect(collected.answer('a')).toEqual(answerAfter(histories[2]!, request).answer)
  })

  test('a fork is independent, also after its original is gone', async () => {
    const { engine, histories, runner } = await threeTurns()
    const { copies, reads } = runner.calls
    const fork = { ...REF, newId: 'f', turn: 2 }
    expect(await call(engine, 'sessions.fork', fork)).toMatchObject({
      id: 'f',
      head: 2,
      turns: [{ turn: 1 }, { turn: 2 }],
    })
    expect(runner.calls).toMatchObject({ copies, reads })
    expect(await refusal(engine, 'sessions.fork', fork)).toBe('conflict')
    expect(await refusal(engine, 'sessions.fork', { ...fork, newId: 'g', turn: 8 })).toBe('not_found')
    await call(engine, 'sessions.delete', REF)
    const request = turnOf({ prompt: promptOf(4, 7) }, { id: 'f' })
    const { collected, position } = await tell(engine, request)
    expect(collected.answer('a')).toEqual(answerAfter(histories[2]!, request).answer)
    expect(position?.turn).toBe(3)
  })

  test('a rewind of a session that is deleted before the answer is not_found', async () => {
    const { engine } = await threeTurns()
    const rewound = engine.call('sessions.rewind', { ...REF, turn: 1 })
    const deleted = engine.call('sessions.delete', REF)
    await expect(rewound).rejects.toMatchObject({ code: 'not_found' })
    await deleted
  })

  test('readers read at once, whoever deletes the session before the answer', async () => {
    const { engine } = await threeTurns()
    const read = engine.call('sessions.get', REF)
    const listed = engine.call('sessions.list', { tenant: '', after: 's' })
    const exported = engine.call('sessions.export', REF)
    const deleted = engine.call('sessions.delete', REF)
    const [{ head, turns }, page] = await withSteps(engine, Promise.all([read, listed, exported]))
    expect([head, turns.map(({ turn }) => turn), page]).toEqual([3, [1, 2, 3], []])
    await deleted
  })

  test('old turns are pruned, never the head', async () => {
    const limits = { maxSessions: 9, maxBytes: 1e9, maxTurns: 3, ttlMs: null }
    const { engine } = setUp({ states: { limits } })
    for (let i = 0; i < 3; i++) await tell(engine, turnOf({ prompt: promptOf(5, i) }))
    await call(engine, 'sessions.rewind', { ...REF, turn: 1 })
    for (let i = 0; i < 2; i++) await tell(engine, turnOf({ prompt: promptOf(5, i) }))
    const { turns, head } = await call(engine, 'sessions.get', REF)
    expect([turns.map(({ turn }) => turn), head]).toEqual([[3, 4, 5], 5])
    expect(await refusal(engine, 'sessions.rewind', { ...REF, turn: 1 })).toBe('not_found')
    expect(engine.stats.states).toMatchObject({ sessions: 1, inSlots: 1, inMemory: 2 })
  })
})

describe('lifetime', () => {
  test('a deleted session is unknown at once; a running request is answered and saves nothing', async () => {
    const { engine } = setUp()
    await tell(engine, turnOf())
    engine.submit(turnOf({ id: 'writes', maxTokens: 20 }))
    engine.submit(turnOf({ id: 'waits' }))
    for (let i = 0; i < 3; i++) engine.step()
    await engine.call('sessions.delete', REF)
    await expect(engine.call('sessions.get', REF)).rejects.toThrow('no session')
    const collected = await settle(engine)
    expect(toldOf(collected, 'writes').position).toBeUndefined()
    // The one in the queue asked for a session to be created if there is none.
    expect(toldOf(collected, 'waits').position).toMatchObject({ id: 's', turn: 1, version: 1 })
    expect(engine.stats).toMatchObject({ freeSlots: 8, states: { sessions: 1, inSlots: 1 } })
  })

  test.each([false, true])(
    'a session that exists only through a running request can be deleted too (store: %s)',
    async (hasStore) => {
      const { engine } = hasStore ? openAt(newFolder()) : setUp()
      engine.submit(turnOf({ id: 'writes', maxTokens: 20 }))
      await expect.poll(() => engine.hasWork).toBe(true)
      const collected = new Collected()
      for (let i = 0; i < 3; i++) collected.add(engine.step())
      await expect(engine.call('sessions.get', REF)).rejects.toThrow('no session')
      await expect(engine.call('sessions.rewind', { ...REF, turn: 0 })).rejects.toThrow('no session')
      const deleted = engine.call('sessions.delete', REF)
      await settle(engine, collected)
      await withSteps(engine, deleted)
      expect(collected.answer('writes')?.reason).toBe('length')
      expect(toldOf(collected, 'writes').position).toBeUndefined()
      expect(await refusal(engine, 'sessions.get', REF)).toBe('not_found')
      expect(await refusal(engine, 'sessions.delete', REF)).toBe('not_found')
      expect((await tell(engine, turnOf())).position).toMatchObject({ id: 's', turn: 1, version: 1 })
      await engine.close()
    },
  )

  test('time to live, by the server and by the session', async () => {
    let now = 1_000_000
    const limits = { maxSessions: 9, maxBytes: 1e9, maxTurns: 9, ttlMs: 60_000 }
    const { engine } = setUp({ states: { limits, now: () => now } })
    await tell(engine, turnOf({}, { id: 'short', ttlSeconds: 10 }))
    await tell(engine, turnOf({}, { id: 'long' }))
    expect(await call(engine, 'sessions.get', { tenant: '', id: 'long' })).toMatchObject({ expiresAt: 1_060_000 })
    now += 10_000
    expect(await refusal(engine, 'sessions.get', { tenant: '', id: 'short' })).toBe('not_found')
    expect(() => engine.submit(turnOf({}, { id: 'short', ifMissing: 'error' }))).toThrow('no session')
    await tell(engine, turnOf({}, { id: 'long' }))
    now += 59_999
    expect(await call(engine, 'sessions.list', { tenant: '' })).toHaveLength(1)
    now += 1
    expect(await call(engine, 'sessions.list', { tenant: '' })).toEqual([])
    expect(engine.stats.states).toMatchObject({ sessions: 0, inSlots: 0, inMemory: 0 })
  })

  test('a turn that saves nothing leaves the time to live unchanged', async () => {
    let now = 1_000_000
    const limits = { maxSessions: 9, maxBytes: 1e9, maxTurns: 9, ttlMs: null }
    const { engine } = setUp({ states: { limits, now: () => now } })
    await tell(engine, turnOf())
    now += 60_000
    engine.submit(turnOf({ id: 'gone' }, { ttlSeconds: 10 }))
    engine.step()
    engine.cancel('gone')
    await settle(engine)
    // The conversation was last used more than ten seconds ago.
    expect(await call(engine, 'sessions.get', REF)).toMatchObject({ version: 1, expiresAt: null })
    await tell(engine, turnOf({}, { ttlSeconds: 10 }))
    expect(await call(engine, 'sessions.get', REF)).toMatchObject({ expiresAt: now + 10_000 })
  })

  test('expired sessions do not count against a quota', async () => {
    let now = 0
    const limits = { maxSessions: 2, maxBytes: 1e9, maxTurns: 9, ttlMs: 1000 }
    const { engine } = setUp({ states: { limits, now: () => now } })
    for (const id of ['a', 'b']) await tell(engine, turnOf({}, { id }))
    expect(() => engine.submit(turnOf({}, { id: 'c' }))).toThrow('quota')
    now += 1000
    await tell(engine, turnOf({}, { id: 'c' }))
    const small = setUp({ states: { limits: { ...limits, maxBytes: 50 }, now: () => now } })
    await tell(small.engine, turnOf())
    now += 1000
    await tell(small.engine, turnOf({}, { id: 't' }))
  })

  test('quotas of one tenant, by sessions and by bytes, do not affect another', async () => {
    const limits = { maxSessions: 2, maxBytes: 1e9, maxTurns: 9, ttlMs: null }
    const { engine } = setUp({ states: { limits } })
    for (const id of ['a', 'b']) await tell(engine, turnOf({}, { id }))
    expect(() => engine.submit(turnOf({}, { id: 'c' }))).toThrow('quota')
    expect(await refusal(engine, 'sessions.fork', { tenant: '', id: 'a', newId: 'c' })).toBe('too_large')
    await tell(engine, turnOf({}, { id: 'a' }))
    await tell(engine, turnOf({ tenant: 'other' }, { id: 'c' }))
    const small = setUp({ states: { limits: { ...limits, maxBytes: 50 } } })
    await tell(small.engine, turnOf())
    expect(() => small.engine.submit(turnOf())).toThrow('quota is 50')
  })

  test('the bytes of a turn are those of its copies, whatever type the device uses', async () => {
    const limits = { maxSessions: 2, maxBytes: 130, maxTurns: 9, ttlMs: null }
    const { engine } = setUp({ fake: { stateBytes: 16 }, states: { limits } })
    await tell(engine, turnOf({ maxTokens: 4, prompt: promptOf(4) }))
    expect(await call(engine, 'sessions.get', REF)).toMatchObject({ bytes: 32 + 4 * 8 })
    expect(() => engine.submit(turnOf({ prompt: promptOf(1) }))).toThrow('take 132 bytes')
  })

  test('without a store, what does not fit into memory is forgotten, old turns before sessions', async () => {
    const memory = { count: 3, bytes: Number.POSITIVE_INFINITY }
    let now = 0
    const { engine } = setUp({ states: { sizes: { slots: 0, memory }, now: () => now++ } })
    for (let i = 0; i < 3; i++) await tell(engine, turnOf({ prompt: promptOf(5, i) }))
    await tell(engine, turnOf({}, { id: 't' }))
    await tell(engine, turnOf({}, { id: 'u' }))
    const list = await call(engine, 'sessions.list', { tenant: '' })
    expect(list.map(({ id, turns }) => [id, turns.length])).toEqual([
      ['u', 1],
      ['t', 1],
      ['s', 1],
    ])
    await tell(engine, turnOf({}, { id: 'v' }))
    expect(await refusal(engine, 'sessions.get', REF)).toBe('not_found')
    expect(engine.stats.states).toMatchObject({ sessions: 3, inMemory: 3 })
  })
})

describe('tenants and files', () => {
  test('no route finds a session of another tenant', async () => {
    const { engine } = setUp()
    await tell(engine, turnOf({ tenant: 'mine' }))
    const ref = { tenant: 'yours', id: 's' }
    for (const method of ['sessions.get', 'sessions.delete', 'sessions.export'] as const) {
      expect(await refusal(engine, method, ref)).toBe('not_found')
    }
    expect(await refusal(engine, 'sessions.fork', { ...ref, newId: 'x' })).toBe('not_found')
    expect(await refusal(engine, 'sessions.rewind', { ...ref, turn: 0 })).toBe('not_found')
    expect(await call(engine, 'sessions.list', { tenant: 'yours' })).toEqual([])
    expect(await call(engine, 'sessions.list', { tenant: 'mine' })).toHaveLength(1)
  })

  test('an exported turn is imported elsewhere and continues, but never serves as a prefix', async () => {
    const { engine } = setUp()
    await tell(engine, turnOf({ prompt: promptOf(60), maxTokens: 9 }))
    const history = await transcript(engine)
    const bytes = await call(engine, 'sessions.export', REF)
    const other = setUp().engine
    await call(other, 'sessions.import', { tenant: 't', id: 'new', bytes })
    expect(await refusal(other, 'sessions.import', { tenant: 't', id: 'new', bytes })).toBe('conflict')
    const request = turnOf({ tenant: 't', prompt: promptOf(4) }, { id: 'new' })
    const { collected } = await tell(other, request)
    expect(collected.answer('a')).toEqual(answerAfter(history, request).answer)
    expect(other.stats.states!.prefixes).toBe(0)
    const damaged = bytes.slice()
    damaged[damaged.length - 40]! ^= 1
    const wrong = { tenant: 't', id: 'damaged', bytes: damaged }
    expect(await refusal(other, 'sessions.import', wrong)).toBe('invalid_request')
    expect(await refusal(other, 'sessions.get', wrong)).toBe('not_found')
    const strange = setUp({ states: { vocabulary: 'another' } }).engine
    const misfit = { tenant: '', id: 'x', bytes }
    expect(await refusal(strange, 'sessions.import', misfit)).toBe('state_incompatible')
  })

  /** What an exported file holds. */
  function opened(bytes: Uint8Array) {
    const headerEnd = 16 + new DataView(bytes.buffer, bytes.byteOffset).getUint32(12, true)
    const identity = JSON.parse(Buffer.from(bytes.subarray(16, headerEnd)).toString())
    return { identity, snapshot: decodeSnapshot(withoutSeal(bytes), identity).snapshot }
  }

  test('a state with more tokens than a session may have, or with a prompt as tail, is refused', async () => {
    const { engine } = setUp()
    await tell(engine, turnOf({}))
    const bytes = await call(engine, 'sessions.export', REF)
    const { snapshot, identity } = opened(bytes)
    const owner = { namespace: '', isForeign: false }
    const refused = async (change: Partial<typeof snapshot>) => {
      const changed = encodeSnapshot({ ...snapshot, ...change }, identity, owner)
      return refusal(engine, 'sessions.import', { tenant: 't', id: 'new', bytes: changed })
    }
    expect(await refused({ tokens: new Int32Array(2 ** 22 + 1) })).toBe('too_large')
    expect(await refused({ tail: new Int32Array(4097) })).toBe('too_large')
    const [first, ...others] = snapshot.state
    for (const value of [65_505, 1e30, -3.4e38]) {
      const beyond = first!.slice()
      beyond[beyond.length - 1] = value
      expect(await refused({ state: [beyond, ...others] })).toBe('invalid_request')
    }
    await call(engine, 'sessions.import', { tenant: 't', id: 'new', bytes })
  })

  test('a state is accepted only by the server and the tenant it was exported for, unchanged', async () => {
    const states = { acceptsForeign: false }
    const { engine } = setUp({ states })
    await tell(engine, turnOf({}))
    const bytes = await call(engine, 'sessions.export', REF)
    const importAs = (tenant: string, content: Uint8Array, to = engine) =>
      refusal(to, 'sessions.import', { tenant, id: 'new', bytes: content })
    expect(await importAs('other', bytes)).toBe('forbidden')
    expect(await importAs(REF.tenant, withoutSeal(bytes))).toBe('forbidden')
    expect(await importAs(REF.tenant, bytes, setUp({ states }).engine)).toBe('forbidden')
    // A client that makes its own state can also make its checksum.
    const { snapshot, identity } = opened(bytes)
    const [first, ...others] = snapshot.state
    const state = [first!.map((value) => value + 1), ...others]
    const owner = { namespace: '', isForeign: false }
    const forged = encodeSnapshot({ ...snapshot, state }, identity, owner)
    const seal = bytes.subarray(bytes.length - 40)
    expect(await importAs(REF.tenant, Buffer.concat([forged, seal]))).toBe('forbidden')
    await call(engine, 'sessions.import', { tenant: REF.tenant, id: 'new', bytes })
  })
})

describe('a link to a turn', () => {
  test('gives another tenant a copy that continues like the original, which is not affected', async () => {
    const { engine } = setUp()
    await tell(engine, turnOf({ prompt: promptOf(60), maxTokens: 9 }))
    const history = await transcript(engine)
    const { token, turn } = await call(engine, 'sessions.share', { ...REF, seconds: 60 })
    expect(turn).toBe(1)
    await tell(engine, turnOf({ id: 'b', prompt: promptOf(5) }))
    const copy = { tenant: 'yours', id: 'copy' }
    const opened = await call(engine, 'sessions.open', { ...copy, token })
    expect(opened.turns.map(({ numTokens }) => numTokens)).toEqual([history.length])
    const request = turnOf({ tenant: 'yours', prompt: promptOf(4) }, { id: 'copy' })
    const { collected } = await tell(engine, request)
    expect(collected.answer('a')).toEqual(answerAfter(history, request).answer)
    expect((await call(engine, 'sessions.get', REF)).head).toBe(2)
    expect(await call(engine, 'sessions.list', { tenant: 'yours' })).toHaveLength(1)
    // The name is now taken; and a copy counts like any other session.
    expect(await refusal(engine, 'sessions.open', { ...copy, token })).toBe('conflict')
    const third = { tenant: 'third', id: 'x', token, storedBytes: 1 }
    expect(await refusal(engine, 'sessions.open', third)).toBe('too_large')
  })

  test('is made by the owner; a changed, foreign or expired one, or one whose session is gone, opens nothing', async () => {
    const { engine } = setUp()
    await tell(engine, turnOf({}))
    const foreign = { tenant: 'yours', id: REF.id, seconds: 60 }
    expect(await refusal(engine, 'sessions.share', foreign)).toBe('not_found')
    const missing = { ...REF, turn: 7, seconds: 60 }
    expect(await refusal(engine, 'sessions.share', missing)).toBe('not_found')
    const open = (token: string, to = engine) => refusal(to, 'sessions.open', { tenant: 'yours', id: 'copy', token })
    const { token } = await call(engine, 'sessions.share', { ...REF, seconds: 60 })
    for (let at = 0; at < token.length - 1; at += 7) {
      const other = token[at] === 'A' ? 'B' : 'A'
      expect(await open(token.slice(0, at) + other + token.slice(at + 1))).toBe('not_found')
    }
    for (const none of ['x', '', token.slice(0, 30)]) expect(await open(none)).toBe('not_found')
    const elsewhere = setUp().engine
    await tell(elsewhere, turnOf({}))
    expect(await open(token, elsewhere)).toBe('not_found')
    const late = await call(engine, 'sessions.share', { ...REF, seconds: -1 })
    expect(await open(late.token)).toBe('not_found')
    await call(engine, 'sessions.delete', REF)
    expect(await open(token)).toBe('not_found')
    // Another conversation under the same name was not shared.
    await tell(engine, turnOf({}))
    expect(await open(token)).toBe('not_found')
  })
})

describe('a repeated request, whose answer its client never saw', () => {
  test('continues the turn before its own, after a restart too', async () => {
    const folder = newFolder()
    const first = openAt(folder)
    await tell(first.engine, turnOf({ prompt: promptOf(3) }))
    const again = turnOf({ id: 'again', prompt: promptOf(5) }, { origin: 'call 1' })
    const told = await tell(first.engine, again)
    expect(told.position).toMatchObject({ turn: 2, continued: 1 })
    const once = await transcript(first.engine, 's', 2)
    const second = await tell(first.engine, again)
    expect(second.position).toMatchObject({ turn: 3, continued: 1 })
    expect(await transcript(first.engine, 's', 3)).toEqual(once)
    await first.engine.close()
    const { engine } = openAt(folder)
    expect((await tell(engine, again)).position).toMatchObject({ turn: 4, continued: 1 })
    expect(await transcript(engine, 's', 4)).toEqual(once)
    // A different request, and one that names its turn, continue where they say.
    const other = turnOf({ id: 'other', prompt: promptOf(4) }, { origin: 'call 2' })
    expect((await tell(engine, other)).position).toMatchObject({ turn: 5, continued: 4 })
    const named = turnOf({ id: 'named', prompt: promptOf(4) }, { origin: 'call 2', from: 5 })
    expect((await tell(engine, named)).position).toMatchObject({ turn: 6, continued: 5 })
    await engine.close()
  })
})

describe('a note', () => {
  test('stays with its turn, after a restart too, and does not go to a fork', async () => {
    const folder = newFolder()
    const first = openAt(folder)
    await tell(first.engine, turnOf({ prompt: promptOf(3) }, { note: 'one' }))
    expect(await call(first.engine, 'sessions.get', REF)).toMatchObject({ note: 'one' })
    expect(await call(first.engine, 'sessions.list', REF)).toMatchObject([{ id: 's' }])
    await call(first.engine, 'sessions.fork', { ...REF, newId: 'f' })
    await first.engine.close()
    const { engine } = openAt(folder)
    const of = async (id: string) => (await call(engine, 'sessions.get', { ...REF, id })).note
    expect([await of('s'), await of('f')]).toEqual(['one', undefined])
    await tell(engine, turnOf({ id: 'next', prompt: promptOf(4) }))
    expect(await of('s')).toBeUndefined()
    const long = turnOf({ id: 'long', prompt: promptOf(4) }, { note: 'é'.repeat(20_000) })
    expect(() => engine.submit(long)).toThrow(/session.note/)
    await engine.close()
  })
})
