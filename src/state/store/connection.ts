/** Opening a store's database: its file, its log, its tables, and waiting for others that do so at the same time. */
import { accessSync, closeSync, constants, existsSync, openSync } from 'node:fs'
import { SkeinError } from '../../errors.ts'
import { unavailable } from './failures.ts'
import { LONG_BYTES } from './log.ts'
import { alone, type Database, isLocked, openDatabase } from './sqlite.ts'

/** How long to wait for other processes' transactions. */
export const LOCK_TIMEOUT_MS = 5000
/** The same while opening: workers that start together wait for each other's writes, each of which waits for the disk. */
export const OPEN_TIMEOUT_MS = 20_000
const RETRY_MS = 10

export interface ConnectionOptions {
  /** Every commit survives a loss of power; otherwise it survives only the end of the process. */
  readonly isDurable: boolean
  /** Largest size of the database file, in pages of 4 KiB. Commits beyond it fail. */
  readonly maxPages?: number | undefined
}

/** Throws conflict where another holds it alone, and state_unavailable. */
export function connect(path: string, { isDurable, maxPages }: ConnectionOptions): Database {
  createFile(path)
  const db = openDatabase(path, { timeout: LOCK_TIMEOUT_MS })
  try {
    useLog(db)
    db.pragma(`synchronous = ${isDurable ? 'FULL' : 'NORMAL'}`)
    db.pragma('secure_delete = ON')
    db.pragma('temp_store = MEMORY')
    // SQLite would do it after any commit, in the turn of whoever made that (log.ts).
    db.pragma('wal_autocheckpoint = 0')
    db.pragma(`journal_size_limit = ${LONG_BYTES}`)
    if (maxPages !== undefined) db.pragma(`max_page_count = ${maxPages}`)
    prepareTables(db)
    return db
  } catch (error) {
    db.close()
    throw isLocked(error) ? inUse(path) : error instanceof SkeinError ? error : unavailable('opened', error)
  }
}

/**
 * SQLite gives its log the mode of the database. An existing file is not opened: closing it would end the locks that
 * other connections of this process hold on it, and the next one to close the database would remove the log.
 */
function createFile(path: string): void {
  try {
    closeSync(openSync(path, 'wx', 0o600))
  } catch (error) {
    if (!existsSync(path)) throw error
    // Says why it cannot be written to, where SQLite only says that.
    accessSync(path, constants.R_OK | constants.W_OK)
  }
}

/**
 * Waits for another process that creates the same database at that moment, as replicas of a model do at their first
 * start: SQLite refuses this step at once, whatever its timeout.
 */
function useLog(db: Database): void {
  const end = performance.now() + LOCK_TIMEOUT_MS
  for (;;) {
    try {
      // exec: an error of db.pragma lacks SQLite's code.
      db.exec('PRAGMA journal_mode = WAL')
      return
    } catch (error) {
      if (!isLocked(error) || performance.now() > end) throw error
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, RETRY_MS)
    }
  }
}

/** Earlier versions of Skein lock the whole database. */
function inUse(path: string): SkeinError {
  const message = `${path} is in use by another process that does not share it; stop it, or give this one its own --data-dir or --no-store`
  return new SkeinError('conflict', message)
}

/** 1: one process at a time; sessions of two columns, states named by their content. */
const FORMAT = 2

/**
 * states: inline, or in a file. uses: which sessions need which state, and its size. claims: which process writes to
 * which session; there may be one before the session has a turn.
 */
const TABLES = `
  CREATE TABLE IF NOT EXISTS states (key TEXT PRIMARY KEY, inline BLOB, file TEXT) STRICT;
  CREATE INDEX IF NOT EXISTS states_by_file ON states (file) WHERE file IS NOT NULL;
  CREATE TABLE IF NOT EXISTS sessions (
    namespace TEXT, id TEXT, record TEXT NOT NULL,
    updated INTEGER NOT NULL DEFAULT 0, expires INTEGER,
    PRIMARY KEY (namespace, id)
  ) STRICT, WITHOUT ROWID;
  CREATE TABLE IF NOT EXISTS uses (
    namespace TEXT, id TEXT, key TEXT, bytes INTEGER NOT NULL, PRIMARY KEY (namespace, id, key)
  ) STRICT, WITHOUT ROWID;
  CREATE INDEX IF NOT EXISTS uses_by_key ON uses (key);
  CREATE TABLE IF NOT EXISTS claims (
    namespace TEXT, id TEXT, owner TEXT NOT NULL, PRIMARY KEY (namespace, id)
  ) STRICT, WITHOUT ROWID;
  CREATE INDEX IF NOT EXISTS claims_by_owner ON claims (owner);
`

/** Between the tables of format 1 and TABLES, which leaves a table alone that is there. */
const FROM_1 = `
  ALTER TABLE sessions ADD COLUMN updated INTEGER NOT NULL DEFAULT 0;
  ALTER TABLE sessions ADD COLUMN expires INTEGER;
  UPDATE sessions SET
    updated = json_extract(record, '$.updatedAt'),
    expires = json_extract(record, '$.updatedAt') + json_extract(record, '$.ttlMs');
`
const FROM_1_USES = `
  INSERT OR IGNORE INTO uses
    SELECT s.namespace, s.id, json_extract(t.value, '$.key'), json_extract(t.value, '$.bytes')
    FROM sessions s, json_each(s.record, '$.turns') t;
`

/** Writes nothing where nothing is to be done. Throws state_incompatible for what a later Skein has written. */
function prepareTables(db: Database): void {
  const formatOf = () => Number(db.pragma('user_version', { simple: true }))
  if (formatOf() === FORMAT) return
  alone(db, OPEN_TIMEOUT_MS, () => {
    const format = formatOf()
    if (format > FORMAT) {
      const message = `${db.location()} was written by a later Skein (format ${format}); this one reads format ${FORMAT}`
      throw new SkeinError('state_incompatible', message)
    }
    if (format === 1) db.exec(FROM_1)
    if (format < FORMAT) db.exec(TABLES)
    if (format === 1) db.exec(FROM_1_USES)
    db.pragma(`user_version = ${FORMAT}`)
  })
}
