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

export function newFolder(): string {
  return mkdtempSync(join(tmpdir(), 'skein-store-'))
}

export interface DirectStore extends Store {
  readonly database: StoreDatabase
  /** Called before each commit; may throw. */
  onCommit: (change: StoreChange) => void
  /** While set, nothing is answered. */
  isHeld: boolean
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
  const store: DirectStore = {
    database,
    secret: openSecret(folder),
    sessions: database.sessions(),
    onCommit: () => {},
    isHeld: false,
    load: (key, namespace) => later(() => database.load(key, namespace)),
    commit: (change) => {
      const copy = structuredClone(change)
      return later(() => {
        store.onCommit(copy)
        database.commit(copy)
      })
    },
    close: () => later(() => database.close()),
  }
  return store
}
