/** Sessions with a slow or failing disk, and durable turns. */
import { describe, expect, test } from 'vitest'
import type { Engine } from '../../src/engine/engine.ts'
import { DEFAULT_STATE_OPTIONS } from '../../src/engine/states.ts'
import type { SessionRecord } from '../../src/state/store/store.ts'
import { type DirectStore, newFolder, openDirectStore, storedIn } from '../helpers/direct-store.ts'
import { Collected, promptOf } from './kit.ts'
import {
  answerAfter,
  breakDisk,
  call,
  IDENTITY,
  openAt,
  refusal,
  settle,
  sizesOf,
  tell,
  toldOf,
  transcript,
  turnOf,
  withSteps,
} from './session-kit.ts'

const REF = { tenant: '', id: 's' }

describe('a slow disk', () => {
  const ids = ['a', 'b', 'c', 'd', 'e', 'f']

  test('what arrived meanwhile is written together', async () => {
    const { engine, store } = openAt(newFolder())
    const sizes: number[] = []
    store.onCommit = ({ puts }) => sizes.push(puts.length)
    store.isHeld = true
    for (const id of ids) engine.submit(turnOf({ id }, { id }))
    await store.answered()
    const collected = new Collected()
    while (engine.hasWork) collected.add(engine.step())
    expect(ids.map((id) => toldOf(collected, id).position?.turn)).toEqual([1, 1, 1, 1, 1, 1])
    store.isHeld = false
    await settle(engine)
    expect(sizes.reduce((sum, size) => sum + size, 0)).toBe(6)
    expect(sizes.length).toBeLessThanOrEqual(3)
    await engine.close()
  })

  test('a fork has its states although its original is deleted before the fork is written', async () => {
    const folder = newFolder()
    const { engine } = openAt(folder)
    for (const length of [3, 4]) await tell(engine, turnOf({ prompt: promptOf(length) }))
    const history = await transcript(engine, 's', 1)
    await engine.call('sessions.rewind', { ...REF, turn: 1 })
    await engine.call('sessions.fork', { ...REF, newId: 'f' })
    await call(engine, 'sessions.delete', REF)
    await engine.close()
    const { engine: restarted } = openAt(folder)
    expect(await transcript(restarted, 'f')).toEqual(history)
    await restarted.close()
  })

  test('when memory is full of unwritten turns, turns are reported as they are written', async () => {
    const { engine, store } = openAt(newFolder(), { sizes: sizesOf(0, 2) })
    store.isHeld = true
    const collected = new Collected()
    for (const id of ids) {
      engine.submit(turnOf({ id }, { id }))
      await store.answered()
      while (engine.hasWork) collected.add(engine.step())
    }
    const numTold = () => ids.filter((id) => toldOf(collected, id).position !== undefined).length
    expect(numTold()).toBe(3)
    expect(engine.stats.states).toMatchObject({ unsaved: 6 })
    store.isHeld = false
    await settle(engine, collected)
    await store.answered()
    expect([numTold(), engine.stats.states!.inMemory]).toEqual([6, 2])
    await engine.close()
  })
})

