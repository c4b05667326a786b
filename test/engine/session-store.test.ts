/** Sessions and their store: tiers, restarts, and two engines with one store. */
import { describe, expect, onTestFinished, test, vi } from 'vitest'
import { Engine } from '../../src/engine/engine.ts'
import { identityOf } from '../../src/engine/kept/identity.ts'
import { DEFAULT_STATE_OPTIONS } from '../../src/engine/states.ts'
import { newFolder, openDirectStore, storedIn } from '../helpers/direct-store.ts'
import { someTokens, tinyRunner } from '../helpers/runner.ts'
import { Collected, promptOf, requestOf, SAMPLING } from './kit.ts'
import {
  answerAfter,
  breakDisk,
  call,
  IDENTITY,
  openAt,
  settle,
  sizesOf,
  tell,
  transcript,
  turnOf,
  withSteps,
} from './session-kit.ts'

const REF = { tenant: '', id: 's' }

describe('tiers', () => {
  test('the 17th session leaves its slot, the 49th memory; each continues where it was', async () => {
    const { engine } = openAt(newFolder(), {}, 30)
    const histories: Int32Array[] = []
    for (let i = 0; i < 50; i++) {
      await tell(engine, turnOf({ prompt: promptOf(4, i), maxTokens: 2 }, { id: `s${i}` }))
    }
    expect(engine.stats.states).toMatchObject({ inSlots: 16, unsaved: 0, saves: 50 })
    const tierOf = async (i: number) => (await call(engine, 'sessions.get', { tenant: '', id: `s${i}` })).turns[0]!.tier
    const tiers = []
    for (let i = 0; i < 50; i++) tiers.push(await tierOf(i))
    // Those in slots have been written, and their copies for writing do not count as states in memory.
    expect(tiers.slice(0, 2)).toEqual(Array(2).fill('disk'))
    expect(tiers.slice(2, 34)).toEqual(Array(32).fill('memory'))
    expect(tiers.slice(34)).toEqual(Array(16).fill('device'))
    for (const i of [0, 20, 49]) histories[i] = await transcript(engine, `s${i}`)
    for (const i of [0, 20, 49]) {
      const request = turnOf({ prompt: promptOf(3, i), maxTokens: 6 }, { id: `s${i}` })
      const { collected } = await tell(engine, request)
      expect(collected.answer('a')).toEqual(answerAfter(histories[i]!, request).answer)
      expect(engine.stats.states!.inSlots).toBe(16)
    }
    await engine.close()
  })

  test('a limit in bytes also counts copies of states in slots, and these are dropped first', async () => {
    const bytes = 56
    const sizes = { slots: 2, memory: { count: Number.POSITIVE_INFINITY, bytes: 3 * bytes } }
    const { engine } = openAt(newFolder(), { sizes })
    const ids = ['a', 'b', 'c', 'd', 'e', 'f', 'g']
    for (const id of ids) await tell(engine, turnOf({ prompt: promptOf(4), maxTokens: 2 }, { id }))
    expect(await call(engine, 'sessions.get', { tenant: '', id: 'g' })).toMatchObject({ bytes })
    // The third place is that of the last one written.
    expect(engine.stats.states).toMatchObject({ inSlots: 2, inMemory: 2, onDisk: 3 })
    for (const id of ids) {
      const history = await transcript(engine, id)
      const request = turnOf({ prompt: promptOf(3), maxTokens: 6 }, { id })
      const { collected } = await tell(engine, request)
      expect(collected.answer('a')).toEqual(answerAfter(history, request).answer)
    }
    await engine.close()
  })

  test('a request waits for the disk while others continue, and can be cancelled', async () => {
    const folder = newFolder()
    const { engine, store } = openAt(folder, { sizes: sizesOf(0, 0) })
    await tell(engine, turnOf())
    const history = await transcript(engine)
    await settle(engine)
    store.isHeld = true
    const request = turnOf({ id: 'waits', prompt: promptOf(5) })
    engine.submit(request)
    engine.submit(turnOf({ id: 'gone' }))
    expect(engine.hasWork).toBe(false)
    expect(engine.isIdle).toBe(false)
    engine.submit(requestOf({ id: 'other' }))
    const collected = new Collected()
    while (engine.hasWork) collected.add(engine.step())
    expect(collected.answer('other')).not.toBeNull()
    engine.cancel('gone')
    store.isHeld = false
    await settle(engine, collected)
    expect(collected.answer('waits')).toEqual(answerAfter(history, request).answer)
    await engine.close()
  })

  test('a state read for a request that has left is not kept', async () => {
    const folder = newFolder()
    const before = openAt(folder)
    await tell(before.engine, turnOf())
    await before.engine.close()
    const { engine, store } = openAt(folder)
    await call(engine, 'sessions.rewind', { ...REF, turn: 1 })
    expect(engine.stats.states).toMatchObject({ sessions: 1, inMemory: 0, onDisk: 1 })
    store.isHeld = true
    engine.submit(turnOf({ id: 'gone' }))
    engine.cancel('gone')
    const deleted = engine.call('sessions.delete', REF)
    store.isHeld = false
    await withSteps(engine, deleted)
    const nothing = { sessions: 0, inSlots: 0, inMemory: 0, onDisk: 0 }
    expect(engine.stats.states).toMatchObject({ ...nothing, loads: 1 })
    await engine.close()
  })

  test('the state for a waiting request stays in memory, however full that is', async () => {
    const { engine } = openAt(newFolder(), { sizes: sizesOf(0, 0) }, 1)
    await tell(engine, turnOf())
    const history = await transcript(engine)
    engine.submit(requestOf({ id: 'other', maxTokens: 200 }))
    engine.step()
    const request = turnOf({ prompt: promptOf(5) })
    engine.submit(request)
    // It is read at once; the only slot is taken for many more steps.
    await new Promise((resolve) => setTimeout(resolve, 30))
    const collected = await settle(engine)
    expect(collected.answer('a')).toEqual(answerAfter(history, request).answer)
    expect(engine.stats.states).toMatchObject({ inMemory: 0, onDisk: 2, loads: 2 })
    await engine.close()
  })

  test('using a state without a new turn also counts as a use', async () => {
    const { engine } = openAt(newFolder(), { sizes: sizesOf(2, 32) })
    for (const id of ['a', 'b']) await tell(engine, turnOf({}, { id }))
    engine.submit(turnOf({ id: 'gone', maxTokens: 50 }, { id: 'a' }))
    engine.step()
    engine.cancel('gone')
    await tell(engine, turnOf({}, { id: 'c' }))
    const list = await call(engine, 'sessions.list', { tenant: '' })
    const tiers = list.map(({ id, turns }) => `${id} ${turns[0]!.tier}`)
    expect(tiers.sort()).toEqual(['a device', 'b memory', 'c device'])
    await engine.close()
  })

  test('a turn can be read while it is being written, and deleting it meanwhile leaves nothing', async () => {
    const folder = newFolder()
    const { engine, store } = openAt(folder, { sizes: sizesOf(0, 0) })
    store.isHeld = true
    engine.submit(turnOf())
    await store.answered()
    while (engine.hasWork) engine.step()
    expect(engine.stats.states).toMatchObject({ unsaved: 1, inMemory: 1 })
    const info = await engine.call('sessions.get', REF)
    expect(info.turns).toMatchObject([{ tier: 'memory', isSaved: false }])
    const bytes = await engine.call('sessions.export', REF)
    expect(bytes.length).toBeGreaterThan(100)
    const deleted = engine.call('sessions.delete', REF)
    store.isHeld = false
    await withSteps(engine, deleted)
    await engine.close()
    const again = openDirectStore(folder, IDENTITY)
    expect(await storedIn(folder)).toEqual([])
    await again.close()
  })
})

