/** The store that nodes share, alone: atomic changes, one writer by fences, and what crashes leave behind. */
import { mkdtempSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, onTestFinished, test, vi } from 'vitest'
import { Database } from '../../src/cluster/database.ts'
import { FolderBlobs } from '../../src/state/shared/open-blobs.ts'
import { usage } from '../../src/state/shared/rows.ts'
import { SharedStore, type SharedStoreOptions, sweep } from '../../src/state/shared/shared-store.ts'
import type { StoreChange, StoredSession } from '../../src/state/store/store.ts'
import { ONE_LAYER, snapshotOf } from '../helpers/direct-store.ts'
import { NO_POSTGRES, type Postgres, startPostgres } from '../helpers/postgres.ts'

const NAMESPACE = 'n'
const nameOf = (id: string) => ({ namespace: NAMESPACE, id })

const keyOf = (id: string, seed: number) => `key ${id} ${seed}`

/** A state, and the session `id` with it as its only turn. */
function changeOf(id: string, seed: number, key = keyOf(id, seed)): StoreChange {
  const { state, ...text } = snapshotOf(seed)
  const turn = { turn: 1, parent: 0, createdAt: 1, key, numTokens: 51, bytes: 5, isForeign: false }
  const times = { createdAt: 1, updatedAt: seed, ttlMs: null }
  const record = { version: seed, head: 1, nextTurn: 2, turns: [turn], ...times }
  return {
    puts: [{ key, ...text, floats: state, namespace: NAMESPACE, isForeign: false }],
    sessions: [{ ...nameOf(id), record }],
    deleteKeys: [],
  }
}

const NOTHING: StoreChange = { puts: [], sessions: [], deleteKeys: [] }

