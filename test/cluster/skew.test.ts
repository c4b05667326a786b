/** Members of different releases: which differences are allowed, and which are refused, with a real PostgreSQL. */
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest'
import { checkCluster } from '../../src/cli/cluster-check.ts'
import { Database } from '../../src/cluster/database.ts'
import { Lease, type WorkerFacts } from '../../src/cluster/lease.ts'
import { MemberSeal } from '../../src/cluster/member-seal.ts'
import { Members } from '../../src/cluster/members.ts'
import { ownerOf, take } from '../../src/cluster/ownership.ts'
import { PROTOCOL } from '../../src/cluster/protocol.ts'
import { CallerSeal } from '../../src/gateway/access/caller-seal.ts'
import { NO_POSTGRES, type Postgres, startPostgres } from '../helpers/postgres.ts'

const NEXT = PROTOCOL + 1
const AFTER_NEXT = PROTOCOL + 2

describe.skipIf(NO_POSTGRES !== null)('different releases', () => {
  let postgres: Postgres
  beforeAll(async () => {
    postgres = await startPostgres()
  })
  afterAll(() => postgres?.remove())

  const open = async (url: string) => {
    const database = await Database.open(url)
    onTestFinished(() => database.close())
    return database
  }
  /** As a worker of that release reports it: with more fields than this one knows. */
  const factsOf = (id: string, info: object): WorkerFacts => ({
    ...{ id, node: `node ${id}`, url: 'http://127.0.0.1:1', model: 'm', fingerprint: 'f' },
    ...{ slots: 4, info: { ...info, ofALaterRelease: { mood: 'mild' } } },
  })
  const join = async (database: Database, id: string, info: object) => {
    const lease = await Lease.join(database, factsOf(id, info))
    onTestFinished(() => lease.leave())
    return lease
  }

  test('one release apart they are members; further apart neither joins, and nothing is sent there', async () => {
    const url = postgres.newDatabase()
    const database = await open(url)
    await join(database, 'now', {})
    await join(database, 'next', { protocol: NEXT })
    const members = new Members(database)
    await members.refresh()
    expect(members.list.map(({ id }) => id)).toEqual(['next', 'now'])
    expect(members.list[1]!.info).toMatchObject({ protocol: PROTOCOL })

    // A distant release that does not check which cluster it joins, like those before this rule.
    await database.query('update worker set info = jsonb_set(info, $2, $3) where id = $1', [
      ...['next', '{protocol}', String(AFTER_NEXT)],
    ])
    await members.refresh()
    expect(members.list.map(({ id }) => id)).toEqual(['now'])
    expect(members.strangers.map(({ id }) => id)).toEqual(['next'])
    await expect(join(database, 'new', {})).rejects.toMatchObject({
      code: 'conflict',
      message: expect.stringContaining(`worker next speaks protocol ${AFTER_NEXT}`),
    })
    const findings = await checkCluster(url, undefined)
    expect(findings.find(({ what }) => what === 'node node next')).toMatchObject({
      found: expect.stringContaining(`protocol ${AFTER_NEXT}`),
      fix: expect.stringContaining('one release at a time'),
    })
    // After it has left.
    await database.query("update worker set expires = now() where id = 'next'")
    await join(database, 'new', {})
  })

  test('of two that are too far apart and start at the same moment one joins', async () => {
    const database = await open(postgres.newDatabase())
    for (let round = 0; round < 10; round++) {
      const ids = ['now', 'far'].map((id) => `${id}${round}`)
      const joining = await Promise.allSettled([
        Lease.join(database, factsOf(ids[0]!, {})),
        Lease.join(database, factsOf(ids[1]!, { protocol: AFTER_NEXT })),
      ])
      const leases = joining.flatMap((one) => (one.status === 'fulfilled' ? [one.value] : []))
      const refusals = joining.flatMap((one) => (one.status === 'rejected' ? [one.reason] : []))
      expect(leases).toHaveLength(1)
      expect(refusals).toMatchObject([{ code: 'conflict' }])
      const { rows } = await database.query<{ id: string }>('select id from worker')
      expect(rows.map(({ id }) => id)).toEqual(leases.map(({ id }) => id))
      await leases[0]!.leave()
    }
  })

  test('the seal of a gateway is accepted from neighbouring releases, with unknown claims, and from no other', () => {
    const seal = new MemberSeal('secret')
    const caller = new CallerSeal('secret')
    const claims = { principal: null, mayTake: true, ofALaterRelease: 1 }
    const open = (protocol: object) => caller.open(seal.seal({ ...claims, ...protocol }))
    expect(open({})).toEqual({ principal: null, mayTake: true })
    expect(open({ protocol: NEXT })).toEqual({ principal: null, mayTake: true })
    // The first release sent none.
    expect(open({ protocol: undefined })).toEqual({ principal: null, mayTake: true })
    expect(() => open({ protocol: AFTER_NEXT })).toThrow(`speaks protocol ${AFTER_NEXT}`)
  })

  test('tables extended by a later release are used as they are, and not changed', async () => {
    const url = postgres.newDatabase()
    const later = await open(url)
    await later.query("alter table session add column mood text not null default 'mild'")
    await later.query('alter table worker add column weight integer')
    await later.query('create table later (id text primary key)')
    const versions = async () =>
      (await later.query<{ version: number }>('select max(version) as version from skein_schema')).rows[0]!.version
    const newest = await versions()
    await later.query(
      `insert into skein_schema (version, name, md5, run_at) values (${newest + 1}, 'later', 'x', now())`,
    )
    const database = await open(url)
    await join(database, 'now', {})
    const key = { model: 'f', tenant: 't', id: 's' }
    await take(database, key, { worker: 'now', mayCreate: true, gap: 0 })
    expect(await ownerOf(database, key)).toMatchObject({ owner: 'now' })
    expect(await versions()).toBe(newest + 1)
  })
})
