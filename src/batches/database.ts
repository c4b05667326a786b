/**
 * The tables of files and batches, in a SQLite file of their own in the data folder, which several servers may share. Knows
 * rows, not what they mean.
 */
import { closeSync, openSync } from 'node:fs'
import { type Database, openDatabase } from '../state/store/sqlite.ts'

const LOCK_TIMEOUT_MS = 5000

const TABLES = `
  CREATE TABLE IF NOT EXISTS files (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, filename TEXT NOT NULL, purpose TEXT NOT NULL,
    bytes INTEGER NOT NULL, created INTEGER NOT NULL, expires INTEGER
  ) WITHOUT ROWID;
  CREATE INDEX IF NOT EXISTS files_of ON files (tenant, created);
  CREATE TABLE IF NOT EXISTS batches (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, status TEXT NOT NULL, created INTEGER NOT NULL,
    data TEXT NOT NULL, owner TEXT, lease INTEGER NOT NULL DEFAULT 0
  ) WITHOUT ROWID;
  CREATE INDEX IF NOT EXISTS batches_of ON batches (tenant, created);
  CREATE INDEX IF NOT EXISTS batches_in ON batches (status, created);
  CREATE TABLE IF NOT EXISTS results (
    batch TEXT NOT NULL, line INTEGER NOT NULL, failed INTEGER NOT NULL, text TEXT NOT NULL,
    PRIMARY KEY (batch, line)
  ) WITHOUT ROWID;`

/** Made where it is not there yet. */
export function openBatchDatabase(path: string): Database {
  closeSync(openSync(path, 'a', 0o600))
  const db = openDatabase(path, { timeout: LOCK_TIMEOUT_MS })
  try {
    db.exec('PRAGMA journal_mode = WAL')
    db.exec('PRAGMA synchronous = NORMAL')
    db.exec(TABLES)
    return db
  } catch (error) {
    db.close()
    throw error
  }
}
