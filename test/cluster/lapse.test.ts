/** How an engine handles sessions whose claim has expired: nothing is reported that another may have undone. */
import { mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest'
import { Database } from '../../src/cluster/database.ts'
import { LeaseView } from '../../src/cluster/lease-view.ts'
import type { Engine } from '../../src/engine/engine.ts'
import { SharedStore } from '../../src/state/shared/shared-store.ts'
import type { Store } from '../../src/state/store/store.ts'
import { call, IDENTITY, settle, setUp, tell, turnOf } from '../engine/session-kit.ts'
import { NO_POSTGRES, type Postgres, startPostgres } from '../helpers/postgres.ts'

const REF = { tenant: '', id: 's' }

describe.skipIf(NO_POSTGRES !== null)('an expired lease', () => {
  let postgres: Postgres
  beforeAll(async () => {
    postgres = await startPostgres()
  })
  afterAll(() => postgres?.remove())

  async function newCluster() {
    const database = postgres.newDatabase()
    const blobs = `file://${mkdtempSync(join(tmpdir(), 'skein-blobs-'))}`
    const client = await Database.open(database)
    onTestFinished(() => client.close())
    /** An engine on a node of its own; the test renews its lease. */
    const join_ = async (node: string, isDurable = false) => {
      const view = new LeaseView()
      const shared = await SharedStore.open({
        database,
        blobs,
        identity: IDENTITY,
        worker: { node, url: `http://${node}`, model: 'm', slots: 1, info: {} },
        isToldFirst: !isDurable,
        leaseWords: view.words,
        renewMs: 3_600_000,
        leaseMs: 3_600_000,
      })
      const gate = { isHeld: false }
      const store: Store = {
        secret: shared.secret,
        lease: view,
        load: (key, namespace) => shared.load(key, namespace),
        claim: (name, mayCreate) => shared.claim(name, mayCreate),
        find: (name) => shared.find(name),
        list: (namespace, page) => shared.list(namespace, page),
        usage: (namespace) => shared.usage(namespace),
        expire: () => shared.expire(),
        async commit(change) {
          const copy = structuredClone(change)
          while (gate.isHeld) await new Promise((resolve) => setTimeout(resolve, 1))
          return shared.commit(copy)
        },
        close: () => shared.close(),
      }
      const { engine } = setUp({ fake: { numSlots: 8 }, states: { store, isDurable } })
      onTestFinished(async () => {
        gate.isHeld = false
        await engine.close().catch(() => {})
      })
      return {
        engine,
        gate,
        /** Expired by both clocks. */
        async lapse() {
          Atomics.store(view.words, 0, 1n)
          await client.query('update worker set expires = now() where node = $1', [node])
        },
        /** Expired by the database's clock only. */
        async endBehindItsBack() {
          await client.query('update worker set expires = now() where node = $1', [node])
        },
        renew: () => shared.lease.renew(),
      }
    }
    return { join: join_, client }
  }

  /** Without waiting for pending writes. */
  const refusal = ({ engine }: { engine: Engine }) =>
    engine.call('sessions.get', REF).then(
      () => 'accepted',
      (error) => error.code,
    )

  const code = (told: Awaited<ReturnType<typeof tell>>, id = 'a') => told.collected.error(id)

  test('a stored session is dropped with its slot, refused meanwhile, and continues afterwards', async () => {
    const one = await (await newCluster()).join('one')
    await tell(one.engine, turnOf())
    expect(one.engine.stats.states).toMatchObject({ sessions: 1, inSlots: 1 })
    await one.lapse()
    expect(code(await tell(one.engine, turnOf()))).toBe('state_unavailable')
    expect(one.engine.stats.states).toMatchObject({ sessions: 0, inSlots: 0 })
    await one.renew()
    expect((await tell(one.engine, turnOf())).position).toMatchObject({ turn: 2 })
  })

  test('an unstored session is used again when a write has shown that nobody took it', async () => {
    const one = await (await newCluster()).join('one')
    await tell(one.engine, turnOf())
    one.gate.isHeld = true
    one.engine.submit(turnOf())
    while (one.engine.hasWork) one.engine.step()
    await one.lapse()
    expect(await refusal(one)).toBe('state_unavailable')
    await one.renew()
    expect(await refusal(one)).toBe('state_unavailable')
    one.gate.isHeld = false
    await settle(one.engine)
    await expect.poll(() => refusal(one), { timeout: 30_000 }).not.toBe('state_unavailable')
    expect((await tell(one.engine, turnOf())).position).toMatchObject({ turn: 3 })
  })

  test('a lease that ended unnoticed is detected by the next renewal, and reads show what is stored', async () => {
    const cluster = await newCluster()
    const [one, two] = [await cluster.join('one'), await cluster.join('two')]
    await tell(one.engine, turnOf())
    await one.endBehindItsBack()
    expect((await tell(two.engine, turnOf())).position).toMatchObject({ turn: 2 })
    await two.engine.close()
    await one.renew()
    expect(await call(one.engine, 'sessions.get', REF)).toMatchObject({ head: 2 })
  })

  test('a worker that has dropped a session releases its row when another asks for it', async () => {
    const cluster = await newCluster()
    const [one, two] = [await cluster.join('one'), await cluster.join('two')]
    await tell(one.engine, turnOf())
    await one.lapse()
    expect(code(await tell(one.engine, turnOf()))).toBe('state_unavailable')
    await one.renew()
    // The row still names it, and its lease is valid.
    expect(code(await tell(two.engine, turnOf()))).toBe('misdirected')
    await call(one.engine, 'sessions.release', REF)
    expect((await tell(two.engine, turnOf())).position).toMatchObject({ turn: 2 })
    // The owner keeps it, whatever another releases.
    await call(one.engine, 'sessions.release', REF)
    expect(code(await tell(one.engine, turnOf()))).toBe('misdirected')
  })

  test('a claim whose answer was lost is released when another asks for the session', async () => {
    const cluster = await newCluster()
    const [one, two] = [await cluster.join('one'), await cluster.join('two')]
    await tell(two.engine, turnOf())
    await call(two.engine, 'sessions.release', REF)
    await cluster.client.query(
      "update session set fence = fence + 1, owner = (select id from worker where node = 'one')",
    )
    expect(code(await tell(two.engine, turnOf()))).toBe('misdirected')
    await call(one.engine, 'sessions.release', REF)
    expect((await tell(two.engine, turnOf())).position).toMatchObject({ turn: 2 })
  })

  test.each([
    ['told of before it is written', false],
    ['durable', true],
  ])(
    'another takes the session while a turn runs: %s, it is an error, and the other continues',
    async (_, isDurable) => {
      const cluster = await newCluster()
      const [one, two] = [await cluster.join('one', isDurable), await cluster.join('two', isDurable)]
      const first = await tell(one.engine, turnOf())
      expect(first.position).toMatchObject({ turn: 1 })
      one.engine.submit(turnOf({ id: 'late' }))
      one.engine.step()
      await one.lapse()
      const next = await tell(two.engine, turnOf())
      expect(next.position).toMatchObject({ turn: 2 })
      // It has a clock of its own, and a database that answers again.
      await one.renew()
      const late = await settle(one.engine)
      expect(late.error('late')).toBe('state_unavailable')
      const refused = await call(one.engine, 'sessions.rewind', { ...REF, turn: 1 }).catch((error) => error)
      expect(refused).toMatchObject({ code: 'misdirected', location: 'http://two' })
      expect(await call(two.engine, 'sessions.get', REF)).toMatchObject({ head: 2 })
      expect((await tell(two.engine, turnOf())).position).toMatchObject({ turn: 3 })
      expect(one.engine.stats.states).toMatchObject({ sessions: 0, unsaved: 0 })
    },
  )
})
