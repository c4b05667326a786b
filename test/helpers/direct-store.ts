/**
 * A Store over a database in the test's own thread, since a thread needs built code. Like the real one it answers
 * later, in order, and copies its arguments. Reopening the folder is a restart.
 */
import { createHash } from 'node:crypto'
import { mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll } from 'vitest'
import { Database } from '../../src/cluster/database.ts'
import { LeaseView } from '../../src/cluster/lease-view.ts'
import { SharedStore } from '../../src/state/shared/shared-store.ts'
import type { ModelIdentity, Snapshot } from '../../src/state/snapshot.ts'
import { type DatabaseOptions, StoreDatabase } from '../../src/state/store/database.ts'
import { openSecret } from '../../src/state/store/secret.ts'
import { openDatabase } from '../../src/state/store/sqlite.ts'
import type { SessionName, Store, StoreChange, StoredSession } from '../../src/state/store/store.ts'
import { type Postgres, startPostgres } from './postgres.ts'

/** The identity of a small model. */
export const IDENTITY: ModelIdentity = {
  architecture: 'rwkv7',
  layers: 2,
  channels: 128,
  heads: 2,
  headSize: 64,
  vocabulary: 'v',
  weights: 'w',
}

/** Of a model whose states are those of `snapshotOf`. */
export const ONE_LAYER: ModelIdentity = { ...IDENTITY, layers: 1, channels: 64, heads: 1 }

/** 16 KB, recognisable by its seed. */
export function snapshotOf(seed: number): Snapshot {
  return {
    tokens: Int32Array.from({ length: 50 }, (_, i) => seed + i),
    tail: Int32Array.of(seed),
    state: [new Float32Array(128).fill(seed), Float32Array.from({ length: 4096 }, (_, i) => seed + i / 4096)],
  }
}

export function newFolder(): string {
  return mkdtempSync(join(tmpdir(), 'skein-store-'))
}

export interface DirectStore extends Store {
  /** Called before each commit; may throw. */
  onCommit: (change: StoreChange) => void
  /** While set, reads and writes wait. */
  isHeld: boolean
  /** Resolves when all calls that are not held have been answered. */
  answered(): Promise<void>
}

/** A store as its thread would have it. */
type Behind = Pick<DirectStore, 'secret' | 'lease' | 'prefixes'> & {
  [M in 'load' | 'claim' | 'find' | 'list' | 'usage' | 'expire' | 'close']: (
    ...given: Parameters<Store[M]>
  ) => ReturnType<Store[M]> | Awaited<ReturnType<Store[M]>>
} & { commit(change: StoreChange): ReturnType<Store['commit']> | readonly SessionName[] }

export type DirectOptions = Pick<Partial<DatabaseOptions>, 'now' | 'maxInlineBytes' | 'isToldFirst'>

type Maker = (folder: string, identity: ModelIdentity, options: DirectOptions) => Behind

const overSqlite: Maker = (folder, identity, options) => {
  const database = new StoreDatabase({ folder, identity, isDurable: false, ...options })
  return {
    secret: openSecret(folder),
    lease: null,
    load: (key, namespace) => database.load(key, namespace),
    claim: (name, mayCreate) => database.claim(name, mayCreate),
    find: (name) => database.find(name),
    list: (namespace, page) => database.list(namespace, page),
    usage: (namespace) => database.usage(namespace),
    expire: () => database.expire(),
    commit(change) {
      database.commit(change)
      return []
    },
    close: () => database.close(),
  }
}

/** Of a folder: its database. */
const databases = new Map<string, string>()

const overShared =
  (postgres: () => Postgres): Maker =>
  (folder, identity, options) => {
    const database = databases.get(folder) ?? postgres().newDatabase()
    databases.set(folder, database)
    const secret = createHash('sha256').update(folder).digest()
    const lease = new LeaseView()
    const store = SharedStore.open({
      database,
      blobs: `file://${folder}/blobs`,
      identity,
      worker: { node: 'n', url: 'http://n', model: 'm', slots: 1, info: {} },
      leaseWords: lease.words,
      ...options,
      isToldFirst: options.isToldFirst ?? true,
    })
    // The first caller gets the reason why it cannot be opened.
    store.catch(() => {})
    return {
      secret,
      lease: null,
      load: async (key, namespace) => (await store).load(key, namespace),
      claim: async (name, mayCreate) => (await store).claim(name, mayCreate),
      find: async (name) => (await store).find(name),
      list: async (namespace, page) => (await store).list(namespace, page),
      usage: async (namespace) => (await store).usage(namespace),
      expire: async () => (await store).expire(),
      commit: async (change) => (await store).commit(change),
      close: async () => (await store).close(),
      prefixes: {
        find: async (...given) => (await store).prefixes.find(...given),
        publish: async (prefix) => (await store).prefixes.publish(prefix),
        remove: async (...given) => (await store).prefixes.remove(...given),
      },
    }
  }

let maker = overSqlite

/** The stored rows of a folder, as another process sees them. */
export async function storedIn(folder: string): Promise<StoredSession[]> {
  const url = databases.get(folder)
  if (url === undefined) {
    const db = openDatabase(join(folder, 'sessions.db'), { timeout: 5000 })
    const rows = db.prepare('SELECT namespace, id, record FROM sessions ORDER BY id').all()
    db.close()
    const found = rows as (SessionName & { readonly record: string })[] // the columns named
    return found.map((row) => ({ ...row, record: JSON.parse(row.record) }))
  }
  const database = await Database.open(url)
  const { rows } = await database.query<StoredSession>(
    'select tenant as namespace, id, record from session where record is not null order by id',
  )
  await database.close()
  return [...rows]
}

/** From here on the tests of this file use a cluster's stores. */
export function useSharedStores(): void {
  let postgres: Postgres | null = null
  maker = overShared(() => postgres!)
  beforeAll(async () => {
    postgres = await startPostgres()
  })
  afterAll(async () => {
    // Other test files run in this process after this one.
    maker = overSqlite
    await postgres?.remove()
  })
}

export function openDirectStore(folder: string, identity: ModelIdentity, options: DirectOptions = {}): DirectStore {
  const behind = maker(folder, identity, options)
  const pause = () => new Promise((resolve) => setTimeout(resolve, 0))
  let last: Promise<unknown> = Promise.resolve()
  const later = <T>(work: () => T | Promise<T>): Promise<T> => {
    const turn = last.then(async () => {
      do await pause()
      while (store.isHeld)
      return work()
    })
    last = turn.catch(() => {})
    return turn
  }
  let lastSoon: Promise<unknown> = Promise.resolve()
  const soon = <T>(work: () => T | Promise<T>): Promise<T> => {
    const turn = lastSoon.then(work)
    lastSoon = turn.catch(() => {})
    return turn
  }
  const store: DirectStore = {
    secret: behind.secret,
    lease: behind.lease,
    prefixes: behind.prefixes,
    onCommit: () => {},
    retryMs: 50,
    isHeld: false,
    load: (key, namespace) => later(() => behind.load(key, namespace)),
    claim: (name, mayCreate) => soon(() => behind.claim(name, mayCreate)),
    find: (name) => soon(() => behind.find(name)),
    list: (namespace, page) => soon(() => behind.list(namespace, page)),
    usage: (namespace) => soon(() => behind.usage(namespace)),
    expire: () => soon(() => behind.expire()),
    commit: (change) => {
      const copy = structuredClone(change)
      return later(() => {
        store.onCommit(copy)
        return behind.commit(copy)
      })
    },
    async answered() {
      await pause()
      await lastSoon
      await pause()
    },
    close: () => later(() => behind.close()),
  }
  return store
}
