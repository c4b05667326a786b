/**
 * Backup and restore as in docs/cluster.md: the database at a moment (a base backup and the log since), and the blobs,
 * copied after it. Everything reported before that moment is there; blobs that only the copy has are removed.
 */
import { cpSync, mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Database } from '../../src/cluster/database.ts'
import { openBlobs } from '../../src/state/shared/open-blobs.ts'
import { SharedStore, sweep } from '../../src/state/shared/shared-store.ts'
import type { SessionRecord } from '../../src/state/store/store.ts'
import { ONE_LAYER } from '../helpers/direct-store.ts'
import { NO_POSTGRES, type Postgres, startPostgres } from '../helpers/postgres.ts'

const nameOf = (id: string) => ({ namespace: 'n', id })

describe.skipIf(NO_POSTGRES !== null)('a backup', { tags: 'night' }, () => {
  let postgres: Postgres
  beforeAll(async () => {
    postgres = await startPostgres({ isArchived: true })
  })
  afterAll(() => postgres?.remove())

  const folder = join(mkdtempSync(join(tmpdir(), 'skein-backup-')), 'blobs')
  const copy = `${folder}-copy`
  const blobsIn = (of: string) =>
    readdirSync(of, { recursive: true, withFileTypes: true }).filter((each) => each.isFile())

  const open = (database: string) =>
    SharedStore.open({
      ...{ database, blobs: `file://${folder}`, identity: ONE_LAYER, isToldFirst: false },
      worker: { node: 'one', url: 'http://one', model: 'm', slots: 1, info: {} },
      maxInlineBytes: 1000,
    })

  /** One more turn, replacing the previous one, whose state is removed from the storage. */
  async function tell(store: SharedStore, id: string, version: number) {
    const floats = [128, 4096].map((length) => new Float32Array(length).fill(version))
    const text = { tokens: Int32Array.of(version), tail: Int32Array.of(1) }
    const key = `${id} ${version}`
    const facts = { numTokens: 2, bytes: 16_904, isForeign: false, createdAt: 1 }
    const turns = [{ turn: version, parent: 0, key, ...facts }]
    const times = { createdAt: 1, updatedAt: version, ttlMs: null }
    const record: SessionRecord = { ...{ version, head: version, nextTurn: version + 1, turns, ...times } }
    const put = { key, ...text, floats, namespace: 'n', isForeign: false }
    const sessions = [{ ...nameOf(id), record }]
    expect(await store.commit({ puts: [put], sessions, deleteKeys: [] })).toEqual([])
  }

  test('restored to a moment, has every turn reported before it, and no blob too many', async () => {
    const url = postgres.newDatabase()
    const before = await open(url)
    for (const id of ['a', 'b']) {
      await before.claim(nameOf(id), true)
      await tell(before, id, 1)
    }
    postgres.backUp()
    // Since the base backup, from the log alone.
    await tell(before, 'a', 2)
    await before.claim(nameOf('c'), true)
    await tell(before, 'c', 1)
    await postgres.markMoment('noon')
    // Blobs are copied after the moment of the database; others are written meanwhile and do not belong to it.
    await before.claim(nameOf('late'), true)
    await tell(before, 'late', 1)
    cpSync(folder, copy, { recursive: true })
    await tell(before, 'b', 2)
    // Everything disappears at once, without a shutdown.
    rmSync(folder, { recursive: true })
    await postgres.restore('noon')
    cpSync(copy, folder, { recursive: true })
    await before.close()

    const client = await Database.open(url)
    // The owner of the sessions no longer exists; otherwise its lease would be waited for.
    await client.query('delete from worker')
    const after = await open(url)
    for (const [id, version] of [
      ['a', 2],
      ['b', 1],
      ['c', 1],
    ] as const) {
      const { session } = await after.claim(nameOf(id), false)
      expect(session?.record).toMatchObject({ version, head: version })
      const { state, tokens } = await after.load(`${id} ${version}`, 'n')
      expect([tokens[0], state[1]![4095]]).toEqual([version, version])
    }
    expect((await after.claim(nameOf('late'), false)).session).toBeNull()
    expect(blobsIn(folder)).toHaveLength(4)
    expect(await sweep(client, openBlobs(`file://${folder}`), -60_000)).toBe(1)
    expect(blobsIn(folder)).toHaveLength(3)
    await after.close()
    await client.close()
  })
})