describe('a failing disk', () => {
  test('it keeps copies in memory beyond the limit, refuses more, and writes all when the disk works again', async () => {
    const folder = newFolder()
    const { engine, store } = openAt(folder, { sizes: sizesOf(0, 2) })
    const repair = breakDisk(store)
    const told = []
    for (const id of ['a', 'b', 'c']) {
      engine.submit(turnOf({ id }, { id }))
      await store.answered()
      const collected = new Collected()
      for (let i = 0; i < 50; i++) {
        while (engine.hasWork) collected.add(engine.step())
        await new Promise((resolve) => setTimeout(resolve, 1))
      }
      told.push(toldOf(collected, id).position?.turn)
    }
    expect(told).toEqual([1, 1, 1])
    expect(engine.stats.states).toMatchObject({ unsaved: 3, inMemory: 3, sessions: 3 })
    expect(engine.stats.states!.failedSaves).toBeGreaterThan(0)
    engine.submit(turnOf({ id: 'd' }, { id: 'd' }))
    await store.answered()
    const refused = engine.step().find(({ id }) => id === 'd')
    expect(refused).toMatchObject({ type: 'error', error: { code: 'state_unavailable' } })
    expect(await refusal2(engine)).toBe('state_unavailable')
    repair()
    await settle(engine)
    expect(engine.stats.states).toMatchObject({ unsaved: 0, inMemory: 2, onDisk: 1, saves: 3 })
    await engine.close()
    const again = openDirectStore(folder, IDENTITY)
    expect((await storedIn(folder)).map(({ id }) => id)).toEqual(['a', 'b', 'c'])
    await again.close()
  })

  test('deletions succeed while states do not fit, also at the end of the process', async () => {
    const folder = newFolder()
    const { engine, store } = openAt(folder)
    for (const id of ['a', 'b']) await tell(engine, turnOf({ id }, { id }))
    fillDisk(store, 0)
    engine.submit(turnOf({ id: 'late' }, { id: 'late' }))
    await stepsUntil(engine, () => engine.stats.states!.failedSaves > 0)
    let isGone = false
    void engine.call('sessions.delete', { tenant: '', id: 'a' }).then(() => {
      isGone = true
    })
    await stepsUntil(engine, () => isGone)
    expect(await sessionsIn(folder)).toEqual(['b'])
    engine.call('sessions.delete', { tenant: '', id: 'b' }).catch(() => {})
    await expect(engine.close()).rejects.toThrow('1 states of sessions could not be saved')
    expect(await sessionsIn(folder)).toEqual([])
  })

  test('states that fit are written although not all do', async () => {
    const folder = newFolder()
    const { engine, store } = openAt(folder)
    store.isHeld = true
    for (const id of ['a', 'b', 'c', 'd', 'e', 'f']) engine.submit(turnOf({ id }, { id }))
    await store.answered()
    while (engine.hasWork) engine.step()
    fillDisk(store, 4)
    store.isHeld = false
    await stepsUntil(engine, () => engine.stats.states!.saves === 4)
    // The state after a kill at this moment.
    expect(await sessionsIn(folder)).toHaveLength(4)
    fillDisk(store, 6)
    await settle(engine)
    await engine.close()
    expect(await sessionsIn(folder)).toHaveLength(6)
  })

  test('an unwritten branch does not lose the turn that it continues', async () => {
    const limits = { ...DEFAULT_STATE_OPTIONS.limits, maxTurns: 3 }
    const folder = newFolder()
    const { engine, store } = openAt(folder, { limits })
    for (const length of [3, 4, 5]) await tell(engine, turnOf({ prompt: promptOf(length) }))
    const first = await transcript(engine, 's', 1)
    fillDisk(store, 0)
    engine.submit(turnOf({ id: 'branch' }, { from: 1 }))
    await stepsUntil(engine, async () => (await recordIn(folder)).version > 3)
    // After a kill at this moment: not the empty session, from which the next turn would continue unnoticed.
    const { head, turns } = await recordIn(folder)
    expect([head, ...turns.map(({ turn }) => turn)]).toEqual([1, 1, 2, 3])
    fillDisk(store, 1)
    await settle(engine)
    await settle(engine)
    const info = await call(engine, 'sessions.get', REF)
    expect([info.head, ...info.turns.map(({ turn }) => turn)]).toEqual([4, 2, 3, 4])
    const branch = await transcript(engine)
    expect(branch.subarray(0, first.length)).toEqual(first)
    await engine.close()
    expect((await recordIn(folder)).turns.map(({ turn }) => turn)).toEqual([2, 3, 4])
  })

  /** From here on this many more states fit. */
  function fillDisk(store: DirectStore, numStates: number): void {
    let room = numStates
    store.onCommit = ({ puts }) => {
      if (puts.length > room) throw new Error('ENOSPC: no space left on device')
      room -= puts.length
    }
  }

  async function stepsUntil(engine: Engine, isOver: () => boolean | Promise<boolean>): Promise<void> {
    while (!(await isOver())) {
      while (engine.hasWork) engine.step()
      await new Promise((resolve) => setTimeout(resolve, 1))
    }
  }

  async function sessionsIn(folder: string): Promise<string[]> {
    return (await storedIn(folder)).map(({ id }) => id)
  }

  async function recordIn(folder: string): Promise<SessionRecord> {
    return (await storedIn(folder)).find(({ id }) => id === 's')!.record
  }

  /** A fork needs no new state, yet makes the session table grow. */
  async function refusal2(engine: Engine): Promise<unknown> {
    return engine.call('sessions.fork', { tenant: '', id: 'a', newId: 'x' }).then(
      () => 'accepted',
      (error) => error.code,
    )
  }
})