describe.skipIf(NO_POSTGRES !== null)('a shared store', () => {
  let postgres: Postgres
  beforeAll(async () => {
    postgres = await startPostgres()
  })
  afterAll(() => postgres?.remove())

  function newCluster() {
    const [database, folder] = [postgres.newDatabase(), mkdtempSync(join(tmpdir(), 'skein-blobs-'))]
    const open = async (node: string, options: Partial<SharedStoreOptions> = {}) => {
      const store = await SharedStore.open({
        database,
        blobs: `file://${folder}`,
        identity: ONE_LAYER,
        worker: { node, url: `http://${node}`, model: 'm', slots: 1, info: {} },
        isToldFirst: true,
        maxInlineBytes: 1000,
        ...options,
      })
      onTestFinished(() => store.close().catch(() => {}))
      return store
    }
    const blobsOf = () => readdirSync(folder, { recursive: true }).filter((name) => /[/]/.test(String(name)))
    return { database, folder, open, blobsOf }
  }

  test.each([
    ['rows', 2 ** 20],
    ['blobs', 1000],
  ])(
    'states as %s come back whole, go when nothing needs them, and are refused to others',
    async (_, maxInlineBytes) => {
      const { open, blobsOf } = newCluster()
      const one = await open('one', { maxInlineBytes })
      for (const id of ['a', 'b']) await one.claim(nameOf(id), true)
      expect(await one.commit(changeOf('a', 1))).toEqual([])
      expect(await one.commit(changeOf('b', 2))).toEqual([])
      expect(await one.load('key a 1', NAMESPACE)).toEqual(snapshotOf(1))
      await expect(one.load('key a 1', 'other')).rejects.toThrow('another tenant')
      await expect(one.load('key x 1', NAMESPACE)).rejects.toThrow('not there')
      expect(await one.commit(changeOf('a', 3))).toEqual([])
      await expect(one.load('key a 1', NAMESPACE)).rejects.toThrow('not there')
      expect(blobsOf()).toHaveLength(maxInlineBytes === 1000 ? 2 : 0)
      await one.close()
      const two = await open('two', { maxInlineBytes })
      const { session } = await two.claim(nameOf('a'), false)
      // Its owner stopped properly, so every reported version is stored.
      expect(session?.record).toMatchObject({ version: 3, turns: [{ key: 'key a 3' }] })
      expect(await two.load('key a 3', NAMESPACE)).toEqual(snapshotOf(3))
      await two.claim(nameOf('b'), false)
      const gone = ['a', 'b'].map((id) => ({ ...nameOf(id), record: null }))
      expect(await two.commit({ ...NOTHING, sessions: gone })).toEqual([])
      expect([await two.find(nameOf('a')), blobsOf()]).toEqual([null, []])
      const other = await open('three', { identity: { ...ONE_LAYER, weights: 'x' } })
      expect(await other.find(nameOf('b'))).toBeNull()
    },
  )

  test('damaged and missing blobs are errors that name no path', async () => {
    const { open, folder, blobsOf } = newCluster()
    const store = await open('one')
    await store.claim(nameOf('a'), true)
    await store.commit(changeOf('a', 1))
    const path = join(folder, String(blobsOf()[0]))
    const bytes = readFileSync(path)
    bytes[2000]! ^= 1
    writeFileSync(path, bytes)
    await expect(store.load('key a 1', NAMESPACE)).rejects.toThrow('checksum')
    await new FolderBlobs(folder).remove(path.split('/').at(-1)!)
    const error = await store.load('key a 1', NAMESPACE).catch((each) => each)
    expect(error).toMatchObject({ code: 'state_unavailable' })
    expect(error.message).not.toContain(folder)
  })

  test('a session is written by its owner; another node is redirected there, another worker of the node waits', async () => {
    const { open } = newCluster()
    const [one, two, sibling] = [await open('one'), await open('two'), await open('one')]
    expect((await two.claim(nameOf('a'), false)).session).toBeNull()
    await one.claim(nameOf('a'), true)
    const refused = (store: SharedStore) => store.claim(nameOf('a'), true).catch((error) => error)
    expect(await refused(two)).toMatchObject({ code: 'misdirected', location: 'http://one' })
    expect(await refused(sibling)).toMatchObject({ code: 'conflict' })
    expect(await two.commit(changeOf('a', 9))).toEqual([nameOf('a')])
    expect(await two.find(nameOf('a'))).toBeNull()
    await one.commit(changeOf('a', 1))
    expect((await two.find(nameOf('a')))?.record.version).toBe(1)
    expect(await one.commit({ ...NOTHING, releases: [nameOf('a')] })).toEqual([])
    expect((await two.claim(nameOf('a'), false)).session?.record.version).toBe(1)
    expect(await refused(one)).toMatchObject({ code: 'misdirected', location: 'http://two' })
  })

  test('late writes of a former owner have no effect, and leave nothing', async () => {
    const { open, database, blobsOf } = newCluster()
    const zombie = await open('one', { renewMs: 3_600_000, leaseMs: 60_000 })
    for (const id of ['a', 'own']) {
      await zombie.claim(nameOf(id), true)
      await zombie.commit(changeOf(id, 1))
    }
    const heir = await open('two')
    // Time passes by the database's clock.
    const client = await Database.open(database)
    await client.query("update worker set expires = now() where node = 'one'")
    const taken = await heir.claim(nameOf('a'), false)
    // The dead owner may have reported versions that are not stored.
    expect(taken.session?.record.version).toBe(1001)
    await heir.commit(changeOf('a', 1002))
    const late = changeOf('a', 2)
    const own = changeOf('own', 2)
    const both = { ...late, puts: [...late.puts, ...own.puts], sessions: [...late.sessions, ...own.sessions] }
    expect(await zombie.commit(both)).toEqual([nameOf('a')])
    expect((await heir.find(nameOf('a')))?.record.version).toBe(1002)
    expect((await heir.find(nameOf('own')))?.record.version).toBe(2)
    expect(blobsOf()).toHaveLength(2)
    // Deleting a session of another owner does not happen either; deleting one without an owner does.
    expect(await zombie.commit({ ...NOTHING, sessions: [{ ...nameOf('a'), record: null }] })).toEqual([nameOf('a')])
    expect(await zombie.commit({ ...NOTHING, sessions: [{ ...nameOf('x'), record: null }] })).toEqual([])
    await client.close()
  })

  test('of two changes of one session in one commit the later counts', async () => {
    const { open } = newCluster()
    const store = await open('one')
    await store.claim(nameOf('a'), true)
    await store.commit(changeOf('a', 1))
    const again = changeOf('a', 2)
    const sessions = [{ ...nameOf('a'), record: null }, ...again.sessions]
    expect(await store.commit({ ...again, sessions })).toEqual([])
    expect((await store.find(nameOf('a')))?.record.version).toBe(2)
  })

  test('a record that no column can take is refused; that is not a missing database', async () => {
    const { open } = newCluster()
    const store = await open('one')
    await store.claim(nameOf('a'), true)
    const [{ record }] = changeOf('a', 1).sessions as [StoredSession] // it has one
    const withNote = (note: string) => {
      const turns = record.turns.map((turn) => ({ ...turn, note }))
      return { ...changeOf('a', 1), sessions: [{ ...nameOf('a'), record: { ...record, turns } }] }
    }
    for (const note of ['\0', '\ud800'])
      await expect(store.commit(withNote(note))).rejects.toMatchObject({ code: 'state_refused' })
    expect(await store.commit(withNote('note'))).toEqual([])
  })

  test('a state is deleted with the last session that uses it', async () => {
    const { open, blobsOf } = newCluster()
    const store = await open('one')
    for (const id of ['a', 'fork']) await store.claim(nameOf(id), true)
    await store.commit(changeOf('a', 1, 'shared'))
    await store.commit({ ...changeOf('fork', 1, 'shared'), puts: [] })
    expect(await store.usage(NAMESPACE)).toEqual({ sessions: 0, bytes: 0 })
    const other = await open('two')
    expect(await other.usage(NAMESPACE)).toEqual({ sessions: 2, bytes: 5 })
    await store.commit({ ...NOTHING, sessions: [{ ...nameOf('a'), record: null }] })
    expect(await store.load('shared', NAMESPACE)).toEqual(snapshotOf(1))
    await store.commit({ ...NOTHING, sessions: [{ ...nameOf('fork'), record: null }] })
    expect(blobsOf()).toEqual([])
  })

  test('what many sessions take is known in tables of which the database has no statistics yet', async () => {
    const { database } = newCluster()
    const on = await Database.open(database)
    onTestFinished(() => on.close())
    for (const table of ['session', 'session_state'])
      await on.query(`alter table ${table} set (autovacuum_enabled = false)`)
    await on.query(
      `insert into session (model, tenant, id, owner, record)
       select 'm', 'n', i::text, case when i % 2 = 0 then 'w' end, '{}' from generate_series(1, 20000) i`,
    )
    await on.query(
      `insert into session_state (model, tenant, id, key, bytes)
       select 'm', 'n', i::text, 'shared', 7 from generate_series(1, 20000) i
       union all select 'm', 'n', i::text, 'key ' || i || n, 1 from generate_series(1, 20000) i, generate_series(1, 3) n`,
    )
    // Compared each with each, they would take longer than a statement may.
    const elsewhere = { model: 'm', namespace: NAMESPACE, worker: 'w', now: 1 }
    expect(await usage(on, elsewhere)).toEqual({ sessions: 10_000, bytes: 30_007 })
  })

  test('a missing database fails a commit as a whole; the blob is there already at the retry', {
    tags: 'night',
  }, async () => {
    const { open, blobsOf } = newCluster()
    const store = await open('one')
    await store.claim(nameOf('a'), true)
    await store.commit(changeOf('a', 1))
    postgres.crash()
    await expect(store.commit(changeOf('a', 2))).rejects.toMatchObject({ code: 'state_unavailable' })
    await expect(store.commit(changeOf('a', 2))).rejects.toMatchObject({ code: 'state_unavailable' })
    expect(blobsOf()).toHaveLength(2)
    postgres.start()
    const lost = await vi.waitFor(() => store.commit(changeOf('a', 2)), 30_000)
    expect(lost).toEqual([])
    expect((await store.find(nameOf('a')))?.record.version).toBe(2)
    expect(blobsOf()).toHaveLength(1)
  })

  test('unreferenced blobs are deleted by age, and nothing else is', async () => {
    const { open, database, folder, blobsOf } = newCluster()
    const store = await open('one')
    await store.claim(nameOf('a'), true)
    await store.commit(changeOf('a', 1))
    const blobs = new FolderBlobs(folder)
    await blobs.put('0rphan', [Uint8Array.of(1)])
    const client = await Database.open(database)
    await client.query("insert into state (key, blob) values ('unused', '0rphan')")
    expect(await sweep(client, blobs, 3_600_000)).toBe(0)
    expect(blobsOf()).toHaveLength(2)
    // Everything written before this moment.
    await sweep(client, blobs, -60_000)
    expect(blobsOf()).toHaveLength(1)
    await blobs.put('0rphan', [Uint8Array.of(1)])
    expect(await sweep(client, blobs, -60_000)).toBe(1)
    expect(await store.load('key a 1', NAMESPACE)).toEqual(snapshotOf(1))
    await client.close()
  })

  test('expired sessions are deleted if no live worker has them, or when one takes them', async () => {
    const { open, blobsOf } = newCluster()
    let now = 1000
    const one = await open('one', { now: () => now })
    const two = await open('two', { now: () => now })
    for (const id of ['a', 'b']) {
      await one.claim(nameOf(id), true)
      const change = changeOf(id, 1000)
      const record = { ...change.sessions[0]!.record!, ttlMs: 100 }
      await one.commit({ ...change, sessions: [{ ...nameOf(id), record }] })
    }
    await one.commit({ ...NOTHING, releases: [nameOf('b')] })
    now = 1100
    expect([await two.find(nameOf('a')), await two.list(NAMESPACE, { limit: 9, after: null })]).toEqual([null, []])
    await two.expire()
    expect(blobsOf()).toHaveLength(1)
    await one.commit({ ...NOTHING, releases: [nameOf('a')] })
    expect((await two.claim(nameOf('a'), true)).session).toBeNull()
    expect(blobsOf()).toEqual([])
    expect(await two.commit(changeOf('a', 2))).toEqual([])
  })

  test('lists are paged, latest first', async () => {
    const { open } = newCluster()
    const [one, two] = [await open('one'), await open('two')]
    for (const [id, seed] of [
      ['b', 5],
      ['a', 5],
      ['c', 9],
      ['B', 5],
    ] as const) {
      await one.claim(nameOf(id), true)
      await one.commit(changeOf(id, seed))
    }
    const page = async (after: { updatedAt: number; id: string } | null) =>
      (await two.list(NAMESPACE, { limit: 2, after })).map(({ id }) => id)
    expect([await page(null), await page({ updatedAt: 5, id: 'B' })]).toEqual([
      ['c', 'B'],
      ['a', 'b'],
    ])
    expect(await one.list(NAMESPACE, { limit: 9, after: null })).toEqual([])
  })
})