describe('a restart', () => {
  test('finds every session, turn and version, forks included, and continues with the same answers', async () => {
    const folder = newFolder()
    let now = 1_000_000
    const first = openAt(folder, { now: () => now++ })
    for (const seed of [1, 2, 3]) await tell(first.engine, turnOf({ prompt: promptOf(40, seed) }))
    await call(first.engine, 'sessions.fork', { ...REF, newId: 'f', turn: 2 })
    await call(first.engine, 'sessions.rewind', { ...REF, turn: 1 })
    // It also fits an integer column.
    await tell(first.engine, turnOf({ tenant: 'other' }, { id: 'theirs', ttlSeconds: 1000.12345 }))
    const before = [
      ...(await call(first.engine, 'sessions.list', { tenant: '' })),
      ...(await call(first.engine, 'sessions.list', { tenant: 'other' })),
    ]
    const histories = [await transcript(first.engine), await transcript(first.engine, 'f')]
    await first.engine.close()

    const second = openAt(folder, { now: () => now++ })
    const after = [
      ...(await call(second.engine, 'sessions.list', { tenant: '' })),
      ...(await call(second.engine, 'sessions.list', { tenant: 'other' })),
    ]
    const onDisk = before.map((info) => ({
      ...info,
      turns: info.turns.map((turn) => ({ ...turn, tier: 'disk' })),
    }))
    expect(after).toEqual(onDisk)
    for (const [i, id] of ['s', 'f'].entries()) {
      const request = turnOf({ prompt: promptOf(6), maxTokens: 9 }, { id, ifMissing: 'error' })
      const { collected, position } = await tell(second.engine, request)
      expect(collected.answer('a')).toEqual(answerAfter(histories[i]!, request).answer)
      expect(position?.turn).toBe(i === 0 ? 4 : 3)
    }
    expect(second.engine.stats.states!.loads).toBe(2)
    await second.engine.close()
  })

  test('states that were only in slots are saved by a graceful end; a failure is reported', async () => {
    const folder = newFolder()
    const { engine, store } = openAt(folder)
    store.isHeld = true
    for (const id of ['a', 'b', 'c']) engine.submit(turnOf({ id }, { id }))
    await store.answered()
    while (engine.hasWork) engine.step()
    expect(engine.stats.states).toMatchObject({ unsaved: 3 })
    store.isHeld = false
    await engine.close()
    const again = openAt(folder)
    expect((await storedIn(folder)).map(({ id }) => id)).toEqual(['a', 'b', 'c'])
    again.store.onCommit = () => {
      throw new Error('ENOSPC')
    }
    again.engine.submit(turnOf({}, { id: 'd' }))
    await again.store.answered()
    while (again.engine.hasWork) again.engine.step()
    await expect(again.engine.close()).rejects.toThrow('1 states of sessions could not be saved')
  })

  test('after a broken step, copied states are saved, those only in slots are not', async () => {
    const folder = newFolder()
    const { engine, runner, store } = openAt(folder)
    store.isHeld = true
    // The second ends while the first is being written.
    for (const id of ['a', 'b']) {
      engine.submit(turnOf({ id }, { id }))
      await store.answered()
      while (engine.hasWork) engine.step()
    }
    runner.onStep = () => {
      throw new Error('the device fell off the bus')
    }
    engine.submit(turnOf({ id: 'breaks' }, { id: 'b' }))
    engine.step()
    expect(engine.failure).not.toBeNull()
    const { reads } = runner.calls
    store.isHeld = false
    await engine.close()
    expect(runner.calls.reads).toBe(reads)
    const again = openDirectStore(folder, IDENTITY)
    expect((await storedIn(folder)).map(({ id }) => id)).toEqual(['a'])
    await again.close()
  })

  test('a damaged or missing state is an error, never a fresh start', async () => {
    const folder = newFolder()
    const first = openAt(folder)
    await tell(first.engine, turnOf())
    await first.engine.close()
    const second = openAt(folder)
    second.store.load = () => Promise.reject(new Error('unreadable'))
    const { collected } = await tell(second.engine, turnOf())
    expect(collected.error('a')).toBe('internal')
    expect(await call(second.engine, 'sessions.get', REF)).toMatchObject({ head: 1, isBusy: false })
    await second.engine.close()
  })
})

