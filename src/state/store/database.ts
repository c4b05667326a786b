/**
 * The store itself: one SQLite database and a folder of large states, of one model, in one folder that no other process
 * may use meanwhile. Synchronous; thread.ts keeps it off the engine's thread. The only file that knows of SQL.
 *
 * A change is one transaction. A state larger than a megabyte is a file, on disk under its final name before the
 * transaction that refers to it begins, and removed after the one that no longer does has ended; so whatever a crash
 * leaves behind is a file that nothing refers to, which the next start removes.
 */
import { closeSync, mkdirSync, openSync } from 'node:fs'
import { join } from 'node:path'
import Database from 'better-sqlite3'
import { SkeinError } from '../../errors.ts'
import { decodeSnapshot, encodeSnapshot, type ModelIdentity, type Snapshot } from '../snapshot.ts'
import { Blobs } from './blobs.ts'
import { type FileLayer, realFiles } from './files.ts'
import type { StatePut, StoreChange, StoredSession } from './store.ts'

export interface DatabaseOptions {
  /** Made if it is not there. */
  readonly folder: string
  readonly identity: ModelIdentity
  /** Every commit survives a loss of power; otherwise only the end of the process. */
  readonly isDurable: boolean
  readonly files?: FileLayer | undefined
  /** Larger states are files. */
  readonly maxInlineBytes?: number | undefined
  /** Of the database file, in pages of 4 KiB; commits beyond fail. */
  readonly maxPages?: number | undefined
}

const MAX_INLINE_BYTES = 2 ** 20
const MAX_WAL_BYTES = 64 * 2 ** 20
/** Another process may be on its way out. */
const LOCK_TIMEOUT_MS = 3000
const FORMAT = 1

const SCHEMA = `
  CREATE TABLE IF NOT EXISTS states (key TEXT PRIMARY KEY, inline BLOB, file TEXT) STRICT;
  CREATE INDEX IF NOT EXISTS states_by_file ON states (file) WHERE file IS NOT NULL;
  CREATE TABLE IF NOT EXISTS sessions (
    namespace TEXT, id TEXT, record TEXT NOT NULL, PRIMARY KEY (namespace, id)
  ) STRICT, WITHOUT ROWID;
`

interface StateRow {
  readonly inline: Uint8Array | null
  readonly file: string | null
}

export class StoreDatabase {
  readonly #db: Database.Database
  readonly #blobs: Blobs
  readonly #identity: ModelIdentity
  readonly #maxInlineBytes: number
  #hasUncheckpointed = false

  constructor(options: DatabaseOptions) {
    const { folder, identity, files = realFiles, maxInlineBytes = MAX_INLINE_BYTES } = options
    this.#identity = identity
    this.#maxInlineBytes = maxInlineBytes
    const blobFolder = join(folder, 'states')
    mkdirSync(blobFolder, { recursive: true, mode: 0o700 })
    this.#blobs = new Blobs(blobFolder, files)
    this.#db = open(join(folder, 'sessions.db'), options)
    try {
      this.#collect()
    } catch (error) {
      this.#db.close()
      throw error
    }
  }

  sessions(): StoredSession[] {
    const rows = this.#db.prepare('SELECT namespace, id, record FROM sessions').all()
    return (rows as { namespace: string; id: string; record: string }[]).map((row) => ({
      ...row,
      record: JSON.parse(row.record), // written by commit
    }))
  }

