/** Which members exist and who owns which sessions, with a real PostgreSQL. */
import { setTimeout as delay } from 'node:timers/promises'
import pg from 'pg'
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest'
import { Database, migrate } from '../../src/cluster/database.ts'
import { endLeasesOf, Lease, type WorkerFacts } from '../../src/cluster/lease.ts'
import { Members } from '../../src/cluster/members.ts'
import { letGo, ownerOf, take } from '../../src/cluster/ownership.ts'
import { NO_POSTGRES, type Postgres, startPostgres } from '../helpers/postgres.ts'

describe.skipIf(NO_POSTGRES !== null)('a cluster', () => {
  let postgres: Postgres
  let url: string
  const databases: Database[] = []

  beforeAll(async () => {
    postgres = await startPostgres()
  })
  afterAll(async () => {
    await Promise.all(databases.map((database) => database.close()))
    postgres?.remove()
  })

  const open = async (to = url) => {
    const database = await Database.open(to)
    databases.push(database)
    return database
  }
  const fresh = () => {
    url = postgres.newDatabase()
    return open()
  }
  const factsOf = (id: string): WorkerFacts => {
    const info = { device: 'cpu' }
    return {
      id,
      node: `node of ${id}`,
      url: `http://${id}`,
      model: 'm',
      fingerprint: 'f',
      slots: 4,
      info,
    }
  }
  const KEY = { model: 'f', tenant: 't', id: 's' }
  const takeAs = (database: Database, worker: string, mayCreate = true) =>
    take(database, KEY, { worker, mayCreate, gap: 1000 })

  test('ten that open an empty database at once create one set of tables and one secret', async () => {
    url = postgres.newDatabase()
    const opened = await Promise.all(Array.from({ length: 10 }, () => open()))
    const secrets = new Set(opened.map(({ secret }) => Buffer.from(secret).toString('hex')))
    expect([...secrets]).toEqual([expect.stringMatching(/^[0-9a-f]{64}$/)])
  })

  test('a process that gets no turn for seconds still creates its tables', async () => {
    const client = new pg.Client({ connectionString: postgres.newDatabase(), idle_in_transaction_session_timeout: 200 })
    client.on('error', () => {})
    await client.connect()
    const late = {
      async query(sql: string, values?: unknown[]) {
        const result = await client.query(sql, values)
        if (sql.includes('advisory_xact_lock')) await delay(500)
        return result
      },
    }
    await migrate(late)
    expect((await client.query('select * from worker')).rows).toEqual([])
    await client.end()
  })

  test('waiting for another to create the tables may take longer than the statement timeout', {
    tags: 'night',
  }, async () => {
    url = postgres.newDatabase()
    const holder = new pg.Client(url)
    await holder.connect()
    await holder.query("begin; select pg_advisory_xact_lock(x'736b65696e'::bigint)")
    const opening = open()
    await delay(6000)
    await holder.query('commit')
    await opening
    await holder.end()
  })

  test('an invalid address and an unreachable server are told apart', async () => {
    const refused = (to: string) => Database.open(to).catch((error) => error)
    expect(await refused('mysql://x')).toMatchObject({ code: 'invalid_request' })
    expect(await refused('postgres://127.0.0.1:1/x')).toMatchObject({
      code: 'state_unavailable',
      message: expect.stringContaining('ECONNREFUSED'),
    })
  })

  test('members are seen when they join and leave, with what they do', async () => {
    const database = await fresh()
    const members = new Members(await open())
    await members.start(60_000)
    const lease = await Lease.join(database, factsOf('a'), { inFlight: () => 3 })
    await vi.waitFor(() => expect(members.list).toHaveLength(1), 30_000)
    expect(members.list[0]).toMatchObject({ ...factsOf('a'), inFlight: 3 })
    expect(members.list[0]!.leftMs).toBeGreaterThan(0)
    await lease.leave()
    await vi.waitFor(() => expect(members.list).toEqual([]), 30_000)
    members.close()
  })

  test('an unrenewed lease ends here before it ends in the database, and counts again after a renewal', async () => {
    const database = await fresh()
    const lease = await Lease.join(database, factsOf('a'), { renewMs: 3_600_000, leaseMs: 300 })
    const members = new Members(database)
    const { view } = lease
    expect([view.isOver, view.numLapses]).toEqual([false, 0])
    await members.refresh()
    // Under any load: as long as the row exists, the lease was checked before it ended here, or it has ended here.
    while (!view.isOver) await delay(10)
    expect(() => lease.check()).toThrow('try again')
    await vi.waitFor(async () => {
      await members.refresh()
      expect(members.list).toEqual([])
    }, 30_000)
    await lease.renew()
    expect(view.numLapses).toBe(1)
    await lease.leave()
    expect(view.isOver).toBe(true)
  })

  test('of eight workers that take a session at once one succeeds; the others learn which', async () => {
    const database = await fresh()
    const ids = Array.from({ length: 8 }, (_, i) => `w${i}`)
    const leases = await Promise.all(ids.map((id) => Lease.join(database, factsOf(id))))
    for (let round = 0; round < 20; round++) {
      const key = { ...KEY, id: `race ${round}` }
      const tries = ids.map((worker) => take(database, key, { worker, mayCreate: true, gap: 0 }))
      const taken = await Promise.all(tries)
      expect(taken.filter((each) => each !== null)).toHaveLength(1)
      const winner = ids[taken.findIndex((each) => each !== null)]!
      expect(await ownerOf(database, key)).toEqual({
        owner: winner,
        node: `node of ${winner}`,
        url: `http://${winner}`,
      })
    }
    await Promise.all(leases.map((lease) => lease.leave()))
  })

  test('a session is taken from an expired owner, with a new fence and a gap in its version', async () => {
    const database = await fresh()
    const hung = await Lease.join(database, factsOf('a'), { renewMs: 3_600_000, leaseMs: 60_000 })
    const other = await Lease.join(database, factsOf('b'))
    expect(await takeAs(database, 'a', false)).toBeNull()
    const created = { fence: 1, record: null, former: null }
    expect(await takeAs(database, 'a')).toEqual(created)
    await database.query('update session set record = \'{"version": 7}\', version = 3')
    expect(await takeAs(database, 'b')).toBeNull()
    const again = { fence: 2, record: { version: 7 }, former: null }
    expect(await takeAs(database, 'a')).toEqual(again)
    // Time passes by the database's clock.
    await database.query("update worker set expires = now() where id = 'a'")
    expect(await ownerOf(database, KEY)).toBeNull()
    const over = { fence: 3, record: { version: 1007 }, former: 'a' }
    expect(await takeAs(database, 'b')).toEqual(over)
    await letGo(database, KEY, 'a')
    expect(await ownerOf(database, KEY)).toMatchObject({ owner: 'b' })
    await letGo(database, KEY, 'b')
    expect(await ownerOf(database, KEY)).toBeNull()
    // A session that was released properly has no gap.
    expect(await takeAs(database, 'a')).toMatchObject({ record: { version: 1007 }, former: 'b' })
    await hung.leave()
    await other.leave()
    expect(await takeAs(database, 'c')).toMatchObject({ fence: 5 })
  })

  test('what a dead process owned is free at once, and nothing of others', async () => {
    const database = await fresh()
    const members = new Members(await open())
    await members.start(60_000)
    const join = (id: string, node: string, pid: number) =>
      Lease.join(database, { ...factsOf(id), node, info: { pid } })
    const leases = await Promise.all([join('a', 'n', 1), join('b', 'n', 2), join('c', 'm', 1)])
    await takeAs(database, 'a')
    expect(await takeAs(database, 'b')).toBeNull()
    await endLeasesOf(database, 'n', 1)
    expect(await takeAs(database, 'b')).toMatchObject({ former: 'a' })
    await vi.waitFor(() => expect(members.list.map(({ id }) => id)).toEqual(['b', 'c']), 30_000)
    await Promise.all(leases.map((lease) => lease.leave()))
    members.close()
  })

  test('a session that saved nothing leaves no row', async () => {
    const database = await fresh()
    await takeAs(database, 'a')
    await letGo(database, KEY, 'a')
    const { rows } = await database.query('select * from session')
    expect(rows).toEqual([])
  })

  test('after a crash of the server, leases and listeners reconnect', { tags: 'night' }, async () => {
    const database = await fresh()
    const members = new Members(await open())
    await members.start(50)
    const lease = await Lease.join(database, factsOf('a'), { renewMs: 50 })
    await vi.waitFor(() => expect(members.list).toHaveLength(1), 30_000)
    postgres.crash()
    await expect(lease.renew()).rejects.toMatchObject({ code: 'state_unavailable' })
    // No member is removed because the database cannot be asked.
    expect(members.list).toHaveLength(1)
    postgres.start()
    // Connections that died meanwhile fail once each.
    const late = await vi.waitFor(() => Lease.join(database, factsOf('b')), 30_000)
    await vi.waitFor(() => expect(members.list).toHaveLength(2), 30_000)
    await lease.renew()
    await Promise.all([lease.leave(), late.leave()])
    members.close()
  })
})
