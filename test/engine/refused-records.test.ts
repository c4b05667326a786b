/** A record that no column can take: the others of its group are written, and its session stays as it was. */
import { expect, test } from 'vitest'
import type { Engine } from '../../src/engine/engine.ts'
import type { StoreChange } from '../../src/state/store/store.ts'
import { type DirectStore, newFolder, storedIn } from '../helpers/direct-store.ts'
import { Collected, promptOf } from './kit.ts'
import { answerAfter, call, openAt, settle, tell, toldOf, transcript, turnOf } from './session-kit.ts'

/** Columns are integers. Until this is called, each record of that session has an invalid time. */
function spoil(store: DirectStore, bad: string): () => void {
  store.onCommit = ({ sessions }: StoreChange) => {
    for (const { id, record } of sessions) if (id === bad && record !== null) Object.assign(record, { updatedAt: 0.5 })
  }
  return () => {
    store.onCommit = () => {}
  }
}

/** Answers that end while nothing can be written, so that they become a group. */
async function together(engine: Engine, store: DirectStore, ids: readonly string[]): Promise<Collected> {
  store.isHeld = true
  for (const id of ids) engine.submit(turnOf({ id, prompt: promptOf(5) }, { id }))
  await store.answered()
  const collected = new Collected()
  while (engine.hasWork) collected.add(engine.step())
  store.isHeld = false
  return settle(engine, collected)
}

const IDS = ['a', 'b', 'c', 'bad', 'd', 'e']
const GOOD = IDS.filter((id) => id !== 'bad')

test('the other records of the group are written at once, and its session continues from its last stored turn', async () => {
  const folder = newFolder()
  const { engine, store } = openAt(folder)
  await tell(engine, turnOf({}, { id: 'bad' }))
  const history = await transcript(engine, 'bad')
  const mend = spoil(store, 'bad')
  await together(engine, store, IDS)
  expect((await storedIn(folder)).map(({ id, record }) => [id, record.head])).toEqual([
    ['a', 1],
    ['b', 1],
    ['bad', 1],
    ...['c', 'd', 'e'].map((id) => [id, 1]),
  ])
  // It is not retried, and nobody waits for it.
  expect(engine.stats.states).toMatchObject({ unsaved: 0, failedSaves: 1 })
  mend()
  const request = turnOf({ prompt: promptOf(4) }, { id: 'bad' })
  const { collected, position } = await tell(engine, request)
  expect(position).toMatchObject({ turn: 2, continued: 1 })
  expect(collected.answer(request.id)).toEqual(answerAfter(history, request).answer)
  await engine.close()
})

test('a durable request fails alone, with the reason', async () => {
  const folder = newFolder()
  const { engine, store } = openAt(folder, { isDurable: true })
  const mend = spoil(store, 'bad')
  const collected = await together(engine, store, IDS)
  expect(GOOD.map((id) => toldOf(collected, id).position?.turn)).toEqual(GOOD.map(() => 1))
  const [last] = collected.of('bad').slice(-1)
  expect(last).toMatchObject({ type: 'error', error: { code: 'state_refused' } })
  expect(JSON.stringify(last)).toMatch(/session bad was not kept.*(?:INTEGER|bigint)/)
  expect((await storedIn(folder)).map(({ id }) => id)).toEqual(GOOD)
  mend()
  // A new session of that name is possible, because the first one left no claim.
  expect((await tell(engine, turnOf({}, { id: 'bad' }))).position).toMatchObject({ turn: 1, continued: 0 })
  await engine.close()
})

test('a fork of a refused record is written, with the states of both', async () => {
  const folder = newFolder()
  const { engine, store } = openAt(folder)
  spoil(store, 's')
  store.isHeld = true
  engine.submit(turnOf())
  await store.answered()
  while (engine.hasWork) engine.step()
  await engine.call('sessions.fork', { tenant: '', id: 's', newId: 'f' })
  store.isHeld = false
  await settle(engine)
  const history = await transcript(engine, 'f')
  expect((await storedIn(folder)).map(({ id }) => id)).toEqual(['f'])
  await engine.close()
  const again = openAt(folder)
  expect(await transcript(again.engine, 'f')).toEqual(history)
  await again.engine.close()
})

test('a deletion in the same commit is carried out', async () => {
  const folder = newFolder()
  const { engine, store } = openAt(folder, { isDurable: true })
  await tell(engine, turnOf({}, { id: 'gone' }))
  spoil(store, 'bad')
  store.isHeld = true
  engine.submit(turnOf({ id: 'a' }, { id: 'a' }))
  engine.submit(turnOf({ id: 'bad' }, { id: 'bad' }))
  await store.answered()
  while (engine.hasWork) engine.step()
  const deleted = call(engine, 'sessions.delete', { tenant: '', id: 'gone' })
  store.isHeld = false
  await deleted
  expect((await storedIn(folder)).map(({ id }) => id)).toEqual(['a'])
  await engine.close()
})
