/**
 * A Store over a database in the test's own thread, since a thread needs built code. Like the real one it answers
 * later, in order, and copies what it is given. Reopening the folder is a restart.
 */
import { mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { ModelIdentity } from '../../src/state/snapshot.ts'
import { type DatabaseOptions, StoreDatabase } from '../../src/state/store/database.ts'
import { openSecret } from '../../src/state/store/secret.ts'
import type { Store, StoreChange } from '../../src/state/store/store.ts'

/** Of a small model. */
export const IDENTITY: ModelIdentity = {
  architecture: 'rwkv7',
  layers: 2,
  channels: 128,
  heads: 2,
  headSize: 64,
  vocabulary: 'v',
  weights: 'w',
}

export function newFolder(): string {
  return mkdtempSync(join(tmpdir(), 'skein-store-'))
}

export interface DirectStore extends Store {
  readonly database: StoreDatabase
  /** Called before each commit; may throw. */
  onCommit: (change: StoreChange) => void
  /** While set, no state is read and nothing written. */
  isHeld: boolean
  /** What was asked of it beside that has been answered. */
  answered(): Promise<void>
}

export function openDirectStore(
  folder: string,
  identity: ModelIdentity,
  options: Partial<DatabaseOptions> = {},
): DirectStore {
  const database = new StoreDatabase({ folder, identity, isDurable: false, ...options })
  let last: Promise<unknown> = Promise.resolve()
  const later = <T>(work: () => T): Promise<T> => {
    const turn = last.then(async () => {
      do await new Promise((resolve) => setTimeout(resolve, 0))
      while (store.isHeld)
      return work()
    })
    last = turn.catch(() => {})
    return turn
  }
  let lastSoon: Promise<unknown> = Promise.resolve()
  const soon = <T>(work: () => T): Promise<T> => {
    const turn = lastSoon.then(work)
    lastSoon = turn.catch(() => {})
    return turn
  }
  const store: DirectStore = {
    database,
    secret: openSecret(folder),
    onCommit: () => {},
    isHeld: false,
    load: (key, namespace) => later(() => database.load(key, namespace)),
    claim: (name, mayCreate) => soon(() => database.claim(name, mayCreate)),
    find: (name) => soon(() => database.find(name)),
    list: (namespace, page) => soon(() => database.list(namespace, page)),
    usage: (namespace) => soon(() => database.usage(namespace)),
    expire: () => soon(() => database.expire()),
    commit: (change) => {
      const copy = structuredClone(change)
      return later(() => {
        store.onCommit(copy)
        database.commit(copy)
      })
    },
    answered: () => new Promise((resolve) => setTimeout(resolve, 0)),
    close: () => later(() => database.close()),
  }
  return store
}