  /** Throws state_unavailable for what is missing, damaged or another's, state_incompatible for another model's. */
  load(key: string, namespace: string): Snapshot {
    try {
      const row = this.#rowOf(key)
      if (row === undefined) throw new SkeinError('state_unavailable', 'it is not there')
      const bytes = row.inline ?? this.#blobs.read(row.file!)
      const { snapshot, header } = decodeSnapshot(bytes, this.#identity)
      if (header.namespace !== namespace) {
        throw new SkeinError('state_unavailable', 'it belongs to another tenant')
      }
      return snapshot
    } catch (error) {
      if (error instanceof SkeinError && error.code === 'state_incompatible') throw error
      throw unavailable('read', error)
    }
  }

  /** All of it is in the store when this returns, or nothing. Throws state_unavailable. */
  commit({ put, sessions, deleteKeys }: StoreChange): void {
    const removed: string[] = []
    try {
      const row = put && this.#prepareState(put)
      this.#db.transaction(() => {
        if (put && row) this.#insert(put.key, row)
        for (const { namespace, id, record } of sessions) {
          if (record === null)
            this.#run('DELETE FROM sessions WHERE namespace = ? AND id = ?', namespace, id)
          else
            this.#run(
              'INSERT OR REPLACE INTO sessions (namespace, id, record) VALUES (?, ?, ?)',
              namespace,
              id,
              JSON.stringify(record),
            )
        }
        for (const key of deleteKeys) removed.push(...this.#delete(key))
      })()
    } catch (error) {
      throw unavailable('written', error)
    }
    this.#hasUncheckpointed = true
    for (const file of removed) this.#removeUnused(file)
    // What was deleted must not live on in the log.
    if (deleteKeys.length > 0 || sessions.some(({ record }) => record === null)) this.checkpoint()
  }

  /** Moves the log into the database and empties it. What fails here has been committed, and is tried again later. */
  checkpoint(): void {
    if (!this.#hasUncheckpointed) return
    try {
      this.#db.pragma('wal_checkpoint(TRUNCATE)')
      this.#hasUncheckpointed = false
    } catch (error) {
      process.stderr.write(`skein: the log of the store could not be emptied: ${String(error)}\n`)
    }
  }

  close(): void {
    this.#db.close()
  }

  #prepareState({ snapshot, namespace, isForeign }: StatePut): StateRow {
    const bytes = encodeSnapshot(snapshot, this.#identity, { namespace, isForeign })
    if (bytes.length <= this.#maxInlineBytes) return { inline: bytes, file: null }
    // The file ends with the digest of the rest.
    const file = Buffer.from(bytes.subarray(-32)).toString('hex')
    this.#blobs.put(file, bytes)
    return { inline: null, file }
  }

  #insert(key: string, { inline, file }: StateRow): void {
    this.#run(
      'INSERT OR REPLACE INTO states (key, inline, file) VALUES (?, ?, ?)',
      key,
      inline,
      file,
    )
  }

  #delete(key: string): string[] {
    const file = this.#rowOf(key)?.file
    this.#run('DELETE FROM states WHERE key = ?', key)
    return file ? [file] : []
  }

  #rowOf(key: string): StateRow | undefined {
    const row = this.#db.prepare('SELECT inline, file FROM states WHERE key = ?').get(key)
    return row as StateRow | undefined // the columns named
  }

  /** Two states may have the same content. A file that cannot be removed now is an orphan for the next start. */
  #removeUnused(file: string): void {
    const isUsed = this.#db.prepare('SELECT 1 FROM states WHERE file = ?').get(file) !== undefined
    if (isUsed) return
    try {
      this.#blobs.remove(file)
    } catch (error) {
      process.stderr.write(`skein: a deleted state is still on disk: ${String(error)}\n`)
    }
  }

  /** States that no session refers to, and files that no state does. */
  #collect(): void {
    const used = new Set(
      this.sessions().flatMap(({ record }) => record.turns.map(({ key }) => key)),
    )
    const keys = this.#db.prepare('SELECT key FROM states').pluck().all() as string[] // TEXT
    const unused = keys.filter((key) => !used.has(key))
    this.#db.transaction(() => {
      for (const key of unused) this.#run('DELETE FROM states WHERE key = ?', key)
    })()
    this.#hasUncheckpointed = true
    this.checkpoint()
    const files = this.#db.prepare('SELECT file FROM states WHERE file IS NOT NULL').pluck().all()
    this.#blobs.collect(new Set(files as string[])) // TEXT
  }

  #run(sql: string, ...values: readonly (string | Uint8Array | null)[]): void {
    this.#db.prepare(sql).run(...values)
  }
}

function open(path: string, { isDurable, maxPages }: DatabaseOptions): Database.Database {
  // SQLite gives its log the mode of the database.
  closeSync(openSync(path, 'a', 0o600))
  const db = new Database(path, { timeout: LOCK_TIMEOUT_MS })
  try {
    // Before the first access, so that the lock is held from then on and the log needs no shared memory.
    db.pragma('locking_mode = EXCLUSIVE')
    db.pragma('journal_mode = WAL')
    db.pragma(`synchronous = ${isDurable ? 'FULL' : 'NORMAL'}`)
    db.pragma('secure_delete = ON')
    db.pragma(`journal_size_limit = ${MAX_WAL_BYTES}`)
    if (maxPages !== undefined) db.pragma(`max_page_count = ${maxPages}`)
    const format = Number(db.pragma('user_version', { simple: true }))
    if (format > FORMAT) {
      throw new SkeinError(
        'state_incompatible',
        `${path} was written by a later Skein (format ${format}); this one reads format ${FORMAT}`,
      )
    }
    db.exec(`BEGIN IMMEDIATE; ${SCHEMA} PRAGMA user_version = ${FORMAT}; COMMIT`)
    return db
  } catch (error) {
    db.close()
    throw isLocked(error)
      ? inUse(path)
      : error instanceof SkeinError
        ? error
        : unavailable('opened', error)
  }
}

function isLocked(error: unknown): boolean {
  return error instanceof Database.SqliteError && error.code.startsWith('SQLITE_BUSY')
}

function inUse(path: string): SkeinError {
  return new SkeinError(
    'conflict',
    `${path} is in use by another process; stop it, or give this one its own --data-dir or --no-store`,
  )
}

function unavailable(what: string, error: unknown): SkeinError {
  const reason = error instanceof Error ? error.message : String(error)
  return new SkeinError('state_unavailable', `a state cannot be ${what}: ${reason}`, {
    cause: error,
  })
}
