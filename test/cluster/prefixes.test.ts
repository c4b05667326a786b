/** Prefixes that workers share: whose they are, that they are the right ones, and how many are kept. */
import { mkdtempSync, readdirSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest'
import { Database } from '../../src/cluster/database.ts'
import { removeIdle } from '../../src/state/shared/prefixes.ts'
import { removeStale } from '../../src/state/shared/rows.ts'
import { SharedStore } from '../../src/state/shared/shared-store.ts'
import type { Snapshot } from '../../src/state/snapshot.ts'
import { IDENTITY } from '../helpers/direct-store.ts'
import { NO_POSTGRES, type Postgres, startPostgres } from '../helpers/postgres.ts'

const BYTES = 4 * (2 * 2 * 128 + 2 * 2 * 64 * 64)

/** The first 100 are the same for all seeds. */
function promptOf(seed: number, length = 200): Int32Array {
  return Int32Array.from({ length }, (_, i) => (i < 100 ? i : 1000 * seed + i))
}

/** Recognisable by its seed. */
const stateOf = (seed: number) => [
  new Float32Array(2 * 2 * 128).fill(seed),
  new Float32Array(2 * 2 * 64 * 64).fill(seed / 7),
]

function published(seed: number, length: number, namespace = 'n') {
  return { namespace, tokens: promptOf(seed, length), floats: stateOf(seed + length) }
}

const found = (seed: number, length: number): Snapshot => ({
  tokens: promptOf(seed, length),
  tail: new Int32Array(0),
  state: stateOf(seed + length),
})

describe.skipIf(NO_POSTGRES !== null)('prefixes in a cluster', () => {
  let postgres: Postgres
  beforeAll(async () => {
    postgres = await startPostgres()
  })
  afterAll(() => postgres?.remove())

  async function newCluster(maxInlineBytes = 1000) {
    const url = postgres.newDatabase()
    const folder = mkdtempSync(join(tmpdir(), 'skein-blobs-'))
    const open = async (node: string, weights = 'w') => {
      const store = await SharedStore.open({
        database: url,
        blobs: `file://${folder}`,
        identity: { ...IDENTITY, weights },
        worker: { node, url: `http://${node}`, model: 'm', slots: 1, info: {} },
        ...{ isToldFirst: true, maxInlineBytes },
      })
      onTestFinished(() => store.close().catch(() => {}))
      return store.prefixes
    }
    const database = await Database.open(url)
    onTestFinished(() => database.close())
    const blobs = () => readdirSync(folder, { recursive: true }).filter((name) => String(name).includes('/'))
    return { open, database, blobs }
  }

  test.each([
    ['rows', 2 * BYTES],
    ['blobs', 1000],
  ])('others find the longest one that a prompt begins with, as %s', async (_, bytes) => {
    const { open, blobs } = await newCluster(bytes)
    const [one, two] = [await open('one'), await open('two')]
    expect(await two.find('n', promptOf(1), 32)).toBeNull()
    for (const length of [60, 120, 150]) await one.publish(published(1, length))
    expect(blobs()).toHaveLength(bytes > BYTES ? 0 : 3)
    expect(await two.find('n', promptOf(1), 32)).toEqual(found(1, 150))
    // One token is left to draw from.
    expect(await two.find('n', promptOf(1, 150), 32)).toEqual(found(1, 120))
    expect(await two.find('n', promptOf(2), 32)).toEqual(found(1, 60))
    expect(await two.find('n', promptOf(2), 61)).toBeNull()
    expect(await two.find('n', promptOf(1, 33), 32)).toBeNull()
  })

  test('no other tenant and no other model finds it', async () => {
    const { open } = await newCluster()
    const [one, other] = [await open('one'), await open('two', 'x')]
    await one.publish(published(1, 150))
    expect(await one.find('m', promptOf(1), 32)).toBeNull()
    expect(await other.find('n', promptOf(1), 32)).toBeNull()
  })

  test('a row with the state of other tokens is not used', async () => {
    const { open, database } = await newCluster()
    const one = await open('one')
    await one.publish(published(1, 150))
    await one.publish(published(2, 150))
    await database.query('update prefix a set key = b.key from prefix b where a.key <> b.key')
    expect(await one.find('n', promptOf(1), 32)).toBeNull()
  })

  test('several that publish the same prefix leave one', async () => {
    const { open, database, blobs } = await newCluster()
    const stores = await Promise.all(['a', 'b', 'c', 'd'].map((node) => open(node)))
    await Promise.all(stores.map((store) => store.publish(published(1, 150))))
    await stores[0]!.publish(published(1, 150))
    const { rows } = await database.query<{ count: number }>('select count(*) from state')
    expect([rows[0]!.count, blobs().length]).toEqual([1, 1])
  })

  test('a tenant keeps the sixteen that were used last', async () => {
    const { open, database, blobs } = await newCluster()
    const one = await open('one')
    await one.publish(published(0, 150, 'other'))
    for (let seed = 1; seed <= 16; seed++) await one.publish(published(seed, 150))
    expect(await one.find('n', promptOf(1), 32)).toEqual(found(1, 150))
    for (const seed of [17, 18]) await one.publish(published(seed, 150))
    expect(blobs()).toHaveLength(17)
    const { rows } = await database.query<{ count: number }>('select count(*) from state')
    expect(rows[0]!.count).toBe(17)
    const isThere = async (seed: number) => (await one.find('n', promptOf(seed), 101)) !== null
    expect(await Promise.all([1, 2, 3, 4, 18].map(isThere))).toEqual([true, false, false, true, true])
    expect(await one.find('other', promptOf(0), 32)).toEqual(found(0, 150))
  })

  test('one is deleted when it was not used for an hour, or is not to be trusted, not by its age', async () => {
    const { open, database, blobs } = await newCluster()
    const one = await open('one')
    for (const seed of [1, 2, 3]) await one.publish(published(seed, 150))
    await database.query("update state set created = now() - interval '9 days'")
    expect(await removeStale(database, 1000)).toEqual([])
    const hash = 'select hash from prefix where tokens = 150 order by used limit 1'
    await database.query(`update prefix set used = now() - interval '61 minutes' where hash = (${hash})`)
    const idle = await removeIdle(database)
    expect(idle).toHaveLength(1)
    expect(await one.find('n', promptOf(1), 101)).toBeNull()
    await one.remove('n', promptOf(2, 150))
    expect(await one.find('n', promptOf(2), 101)).toBeNull()
    expect(await one.find('n', promptOf(3), 101)).toEqual(found(3, 150))
    // The cleanup removes the blob that it was given.
    expect(blobs()).toHaveLength(2)
    const { rows } = await database.query<{ count: number }>('select count(*) from state')
    expect(rows[0]!.count).toBe(1)
  })

  test('one whose blob is missing is an error, and is deleted in time', async () => {
    const { open, database } = await newCluster()
    const one = await open('one')
    await one.publish(published(1, 150))
    await database.query("update state set blob = 'nowhere'")
    await expect(one.find('n', promptOf(1), 32)).rejects.toThrow()
  })
})
