/** The store alone: atomic changes, old or new content, and what crashes and full disks leave behind. */
import { spawnSync } from 'node:child_process'
import { copyFileSync, cpSync, readdirSync, readFileSync, renameSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { join } from 'node:path'
import { Worker } from 'node:worker_threads'
import { describe, expect, test, vi } from 'vitest'
import { SkeinError } from '../../../src/errors.ts'
import { type DatabaseOptions, StoreDatabase } from '../../../src/state/store/database.ts'
import { type FileLayer, realFiles } from '../../../src/state/store/files.ts'
import { openSecret } from '../../../src/state/store/secret.ts'
import { openDatabase } from '../../../src/state/store/sqlite.ts'
import type { StoreChange, StoredSession } from '../../../src/state/store/store.ts'
import { newFolder, ONE_LAYER, snapshotOf } from '../../helpers/direct-store.ts'

const NAMESPACE = 'n'

/** A state, and the session `id` with it as its only turn. */
function changeOf(id: string, seed: number, deleteKeys: readonly string[] = []): StoreChange {
  const key = `key ${id} ${seed}`
  const { state, ...text } = snapshotOf(seed)
  const turn = { turn: 1, parent: 0, createdAt: 1, key, numTokens: 51, bytes: 1, isForeign: false }
  const times = { createdAt: 1, updatedAt: 1, ttlMs: null }
  const record = { version: seed, head: 1, nextTurn: 2, turns: [turn], ...times }
  return {
    puts: [{ key, ...text, floats: state, namespace: NAMESPACE, isForeign: false }],
    sessions: [{ namespace: NAMESPACE, id, record }],
    deleteKeys,
  }
}

function open(folder: string, options: Partial<DatabaseOptions> = {}): StoreDatabase {
  return new StoreDatabase({ folder, identity: ONE_LAYER, isDurable: false, ...options })
}

/** The content of a store: for each session the seed of its record, which its state must have too. */
function contentOf(database: StoreDatabase): Record<string, number> {
  const entries = database.sessions().map(({ id, namespace, record }) => {
    const { version, turns } = record
    expect(database.load(turns[0]!.key, namespace)).toEqual(snapshotOf(version))
    return [id, version] as const
  })
  return Object.fromEntries(entries)
}

/** While it is still open, neither database nor log has a trace of the deleted data. */
function expectNoTrace(folder: string, id: string, seed: number): void {
  const bytes = Buffer.from(new Uint8Array(snapshotOf(seed).state[1]!.buffer).slice(0, 64))
  for (const name of ['sessions.db', 'sessions.db-wal']) {
    const file = readFileSync(join(folder, name))
    expect([name, file.includes(bytes), file.includes(`key ${id} ${seed}`)]).toEqual([name, false, false])
  }
}

const blobsIn = (folder: string) => readdirSync(join(folder, 'states'))

describe.each([
  ['rows', 2 ** 20],
  ['files', 1000],
])('states as %s', (_, maxInlineBytes) => {
  const isFiles = maxInlineBytes === 1000

  test('are the same after a restart; replaced and deleted ones leave nothing behind', () => {
    const folder = newFolder()
    const first = open(folder, { maxInlineBytes })
    first.commit(changeOf('a', 1))
    first.commit(changeOf('b', 2))
    first.commit(changeOf('a', 3, ['key a 1']))
    first.purge()
    expect(blobsIn(folder)).toHaveLength(isFiles ? 2 : 0)
    first.close()
    const second = open(folder, { maxInlineBytes })
    expect(contentOf(second)).toEqual({ a: 3, b: 2 })
    expect(() => second.load('key a 1', NAMESPACE)).toThrow('not there')
    const gone = { puts: [], deleteKeys: ['key a 3', 'key b 2'] }
    const sessions = ['a', 'b'].map((id) => ({ namespace: NAMESPACE, id, record: null }))
    second.commit({ ...gone, sessions })
    expect([contentOf(second), blobsIn(folder)]).toEqual([{}, []])
    expectNoTrace(folder, 'a', 3)
    second.close()
  })

  test('an expired session that somebody claims leaves nothing behind', () => {
    const folder = newFolder()
    let now = 0
    const database = open(folder, { maxInlineBytes, now: () => now })
    const { puts, sessions, deleteKeys } = changeOf('a', 3)
    const timed = sessions.map((each) => ({ ...each, record: { ...each.record!, ttlMs: 9 } }))
    database.commit({ puts, sessions: timed, deleteKeys, releases: timed })
    database.checkpoint()
    now = 10
    expect(database.claim({ namespace: NAMESPACE, id: 'a' }, false).session).toBeNull()
    expectNoTrace(folder, 'a', 3)
    database.close()
  })

  test('what was changed on disk is refused, and nothing else is affected', () => {
    const folder = newFolder()
    const first = open(folder, { maxInlineBytes })
    first.commit(changeOf('a', 1))
    first.commit(changeOf('b', 2))
    first.close()
    if (isFiles) {
      const path = join(folder, 'states', blobsIn(folder)[0]!)
      const bytes = readFileSync(path)
      bytes[2000]! ^= 1
      writeFileSync(path, bytes)
    } else {
      const db = openDatabase(join(folder, 'sessions.db'), { timeout: 5000 })
      const inline = db.prepare("SELECT inline FROM states WHERE key = 'key a 1'").pluck().get()
      const bytes = inline as Buffer
      bytes[2000]! ^= 1
      db.prepare("UPDATE states SET inline = ? WHERE key = 'key a 1'").run(bytes)
      db.close()
    }
    const second = open(folder, { maxInlineBytes })
    const results = [1, 2].map((seed) => {
      try {
        return second.load(`key ${seed === 1 ? 'a' : 'b'} ${seed}`, NAMESPACE).tail[0]
      } catch (error) {
        return String(error)
      }
    })
    const refused = results.filter((result) => typeof result === 'string')
    expect(refused).toEqual([expect.stringContaining('checksum')])
    second.close()
  })
})

describe('refusals', () => {
  test('another tenant, another model, a later format', () => {
    const folder = newFolder()
    const database = open(folder)
    database.commit(changeOf('a', 1))
    expect(() => database.load('key a 1', 'other')).toThrow('another tenant')
    database.close()
    const other = open(folder, { identity: { ...ONE_LAYER, weights: 'x' } })
    expect(() => other.load('key a 1', NAMESPACE)).toThrow('its weights is w')
    other.close()
    const db = openDatabase(join(folder, 'sessions.db'), { timeout: 5000 })
    db.pragma('user_version = 3')
    db.close()
    expect(() => open(folder)).toThrow('later Skein')
  })

  test('only the owner can read the files', () => {
    const folder = newFolder()
    const database = open(folder, { maxInlineBytes: 10 })
    openSecret(folder)
    database.commit(changeOf('a', 1))
    const mode = (path: string) => (statSync(join(folder, path)).mode & 0o777).toString(8)
    const blob = join('states', blobsIn(folder)[0]!)
    const files = ['sessions.db', 'sessions.db-wal', 'secret', blob]
    expect([...files.map(mode), mode('states')]).toEqual(['600', '600', '600', '600', '700'])
    database.close()
  })

  test('a secret is generated once, and a short one is refused', () => {
    const folder = newFolder()
    expect(openSecret(folder)).toEqual(openSecret(folder))
    expect(openSecret(newFolder())).not.toEqual(openSecret(folder))
    writeFileSync(join(folder, 'secret'), 'short')
    expect(() => openSecret(folder)).toThrow('5 bytes')
  })
})

/** Real files; call number `failing` fails, and a failing write leaves half of its bytes. */
function faultyFiles(failing: number) {
  const calls = { count: 0 }
  const fails = () => {
    calls.count++
    return calls.count === failing
  }
  const files: FileLayer = {
    ...realFiles,
    write(path, parts) {
      if (!fails()) return realFiles.write(path, parts)
      writeFileSync(path, parts.at(-2)!.subarray(0, 100))
      throw new Error('ENOSPC: no space left on device')
    },
    rename(from, to) {
      if (fails()) throw new Error('EIO: i/o error, rename')
      realFiles.rename(from, to)
    },
    syncFolder(path) {
      if (fails()) throw new Error('EIO: i/o error, fsync')
      realFiles.syncFolder(path)
    },
    remove(path) {
      // The process dies or the disk is gone, so what should be cleaned up stays.
      if (calls.count >= failing) throw new Error('EIO: i/o error, unlink')
      realFiles.remove(path)
    },
  }
  return files
}

describe('faults', () => {
  test.each([1, 2, 3, 4, 5, 6, 7, 8, 9])(
    'failing call %i of the file layer: old or new, and no orphan after the next start',
    (failing) => {
      const folder = newFolder()
      const healthy = open(folder, { maxInlineBytes: 10 })
      healthy.commit(changeOf('a', 1))
      healthy.close()
      const database = open(folder, { maxInlineBytes: 10, files: faultyFiles(failing) })
      const acknowledged: Record<string, number> = { a: 1 }
      for (const [id, seed] of [
        ['a', 2],
        ['b', 3],
        ['a', 4],
      ] as const) {
        try {
          database.commit(changeOf(id, seed, [`key ${id} ${acknowledged[id]}`]))
          acknowledged[id] = seed
        } catch (error) {
          expect(String(error)).toMatch(/cannot be written: E(NOSPC|IO)/)
        }
        expect(contentOf(database)).toEqual(acknowledged)
      }
      expect(Object.keys(acknowledged).length).toBeGreaterThan(0)
      database.close()
      const restarted = open(folder, { maxInlineBytes: 10 })
      expect(contentOf(restarted)).toEqual(acknowledged)
      expect(blobsIn(folder)).toHaveLength(Object.keys(acknowledged).length)
      restarted.close()
    },
  )

  test('a full database refuses, keeps what it has, and accepts what fits after a deletion', () => {
    const folder = newFolder()
    const database = open(folder, { maxPages: 40 })
    const kept: Record<string, number> = {}
    let seed = 1
    expect(() => {
      for (; seed < 100; seed++) {
        database.commit(changeOf(`s${seed}`, seed))
        kept[`s${seed}`] = seed
      }
    }).toThrow('cannot be written: database or disk is full')
    expect(contentOf(database)).toEqual(kept)
    const sessions = [{ namespace: NAMESPACE, id: 's1', record: null }]
    database.commit({ puts: [], sessions, deleteKeys: ['key s1 1'] })
    delete kept.s1
    database.commit(changeOf('late', 500))
    database.close()
    const restarted = open(folder)
    expect(contentOf(restarted)).toEqual({ ...kept, late: 500 })
    restarted.close()
  })

  test('a new session starts without a claim on a full disk, and belongs to the first writer', () => {
    const folder = newFolder()
    const full = open(folder, { maxPages: 30 })
    expect(() => {
      for (let seed = 1; seed < 100; seed++) full.commit(changeOf(`s${seed}`, seed))
    }).toThrow('is full')
    // The rest of the last page.
    expect(() => {
      for (let i = 0; i < 500; i++) full.claim({ namespace: NAMESPACE, id: `${i}` }, false)
      for (let i = 0; i < 10_000; i++) {
        const { isUnclaimed } = full.claim({ namespace: NAMESPACE, id: `c${i}` }, true)
        if (isUnclaimed) throw new Error('unclaimed')
      }
    }).toThrow('unclaimed')
    const [mine, theirs] = ['mine', 'theirs'].map((id) => ({ namespace: NAMESPACE, id }))
    for (const name of [mine!, theirs!])
      expect(full.claim(name, true)).toMatchObject({ session: null, isUnclaimed: true })
    // An existing session cannot be used without a claim.
    expect(() => full.claim({ namespace: NAMESPACE, id: 's1' }, true)).not.toThrow()
    const other = open(folder)
    other.commit(changeOf('theirs', 7))
    full.commit({
      puts: [],
      deleteKeys: [],
      sessions: [1, 2, 3, 4].map((i) => ({ namespace: NAMESPACE, id: `s${i}`, record: null })),
    })
    const both = [changeOf('mine', 8), changeOf('theirs', 9)]
    const lost = full.commit({
      puts: both.flatMap(({ puts }) => puts),
      sessions: both.flatMap(({ sessions }) => sessions),
      deleteKeys: [],
      unclaimed: [mine!, theirs!],
    })
    expect(lost).toEqual([theirs])
    expect(contentOf(other)).toMatchObject({ mine: 8, theirs: 7 })
    expect(() => full.load('key theirs 9', NAMESPACE)).toThrow('not there')
    // Now it is claimed.
    expect(() => other.commit(changeOf('mine', 10))).toThrow('another worker')
    full.close()
    other.close()
  })

  test('if the row of a state does not fit, its file is deleted, and written again when the row fits', () => {
    const folder = newFolder()
    const database = open(folder, { maxPages: 16, maxInlineBytes: 10 })
    const wide = (seed: number): StoreChange => {
      const { sessions, ...change } = changeOf(`s${seed}`, seed)
      const [{ record, ...name }] = sessions as [(typeof sessions)[0]]
      const turns = Array.from({ length: 40 }, () => record!.turns[0]!)
      return { ...change, sessions: [{ ...name, record: { ...record!, turns } }] }
    }
    let seed = 1
    expect(() => {
      for (; seed < 100; seed++) database.commit(wide(seed))
    }).toThrow('cannot be written: database or disk is full')
    database.purge()
    expect(blobsIn(folder)).not.toContain(`key s${seed} ${seed}`)
    expect(blobsIn(folder)).toHaveLength(seed - 1)
    const sessions = [1, 2].map((old) => ({ namespace: NAMESPACE, id: `s${old}`, record: null }))
    expect(() => database.commit(wide(seed))).toThrow('is full')
    database.commit({ puts: [], sessions, deleteKeys: [] })
    expect(() => database.commit(wide(seed))).not.toThrow()
    database.purge()
    expect(blobsIn(folder)).toHaveLength(seed - 2)
    expect(contentOf(database)).toMatchObject({ [`s${seed}`]: seed })
    database.close()
  })

  test('unreferenced states and stray files are deleted at the next start', () => {
    const folder = newFolder()
    const database = open(folder, { maxInlineBytes: 10 })
    const { puts } = changeOf('a', 1)
    database.commit({ puts, sessions: [], deleteKeys: [] })
    database.commit(changeOf('b', 2))
    writeFileSync(join(folder, 'states', 'half-written.tmp'), 'x')
    expect(blobsIn(folder)).toHaveLength(3)
    database.close()
    const restarted = open(folder)
    expect(blobsIn(folder)).toHaveLength(1)
    expect(() => restarted.load('key a 1', NAMESPACE)).toThrow('not there')
    expect(contentOf(restarted)).toEqual({ b: 2 })
    restarted.close()
  })

  test('a missing file is reported without its path', () => {
    const folder = newFolder()
    const database = open(folder, { maxInlineBytes: 10 })
    database.commit(changeOf('a', 1))
    rmSync(join(folder, 'states', 'key a 1'))
    expect(() => database.load('key a 1', NAMESPACE)).toThrow(
      /^a state cannot be read: ENOENT: no such file or directory$/,
    )
    database.close()
  })

  test('a file that does not belong to its state is refused', () => {
    const folder = newFolder()
    const database = open(folder, { maxInlineBytes: 10 })
    database.commit(changeOf('a', 1))
    database.commit(changeOf('b', 2))
    copyFileSync(join(folder, 'states', 'key a 1'), join(folder, 'states', 'key b 2'))
    expect(() => database.load('key b 2', NAMESPACE)).toThrow('another state is in its place')
    database.close()
  })
})

describe('several processes', () => {
  const name = { namespace: NAMESPACE, id: 'a' }
  const release = { puts: [], sessions: [], deleteKeys: [], releases: [name] }

  test('one process writes to a session at a time, and all can read it', () => {
    const folder = newFolder()
    const [one, two] = [open(folder), open(folder)]
    expect(one.claim(name, false).session).toBeNull()
    expect(two.claim(name, true).session).toBeNull()
    expect(() => one.claim(name, true)).toThrow('in the hands of another worker')
    two.commit(changeOf('a', 1))
    expect(() => one.claim(name, false)).toThrow(SkeinError)
    expect(() => one.commit(changeOf('a', 2))).toThrow('in the hands of another worker')
    expect(one.find(name)?.record.version).toBe(1)
    expect(one.load('key a 1', NAMESPACE)).toEqual(snapshotOf(1))
    // Releasing a session of another worker is no error, and does not take it from that worker.
    one.commit({ ...changeOf('own', 1), releases: [name] })
    expect(one.find({ ...name, id: 'own' })?.record.version).toBe(1)
    expect(() => one.claim(name, false)).toThrow('in the hands of another worker')
    two.commit(release)
    expect(one.claim(name, false).session?.record.version).toBe(1)
    expect(() => two.claim(name, false)).toThrow('in the hands of another worker')
    one.close()
    expect(two.claim(name, false).session?.record.version).toBe(1)
    two.close()
  })

  test('another program sees that the database is in use, also through the second connection', () => {
    const folder = newFolder()
    const one = open(folder)
    const reader = open(folder, { owner: one.owner })
    one.commit(changeOf('a', 1))
    // Like an older sqlite3 at close, it wants an exclusive lock to remove the log.
    const program = `
      const { DatabaseSync } = require(process.argv[1])
      const db = new DatabaseSync(process.argv[2], { timeout: 0 })
      db.exec('PRAGMA locking_mode = EXCLUSIVE')
      db.prepare('SELECT count(*) FROM sessions').get()`
    const driver = createRequire(import.meta.url).resolve('@photostructure/sqlite')
    const path = join(folder, 'sessions.db')
    const { stderr } = spawnSync(process.execPath, ['-e', program, driver, path])
    expect(stderr.toString()).toContain('database is locked')
    for (const each of [reader, one]) each.close()
  })

  test('version numbers that a process may have reported but not written are not reused', () => {
    const versionIn = (options: Partial<DatabaseOptions>) => {
      const folder = newFolder()
      const one = open(folder)
      one.commit(changeOf('a', 7))
      one.commit(changeOf('b', 7))
      one.commit({ ...release, releases: [{ namespace: NAMESPACE, id: 'b' }] })
      // As after its death: nobody holds the lock of the writer.
      const left = newFolder()
      cpSync(folder, left, { recursive: true })
      one.close()
      const next = open(left, options)
      const versions = ['a', 'b'].map((id) => next.find({ ...name, id })?.record.version)
      expect(next.claim(name, false).session?.record).toMatchObject({ head: 1, nextTurn: 2 })
      next.close()
      return versions
    }
    expect(versionIn({})).toEqual([1007, 7])
    // Durable data was written before it was reported; not every connection of such a store is durable.
    expect(versionIn({ isDurable: true })).toEqual([7, 7])
    expect(versionIn({ isToldFirst: false })).toEqual([7, 7])
  })

  test('a record that no disk or column can take is refused; a full disk is different', () => {
    let code = 'EFBIG'
    const files: FileLayer = {
      ...realFiles,
      write() {
        throw Object.assign(new Error(`${code}: it was not written`), { code })
      },
    }
    const database = open(newFolder(), { maxInlineBytes: 10, files })
    const codeOf = (change: StoreChange) => {
      try {
        database.commit(change)
      } catch (error) {
        return error instanceof SkeinError && error.code
      }
      return 'written'
    }
    expect(codeOf(changeOf('a', 1))).toBe('state_refused')
    code = 'ENOSPC'
    expect(codeOf(changeOf('a', 1))).toBe('state_unavailable')
    const [{ record, ...name }] = changeOf('a', 1).sessions as [StoredSession] // it has one
    const put = (more: object) => ({
      puts: [],
      deleteKeys: [],
      sessions: [{ ...name, record: { ...record, ...more } }],
    })
    for (const more of [{ updatedAt: 0.5 }, { updatedAt: Number.NaN }, { turns: [{}] }])
      expect(codeOf(put(more))).toBe('state_refused')
    expect(codeOf(put({}))).toBe('written')
    database.close()
  })

  test('a start does not touch what another process is writing, has written, or has claimed', () => {
    const folder = newFolder()
    const starts: StoreDatabase[] = []
    const files: FileLayer = {
      ...realFiles,
      write(path, parts) {
        realFiles.write(path, parts)
        starts.push(open(folder))
      },
      rename(from, to) {
        realFiles.rename(from, to)
        // Only the lock of the database keeps a start from taking it here.
        const quick = openDatabase(join(folder, 'sessions.db'), { timeout: 0 })
        expect(() => quick.exec('BEGIN IMMEDIATE')).toThrow('locked')
        quick.close()
      },
    }
    const one = open(folder, { maxInlineBytes: 10, files })
    one.commit(changeOf('a', 1))
    starts.push(open(folder))
    expect(contentOf(one)).toEqual({ a: 1 })
    expect(() => starts[1]!.claim(name, false)).toThrow('in the hands of another worker')
    for (const each of [one, ...starts]) each.close()
  })

  test('a state is deleted with the last session that uses it, whichever session that is', () => {
    const folder = newFolder()
    const [one, two] = [1, 2].map(() => open(folder, { maxInlineBytes: 10 }))
    one!.commit(changeOf('a', 1))
    const forked = changeOf('a', 1).sessions.map((session) => ({ ...session, id: 'b' }))
    one!.commit({ puts: [], sessions: forked, deleteKeys: [] })
    one!.commit({ ...release, releases: [{ namespace: NAMESPACE, id: 'b' }] })
    two!.claim({ namespace: NAMESPACE, id: 'b' }, false)
    const gone = (id: string) => ({
      puts: [],
      sessions: [{ namespace: NAMESPACE, id, record: null }],
      deleteKeys: ['key a 1'],
    })
    two!.commit(gone('b'))
    expect(contentOf(one!)).toEqual({ a: 1 })
    one!.commit(gone('a'))
    expect([contentOf(one!), blobsIn(folder)]).toEqual([{}, []])
    for (const each of [one!, two!]) each.close()
  })

  test('a fork in the change that deletes its original still has the states', () => {
    const folder = newFolder()
    const store = open(folder, { maxInlineBytes: 10 })
    store.commit(changeOf('a', 1))
    const [session] = changeOf('a', 1).sessions
    const sessions = [
      { ...session!, record: null },
      { ...session!, id: 'b' },
    ]
    store.commit({ puts: [], sessions, deleteKeys: [] })
    expect([contentOf(store), blobsIn(folder)]).toEqual([{ b: 1 }, ['key a 1']])
    store.close()
  })

  test('a state is deleted when the record of its session no longer names it, whenever that is written', () => {
    const folder = newFolder()
    const store = open(folder, { maxInlineBytes: 10 })
    store.commit(changeOf('a', 1))
    // Pruned, while the turn that replaced it is still being copied.
    store.commit({ puts: [], sessions: [], deleteKeys: ['key a 1'] })
    expect(contentOf(store)).toEqual({ a: 1 })
    store.commit(changeOf('a', 2))
    store.purge()
    expect([contentOf(store), blobsIn(folder)]).toEqual([{ a: 2 }, ['key a 2']])
    store.close()
  })

  test('a state takes the pages of the one that goes with it, so each is written once', () => {
    const folder = newFolder()
    const store = open(folder)
    const lengthOf = (change: StoreChange) => {
      store.checkpoint()
      store.commit(change)
      return statSync(join(folder, 'sessions.db-wal')).size
    }
    lengthOf(changeOf('a', 1))
    const added = lengthOf(changeOf('b', 1))
    const replaced = lengthOf(changeOf('a', 2))
    expect(replaced - added).toBeLessThan(2 * 4096)
    expect(contentOf(store)).toEqual({ a: 2, b: 1 })
    store.close()
  })

  test('sessions that are claimed together get what each would alone', () => {
    const folder = newFolder()
    const [one, two] = [open(folder), open(folder)]
    one.commit(changeOf('mine', 1))
    two.commit(changeOf('theirs', 2))
    const ask = (id: string, mayCreate: boolean) => ({ name: { namespace: NAMESPACE, id }, mayCreate })
    const [theirs, absent, fresh, mine] = one.claimAll([
      ...[ask('theirs', true), ask('absent', false), ask('fresh', true), ask('mine', true)],
    ])
    expect(theirs).toMatchObject({ code: 'conflict' })
    const others = { sessions: 1, bytes: 1 }
    expect(absent).toEqual({ session: null, others })
    expect(fresh).toEqual({ session: null, others })
    expect(mine).toMatchObject({ session: { id: 'mine', record: { version: 1 } }, others })
    expect(() => two.claim(ask('fresh', true).name, true)).toThrow('another worker')
    expect(two.claim(ask('absent', true).name, true).session).toBe(null)
    one.close()
    two.close()
  })

  test('the log is emptied by one for all', () => {
    const folder = newFolder()
    const [one, two] = [open(folder, { maxInlineBytes: 10 }), open(folder, { maxInlineBytes: 10 })]
    one.commit(changeOf('a', 1))
    one.commit(changeOf('a', 2, ['key a 1']))
    one.purge(60_000)
    expect(blobsIn(folder)).toContain('key a 1')
    two.commit(changeOf('b', 1))
    two.checkpoint()
    one.purge(60_000)
    expect(blobsIn(folder).toSorted()).toEqual(['key a 2', 'key b 1'])
    one.close()
    two.close()
  })

  test('a tenant is charged for what it has elsewhere, and once for shared states', () => {
    const folder = newFolder()
    const [one, two] = [open(folder), open(folder)]
    one.commit(changeOf('a', 1))
    const forked = changeOf('a', 1).sessions.map((session) => ({ ...session, id: 'b' }))
    one.commit({ puts: [], sessions: forked, deleteKeys: [] })
    expect(two.usage(NAMESPACE)).toEqual({ sessions: 2, bytes: 1 })
    expect(two.usage('other')).toEqual({ sessions: 0, bytes: 0 })
    expect(one.usage(NAMESPACE)).toEqual({ sessions: 0, bytes: 0 })
    one.close()
    two.claim({ namespace: NAMESPACE, id: 'b' }, false)
    expect(two.usage(NAMESPACE)).toEqual({ sessions: 1, bytes: 1 })
    two.close()
  })

  test('expired sessions are deleted if nobody has claimed them, or when somebody claims them', () => {
    const folder = newFolder()
    let now = 0
    const options = { maxInlineBytes: 10, now: () => now }
    const [one, two] = [open(folder, options), open(folder, options)]
    for (const id of ['a', 'b']) {
      const { puts, sessions, deleteKeys } = changeOf(id, 1)
      const timed = sessions.map((each) => ({ ...each, record: { ...each.record!, ttlMs: 9 } }))
      one.commit({ puts, sessions: timed, deleteKeys })
    }
    now = 10
    two.expire()
    expect(blobsIn(folder)).toHaveLength(2)
    one.close()
    expect([two.find(name), two.list(NAMESPACE, { limit: 9, after: null })]).toEqual([null, []])
    expect(two.claim(name, false).session).toBeNull()
    expect(blobsIn(folder)).toHaveLength(1)
    two.expire()
    expect(blobsIn(folder)).toHaveLength(0)
    two.close()
  })

  test('lists are paged, latest first', () => {
    const folder = newFolder()
    const [one, two] = [open(folder), open(folder)]
    for (const [i, id] of ['d', 'a', 'c', 'b', 'e'].entries()) {
      const { puts, sessions, deleteKeys } = changeOf(id, 1)
      const updatedAt = i < 2 ? 5 : i
      const aged = sessions.map((each) => ({ ...each, record: { ...each.record!, updatedAt } }))
      one.commit({ puts, sessions: aged, deleteKeys })
    }
    const ids = (after: { updatedAt: number; id: string } | null) =>
      two.list(NAMESPACE, { limit: 2, after }).map(({ id }) => id)
    expect(ids(null)).toEqual(['a', 'd'])
    expect(ids({ updatedAt: 5, id: 'd' })).toEqual(['e', 'b'])
    expect(ids({ updatedAt: 3, id: 'b' })).toEqual(['c'])
    expect(one.list(NAMESPACE, { limit: 9, after: null })).toEqual([])
    for (const each of [one, two]) each.close()
  })
})

test('a store of the first format is converted, with sessions, states and files', () => {
  const folder = newFolder()
  const database = open(folder, { maxInlineBytes: 10 })
  for (const [id, ttlMs] of [
    ['a', 10],
    ['b', null],
  ] as const) {
    const { puts, sessions, deleteKeys } = changeOf(id, 1)
    const timed = sessions.map((each) => ({ ...each, record: { ...each.record!, ttlMs } }))
    database.commit({ puts, sessions: timed, deleteKeys })
  }
  database.close()
  const db = openDatabase(join(folder, 'sessions.db'), { timeout: 5000 })
  db.exec(`
    DROP TABLE uses; DROP TABLE claims;
    CREATE TABLE old (namespace TEXT, id TEXT, record TEXT NOT NULL, PRIMARY KEY (namespace, id)) STRICT, WITHOUT ROWID;
    INSERT INTO old SELECT namespace, id, record FROM sessions;
    DROP TABLE sessions; ALTER TABLE old RENAME TO sessions;
    UPDATE states SET file = 'digest ' || key; PRAGMA user_version = 1;
  `)
  db.close()
  for (const file of blobsIn(folder)) {
    renameSync(join(folder, 'states', file), join(folder, 'states', `digest ${file}`))
  }
  let now = 10
  const again = open(folder, { maxInlineBytes: 10, now: () => now })
  expect(contentOf(again)).toEqual({ a: 1, b: 1 })
  expect(again.usage(NAMESPACE)).toEqual({ sessions: 2, bytes: 2 })
  now = 11
  // Also before it is deleted.
  expect(again.usage(NAMESPACE)).toEqual({ sessions: 1, bytes: 1 })
  again.expire()
  expect([contentOf(again), blobsIn(folder)]).toEqual([{ b: 1 }, ['digest key b 1']])
  again.close()
})

test('opening a store that is as it should be waits for no transaction of others', () => {
  const folder = newFolder()
  const one = open(folder)
  one.commit(changeOf('a', 1))
  const writer = openDatabase(join(folder, 'sessions.db'), { timeout: 0 })
  writer.exec('BEGIN IMMEDIATE')
  // A second connection of the process, which has no owner to register.
  const reader = open(folder, { owner: one.owner })
  expect(contentOf(reader)).toEqual({ a: 1 })
  writer.exec('COMMIT')
  for (const each of [writer, reader, one]) each.close()
})

/** Another process that is creating the database, for 300 milliseconds after it says so. */
const MAKER = `
  const { parentPort, workerData } = require('node:worker_threads')
  const db = new (require(workerData.sqlite).DatabaseSync)(workerData.path)
  db.exec('BEGIN IMMEDIATE; CREATE TABLE theirs (x)')
  parentPort.postMessage('began')
  setTimeout(() => { db.exec('COMMIT'); db.close() }, 300)
`

test('opening waits for a database that another process is creating', async () => {
  const folder = newFolder()
  const path = join(folder, 'sessions.db')
  const sqlite = createRequire(import.meta.url).resolve('@photostructure/sqlite')
  const maker = new Worker(MAKER, { eval: true, workerData: { sqlite, path } })
  const ended = new Promise((resolve) => maker.once('exit', resolve))
  await new Promise((resolve) => maker.once('message', resolve))
  const database = open(folder)
  database.commit(changeOf('a', 1))
  expect(contentOf(database)).toEqual({ a: 1 })
  database.close()
  await ended
})

/** Empties the log; meanwhile it waits for readers, and no other may. */
const EMPTIER = `
  const { parentPort, workerData } = require('node:worker_threads')
  const { DatabaseSync } = require(workerData.sqlite)
  const db = new DatabaseSync(workerData.path, { timeout: 10000 })
  let busy
  do ({ busy } = db.prepare('PRAGMA wal_checkpoint(TRUNCATE)').get())
  while (busy !== 0)
  db.close()
`

test('files that nothing refers to stay while another empties the log', async () => {
  const folder = newFolder()
  const path = join(folder, 'sessions.db')
  const database = open(folder, { maxInlineBytes: 10 })
  database.commit(changeOf('a', 1))
  const reader = openDatabase(path, { timeout: 0 })
  reader.exec('BEGIN')
  reader.prepare('SELECT count(*) FROM sessions').get()
  database.commit(changeOf('a', 2, ['key a 1']))
  const sqlite = createRequire(import.meta.url).resolve('@photostructure/sqlite')
  const emptier = new Worker(EMPTIER, { eval: true, workerData: { sqlite, path } })
  const ended = new Promise((resolve) => emptier.once('exit', resolve))
  const looker = openDatabase(path, { timeout: 0 })
  const isEmptied = () => {
    const [result] = looker.pragma('wal_checkpoint(PASSIVE)') as { busy: number }[] // its three columns
    return result!.busy !== 0
  }
  await vi.waitUntil(isEmptied, { timeout: 10_000 })
  // The removal is in the log alone, and may not be on disk: after a crash of the machine the row would be back.
  database.checkpoint(true)
  expect(blobsIn(folder).toSorted()).toEqual(['key a 1', 'key a 2'])
  reader.exec('COMMIT')
  await ended
  database.checkpoint(true)
  expect(blobsIn(folder)).toEqual(['key a 2'])
  for (const one of [looker, reader, database]) one.close()
})
