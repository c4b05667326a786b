/** The tables of a store, and how those of earlier formats become them. */
import { SkeinError } from '../../errors.ts'
import type { Database } from './sqlite.ts'

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

/** Throws state_incompatible for what a later Skein has written. */
export function prepareTables(db: Database): void {
  db.transaction(() => {
    const format = Number(db.pragma('user_version', { simple: true }))
    if (format > FORMAT) {
      throw new SkeinError(
        'state_incompatible',
        `${db.location()} was written by a later Skein (format ${format}); this one reads format ${FORMAT}`,
      )
    }
    if (format === 1) db.exec(FROM_1)
    if (format < FORMAT) db.exec(TABLES)
    if (format === 1) db.exec(FROM_1_USES)
    db.pragma(`user_version = ${FORMAT}`)
  }).immediate()
}
