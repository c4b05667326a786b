/** What is written when the store accepts no states, however large they are. */
import { expect, test } from 'vitest'
import { SkeinError } from '../../../src/errors.ts'
import { createKept, type KeptState, type Session } from '../../../src/state/kept-state.ts'
import { Saver } from '../../../src/state/saver.ts'
import type { Store, StoreChange } from '../../../src/state/store/store.ts'

const NAMESPACE = 'n'

function sessionOf(id: string, state: KeptState): Session {
  const turn = { turn: 1, parent: 0, createdAt: 1, state }
  const times = { createdAt: 1, updatedAt: 1, ttlMs: null }
  const own = { isBusy: false, waiters: [], isDeleted: false, turns: new Map([[1, turn]]) }
  const claimed = { claim: 'sure', lostBy: null } as const
  const name = { namespace: NAMESPACE, id }
  const session: Session = { ...name, version: 1, head: 1, nextTurn: 2, ...times, ...own, ...claimed }
  state.holders.add(session)
  return session
}

/** A session with one turn, whose state must be written. */
function setUp(bytes: number) {
  const commits: StoreChange[] = []
  const commit = async (change: StoreChange) => {
    if (change.puts.length > 0) throw new Error('ENOSPC: no space left on device')
    commits.push(change)
    return []
  }
  const saver = new Saver({ commit } as Partial<Store> as Store, { done() {}, lost() {} }) // nothing else is requested
  const facts = { key: 'k', namespace: NAMESPACE, isForeign: false, numTokens: 1, bytes }
  const state = createKept(facts, 'none')
  state.text = { tokens: Int32Array.of(1), tail: new Int32Array(0) }
  state.arrays = [new Float32Array(1), new Float32Array(1)]
  saver.addState(state)
  return { commits, saver, state, session: sessionOf('s', state) }
}

test.each([1000, 2 ** 26])('states of %i bytes: a deletion does not fail together with a state', async (bytes) => {
  const { commits, saver, state, session } = setUp(bytes)
  saver.start([state])
  await saver.settled()
  saver.retryNow()
  saver.addSession({ ...session, id: 'gone', isDeleted: true })
  const deletion = saver.barrier()
  expect([saver.hasFailed, saver.isLightNext]).toEqual([true, true])
  saver.start([])
  await deletion
  expect(commits.map(({ sessions }) => sessions.map(({ id }) => id))).toEqual([['gone']])
  // The state is retried before anything else is written alone.
  expect([saver.hasFailed, saver.isLightNext, saver.numUnsaved]).toEqual([true, false, 1])
  const late = saver.barrier()
  saver.start([state])
  await saver.settled()
  saver.retryNow()
  expect(saver.isLightNext).toBe(true)
  saver.start([])
  await late
})

test('callers that wait for a session and its states learn that they cannot be written, or are lost', async () => {
  const { saver, state, session } = setUp(1000)
  const first = saver.barrier(session)
  saver.start([])
  await saver.settled()
  saver.start([state])
  await expect(first).rejects.toThrow('ENOSPC')
  await saver.settled()
  saver.retryNow()
  const second = saver.barrier(session)
  saver.giveUp(state)
  await expect(second).rejects.toThrow('lost before it was written')
  expect(saver.hasChanges).toBe(true)
  saver.start([])
  await saver.settled()
  expect(saver.hasChanges).toBe(false)
})

test('after a thousand failures a state is still retried', async () => {
  const { saver, state } = setUp(1000)
  for (let i = 0; i < 1200; i++) {
    saver.start([state])
    await saver.settled()
    saver.retryNow()
  }
  expect(saver.batchBytes).toBeGreaterThan(0)
})

test('a caller that comes after a state was lost learns it at once', async () => {
  const { saver, state, session } = setUp(1000)
  saver.giveUp(state)
  await expect(saver.barrier(session)).rejects.toThrow('lost before it was written')
})

test('if the disk fails while a group is being divided, the remaining writers wait, but none that was refused', async () => {
  const written: string[] = []
  let isFull = false
  const commit = async ({ sessions }: StoreChange) => {
    const ids = sessions.map(({ id }) => id)
    if (ids.includes('bad')) throw new SkeinError('state_refused', 'no column takes it')
    if (isFull) throw new Error('ENOSPC: no space left on device')
    isFull = ids.length > 0
    written.push(...ids)
    return []
  }
  const lost: Session[] = []
  const events = {
    done() {},
    lost(session: Session, reason: SkeinError) {
      session.lostBy = reason
      for (const { state } of session.turns.values()) state.holders.delete(session)
      session.turns.clear()
      lost.push(session)
    },
  }
  const saver = new Saver({ commit } as Partial<Store> as Store, events) // nothing else is requested
  const [a, bad, c] = ['a', 'bad', 'c'].map((id) => {
    const state = createKept({ key: id, namespace: NAMESPACE, isForeign: false, numTokens: 1, bytes: 1 }, 'none')
    state.text = { tokens: Int32Array.of(1), tail: new Int32Array(0) }
    state.arrays = [new Float32Array(1), new Float32Array(1)]
    saver.addState(state)
    return sessionOf(id, state)
  }) as [Session, Session, Session]
  const ends = [a, bad, c].map((session) =>
    saver.barrier(session).then(
      () => 'written',
      ({ code, message }) => `${code}: ${message}`,
    ),
  )
  saver.start([...saver.unsaved])
  expect(await Promise.all(ends)).toEqual([
    'written',
    expect.stringMatching(/^state_refused: session bad was not kept.*no column takes it/),
    expect.stringMatching(/ENOSPC/),
  ])
  await saver.settled()
  expect([written, lost.map(({ id }) => id), saver.hasFailed, saver.numUnsaved]).toEqual([['a'], ['bad'], true, 1])
  isFull = false
  saver.retryNow()
  saver.start([...saver.unsaved])
  await saver.settled()
  expect([written, saver.hasFailed, saver.numUnsaved]).toEqual([['a', 'c'], false, 0])
})