describe('durable', () => {
  test('a turn is reported when it is on disk, not before', async () => {
    const { engine, store } = openAt(newFolder(), { isDurable: true })
    store.isHeld = true
    engine.submit(turnOf())
    engine.submit(turnOf({ id: 'next' }))
    await store.answered()
    const collected = new Collected()
    while (engine.hasWork) collected.add(engine.step())
    expect(collected.of('a').map(({ type }) => type)).not.toContain('finish')
    expect(collected.of('a').at(-1)?.type).toBe('text')
    expect(collected.of('next')).toEqual([])
    store.isHeld = false
    await settle(engine, collected)
    expect(toldOf(collected, 'a').position).toMatchObject({ id: 's', turn: 1, version: 1 })
    expect(toldOf(collected, 'next').position).toMatchObject({ id: 's', turn: 2, version: 2 })
    await engine.close()
  })

  test('a turn that cannot be written is an error and did not happen', async () => {
    const { engine, store } = openAt(newFolder(), { isDurable: true })
    await tell(engine, turnOf())
    const history = await transcript(engine)
    const repair = breakDisk(store)
    const { collected } = await tell(engine, turnOf({ id: 'lost', prompt: promptOf(5) }))
    expect(collected.error('lost')).toBe('internal')
    expect(await transcript(engine)).toEqual(history)
    repair()
    const request = turnOf({ prompt: promptOf(5) })
    const again = await tell(engine, request)
    expect(again.collected.answer('a')).toEqual(answerAfter(history, request).answer)
    await engine.close()
  })

  test('a branch that cannot be written leaves the head and the turns as they were', async () => {
    const limits = { ...DEFAULT_STATE_OPTIONS.limits, maxTurns: 3 }
    const folder = newFolder()
    const { engine, store } = openAt(folder, { isDurable: true, limits })
    for (const length of [3, 4, 5, 6]) await tell(engine, turnOf({ prompt: promptOf(length) }))
    const history = await transcript(engine)
    const repair = breakDisk(store)
    const { collected } = await tell(engine, turnOf({ id: 'lost' }, { from: 2 }))
    expect(collected.error('lost')).toBe('internal')
    const { head, turns } = await call(engine, 'sessions.get', { tenant: '', id: 's' })
    expect([head, ...turns.map(({ turn }) => turn)]).toEqual([4, 2, 3, 4])
    repair()
    expect(await transcript(engine)).toEqual(history)
    const request = turnOf({ prompt: promptOf(7) })
    const next = await tell(engine, request)
    expect(next.collected.answer('a')).toEqual(answerAfter(history, request).answer)
    expect(next.position).toMatchObject({ turn: 6 })
    await engine.close()

    const { engine: restarted } = openAt(folder)
    const found = await call(restarted, 'sessions.get', { tenant: '', id: 's' })
    expect([found.head, ...found.turns.map(({ turn }) => turn)]).toEqual([6, 3, 4, 6])
    await restarted.close()
  })

  test('a session whose first turn cannot be written does not exist', async () => {
    const { engine, store } = openAt(newFolder(), { isDurable: true })
    const repair = breakDisk(store)
    const { collected } = await tell(engine, turnOf({ id: 'lost' }))
    expect(collected.error('lost')).toBe('internal')
    repair()
    expect(await refusal(engine, 'sessions.get', { tenant: '', id: 's' })).toBe('not_found')
    expect((await tell(engine, turnOf({ prompt: promptOf(5) }))).position).toMatchObject({ turn: 1 })
    await engine.close()
  })

  test('an undo, rewind, fork or import that cannot be written did not happen', async () => {
    const folder = newFolder()
    const { engine, store } = openAt(folder, { isDurable: true })
    for (const length of [3, 4, 5]) await tell(engine, turnOf({ prompt: promptOf(length) }))
    const bytes = await call(engine, 'sessions.export', REF)
    const repair = breakDisk(store)
    const changes = [
      engine.call('sessions.rewind', { ...REF, turn: 'undo' }),
      engine.call('sessions.rewind', { ...REF, turn: 1 }),
      engine.call('sessions.fork', { ...REF, newId: 'f' }),
      engine.call('sessions.import', { tenant: '', id: 'i', bytes }),
    ].map((change) => withSteps(engine, change).catch((error) => error.code))
    expect(await Promise.all(changes)).toEqual(['internal', 'conflict', 'internal', 'internal'])
    const list = await engine.call('sessions.list', { tenant: '' })
    expect(list).toMatchObject([{ id: 's', head: 3, isBusy: false }])
    expect(await refusal(engine, 'sessions.rewind', { ...REF, turn: 'undo' })).toBe('internal')
    repair()
    expect(await call(engine, 'sessions.rewind', { ...REF, turn: 'undo' })).toMatchObject({ head: 2 })
    await engine.close()
    const { engine: restarted } = openAt(folder)
    expect(await call(restarted, 'sessions.list', { tenant: '' })).toMatchObject([{ head: 2 }])
    await restarted.close()
  })

  test('an import is reported when its state is on disk, however much is to be written before', async () => {
    const folder = newFolder()
    const { engine, store } = openAt(folder, { isDurable: true })
    await tell(engine, turnOf())
    const bytes = await call(engine, 'sessions.export', REF)
    breakDisk(store)
    await tell(engine, turnOf({ id: 'fails' }))
    store.onCommit = () => {}
    // Also waiting: a deletion, which after a failure is written without states.
    const deletion = engine.call('sessions.delete', REF)
    await withSteps(engine, engine.call('sessions.import', { tenant: '', id: 'i', bytes }))
    expect(await storedIn(folder)).toMatchObject([{ id: 'i', record: { head: 1 } }])
    await deletion
    await engine.close()
  })

  test('an import is always reported once it is on disk, other changes only with durable turns', async () => {
    const folder = newFolder()
    const { engine, store } = openAt(folder)
    await tell(engine, turnOf())
    const bytes = await call(engine, 'sessions.export', REF)
    await settle(engine)
    store.isHeld = true
    await call(engine, 'sessions.fork', { ...REF, newId: 'f' })
    let isTold = false
    const imported = engine.call('sessions.import', { tenant: '', id: 'i', bytes }).then((info) => {
      isTold = true
      return info
    })
    await store.answered()
    while (engine.hasWork) engine.step()
    await store.answered()
    expect(isTold).toBe(false)
    store.isHeld = false
    await withSteps(engine, imported)
    // Like after a kill: nothing more is saved.
    expect((await storedIn(folder)).map(({ id }) => id)).toContain('i')
    await engine.close()
  })

  test('a cancel while the turn is being written comes too late', async () => {
    const folder = newFolder()
    const { engine, store } = openAt(folder, { isDurable: true })
    store.isHeld = true
    engine.submit(turnOf())
    await store.answered()
    while (engine.hasWork) engine.step()
    engine.cancel('a')
    store.isHeld = false
    expect((await settle(engine)).of('a')).toEqual([])
    expect(await call(engine, 'sessions.get', REF)).toMatchObject({ head: 1, isBusy: false })
    await engine.close()
  })
})

/** 200 tokens of an answer that a stop string may cut, with real kernels. */