/** Steps until a promise is settled; unlike withSteps it does not wait until all is written. */
async function withReleaseSteps<T>(engine: Engine, promise: Promise<T>): Promise<T> {
  const timer = setInterval(() => {
    while (engine.hasWork) engine.step()
  }, 1)
  try {
    return await promise
  } finally {
    clearInterval(timer)
  }
}

describe('two engines over one store', () => {
  test('count the bytes of a tenant in both', async () => {
    const folder = newFolder()
    const limits = { ...DEFAULT_STATE_OPTIONS.limits, maxSessions: 3 }
    const [one, two] = [openAt(folder, { limits }), openAt(folder, { limits })]
    for (const id of ['a', 'b']) await tell(one.engine, turnOf({}, { id }))
    await tell(two.engine, turnOf({ prompt: promptOf(500) }, { id: 'c' }))
    const more = await tell(two.engine, turnOf({}, { id: 'd' }))
    expect(more.collected.error('a')).toBe('too_large')
    // It does not ask the store about its own session; its knowledge of others is up to a second old.
    const request = turnOf({ storedBytes: 1500, maxTokens: 1 }, { id: 'a', from: 1 })
    const wasRefused = () =>
      tell(one.engine, request).then(
        () => false,
        ({ code }) => code === 'too_large',
      )
    await expect.poll(wasRefused, { interval: 300, timeout: 30_000 }).toBe(true)
    expect((await tell(one.engine, turnOf({}, { id: 'a' }))).position?.turn).toBeLessThan(8)
    for (const { engine } of [one, two]) await engine.close()
  })

  test('requests for sessions that another engine holds wait in parallel', async () => {
    const folder = newFolder()
    const [one, two] = [openAt(folder), openAt(folder)]
    await tell(one.engine, turnOf())
    let now = performance.now()
    const clock = vi.spyOn(performance, 'now').mockImplementation(() => now)
    onTestFinished(() => clock.mockRestore())
    const ids = ['a', 'b', 'c']
    for (const id of ids) two.engine.submit(turnOf({ id }))
    // Ten seconds are over for all of them; if they waited one after the other, none but the first would ever be refused.
    now += 10_001
    const collected = await settle(two.engine)
    clock.mockRestore()
    expect(ids.map((id) => collected.error(id))).toEqual(ids.map(() => 'conflict'))
    for (const { engine } of [one, two]) await engine.close()
  })

  test('a session is released completely, with turns that were only in a slot, and continues elsewhere', async () => {
    const folder = newFolder()
    const [one, two] = [openAt(folder), openAt(folder)]
    one.store.isHeld = true
    for (const seed of [1, 2, 3]) {
      one.engine.submit(turnOf({ prompt: promptOf(9, seed) }))
      await one.store.answered()
      while (one.engine.hasWork) one.engine.step()
    }
    expect(one.engine.stats.states).toMatchObject({ unsaved: 3 })
    const released = one.engine.call('sessions.release', REF)
    await one.store.answered()
    const late = turnOf({ id: 'late' }, { ifBusy: 'conflict' })
    expect(() => one.engine.submit(late)).toThrow('being written to')
    one.store.isHeld = false
    const history = await transcript(one.engine)
    await withSteps(one.engine, released)
    expect(one.engine.stats.states).toMatchObject({ sessions: 0, inSlots: 0, inMemory: 0 })
    const request = turnOf({ prompt: promptOf(6), maxTokens: 9 })
    const { collected, position } = await tell(two.engine, request)
    expect(collected.answer('a')).toEqual(answerAfter(history, request).answer)
    expect(position?.turn).toBe(4)
    const refused = await tell(one.engine, turnOf({}, { ifBusy: 'conflict' }))
    expect(refused.collected.error('a')).toBe('conflict')
    for (const { engine } of [one, two]) await engine.close()
  })

  test('a release that cannot be written leaves the session where it is', async () => {
    const folder = newFolder()
    const { engine, store } = openAt(folder)
    const repair = breakDisk(store)
    engine.submit(turnOf())
    await store.answered()
    while (engine.hasWork) engine.step()
    const released = engine.call('sessions.release', REF)
    await expect(withReleaseSteps(engine, released)).rejects.toThrow('ENOSPC')
    expect(await engine.call('sessions.get', REF)).toMatchObject({ head: 1, isBusy: false })
    repair()
    await settle(engine)
    expect((await tell(engine, turnOf())).position?.turn).toBe(2)
    await engine.close()
  })
})

test('on real kernels every way back gives the bits of an uninterrupted conversation', async () => {
  const text = {
    bytesOf: (token: number) => Uint8Array.of(97 + (token % 5)),
    encode: (given: string) => Int32Array.from(given, (letter) => letter.charCodeAt(0) - 97 + 5),
  }
  const folder = newFolder()
  const start = (sizes = sizesOf(16, 32)) => {
    const runner = tinyRunner('cpu', { slots: 6, maxTokens: 96 })
    const store = openDirectStore(folder, identityOf(runner.info, ''), { maxInlineBytes: 1000 })
    const states = { ...DEFAULT_STATE_OPTIONS, store, sizes }
    return new Engine(runner, text, { poisonFreedSlots: true, prefillChunk: 17 }, states)
  }
  const sampling = { ...SAMPLING, topP: 0.9 }
  const turn = (i: number, id: string) =>
    turnOf(
      {
        prompt: someTokens(5 + 9 * i, i),
        maxTokens: 20,
        logprobs: 1,
        sampling: { ...sampling, seed: BigInt(i) },
        stop: { strings: i % 2 ? ['ab', 'ce'] : [], tokens: [], ignoreEos: true },
      },
      { id },
    )
  const answerOf = (collected: Collected) => collected.of('a').filter(({ type }) => type === 'text')
  let engine = start()
  const expected = []
  for (let i = 0; i < 6; i++) expected.push(answerOf((await tell(engine, turn(i, 'whole'))).collected))
  // The same turns, each after another kind of interruption.
  const interruptions = [
    () => Promise.resolve(),
    async () => {
      // All slots are needed by others, so states move to memory.
      engine.submit(requestOf({ id: 'wide', n: 6 }))
      await settle(engine)
    },
    async () => {
      await engine.close()
      engine = start()
    },
    async () => {
      await engine.close()
      engine = start(sizesOf(0, 0))
    },
    async () => {
      const bytes = await call(engine, 'sessions.export', { tenant: '', id: 'cut' })
      await call(engine, 'sessions.delete', { tenant: '', id: 'cut' })
      await call(engine, 'sessions.import', { tenant: '', id: 'cut', bytes })
    },
    async () => {
      // Other requests in the batch.
      engine.submit({ ...turn(3, 'whole'), id: 'n1', session: undefined })
      engine.submit({ ...turn(4, 'whole'), id: 'n2', session: undefined })
      engine.step()
    },
  ]
  for (const [i, interrupt] of interruptions.entries()) {
    await interrupt()
    expect(answerOf((await tell(engine, turn(i, 'cut'))).collected)).toEqual(expected[i])
  }
  const history = await call(engine, 'sessions.get', { tenant: '', id: 'cut' })
  const whole = await call(engine, 'sessions.get', { tenant: '', id: 'whole' })
  expect(history.turns.at(-1)!.numTokens).toBe(whole.turns.at(-1)!.numTokens)
  await engine.close()
})
