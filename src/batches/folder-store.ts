/**
 * Files and batches of one machine: rows in SQLite and contents as files of the data folder. Several servers may share
 * the folder; a batch is run by the server that holds its lease. Nothing is created on disk before the first file.
 */
import { closeSync, existsSync, openSync, readdirSync, rmSync, statSync } from 'node:fs'
import { open, readFile, rename, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { makeFolder } from '../files/make-folder.ts'
import { type Database, openDatabase } from '../state/store/sqlite.ts'
import {
  type BatchData,
  type BatchRow,
  type BatchStore,
  type Counts,
  type FileReader,
  type FileRow,
  type LineResult,
  type ResultFiles,
  UNFINISHED,
} from './store.ts'

/** Contents without a row, from a crash between the two. Another server may be about to write its row. */
const STRAY_MS = 3_600_000
const POLL_MS = 500
/** Renewed with every poll. A server that stalls for longer shares lines with another until its next result fails. */
const LEASE_MS = 5000
const MARKS = UNFINISHED.map(() => '?').join()

export class FolderBatchStore implements BatchStore {
  readonly pollMs = POLL_MS
  readonly #folder: string
  #db: Database | null = null

  constructor(folder: string) {
    this.#folder = folder
  }

  close(): void {
    this.#db?.close()
    this.#db = null
  }

  get isInUse(): boolean {
    return this.#db !== null || existsSync(this.#databasePath)
  }

  async addFile(row: FileRow, content: Uint8Array, mostBytes: number): Promise<boolean> {
    const db = this.#open()
    const sql = 'SELECT total(bytes) AS bytes FROM files WHERE tenant = ?'
    const hasRoom = () => Number(this.#get(sql, row.tenant)?.bytes ?? 0) + row.bytes <= mostBytes
    if (!hasRoom()) return false
    await this.#write(row.id, [content])
    const isKept = this.#atOnce(() => {
      if (!hasRoom()) return false
      insertFile(db, row)
      return true
    })
    if (!isKept) await rm(this.#pathOf(row.id), { force: true })
    return isKept
  }

  async file(tenant: string, id: string): Promise<FileRow | null> {
    const row = this.#get('SELECT * FROM files WHERE id = ? AND tenant = ?', id, tenant)
    return (row as FileRow | undefined) ?? null
  }

  async files(tenant: string, purpose: string | null): Promise<readonly FileRow[]> {
    const rows = this.#all('SELECT * FROM files WHERE tenant = ? ORDER BY created, id', tenant)
    const all = rows as unknown as FileRow[] // the columns are its fields
    return purpose === null ? all : all.filter((row) => row.purpose === purpose)
  }

  read({ id }: FileRow): Promise<Uint8Array> {
    return readFile(this.#pathOf(id))
  }

  async openFile(id: string): Promise<FileReader | null> {
    const file = await open(this.#pathOf(id)).catch(goneOrThrow)
    if (file === null) return null
    return {
      read: async (into, at) => (await file.read(into, 0, into.length, at)).bytesRead,
      close: () => file.close(),
    }
  }

  async removeFile({ id }: FileRow): Promise<void> {
    this.#run('DELETE FROM files WHERE id = ?', id)
    await rm(this.#pathOf(id), { force: true })
  }

  async addBatch(row: BatchRow, most: number): Promise<boolean> {
    const { id, tenant, status, created, data } = row
    const sql = `INSERT INTO batches (id, tenant, status, created, data) SELECT ?, ?, ?, ?, ?
      WHERE (SELECT count(*) FROM batches WHERE tenant = ? AND status IN (${MARKS})) < ?`
    const values = [id, tenant, status, created, JSON.stringify(data)]
    return this.#run(sql, ...values, tenant, ...UNFINISHED, most) > 0
  }

  async batch(tenant: string, id: string): Promise<BatchRow | null> {
    const row = this.#get('SELECT * FROM batches WHERE id = ? AND tenant = ?', id, tenant)
    return row === undefined ? null : batchOf(row)
  }

  async batches(tenant: string): Promise<readonly BatchRow[]> {
    const sql = 'SELECT * FROM batches WHERE tenant = ? ORDER BY created DESC, id DESC'
    return this.#all(sql, tenant).map(batchOf)
  }

  async unfinished(owner: string): Promise<readonly BatchRow[]> {
    const sql = `SELECT * FROM batches WHERE status IN (${MARKS})
      AND (owner IS NULL OR owner = ? OR lease < ?) ORDER BY created, id`
    return this.#all(sql, ...UNFINISHED, owner, Date.now()).map(batchOf)
  }

  async change(id: string, change: (batch: BatchRow) => BatchRow | null): Promise<boolean> {
    return this.#atOnce(() => {
      const row = this.#get('SELECT * FROM batches WHERE id = ?', id)
      const changed = row === undefined ? null : change(batchOf(row))
      if (changed !== null) this.#update(changed)
      return changed !== null
    })
  }

  async claim({ id, tenant }: BatchRow, owner: string): Promise<boolean> {
    const now = Date.now()
    const sql = `UPDATE batches SET owner = ?, lease = ? WHERE id = ? AND status IN (${MARKS})
      AND (owner IS NULL OR owner = ? OR lease < ?) AND NOT EXISTS (SELECT 1 FROM batches o
        WHERE o.tenant = ? AND o.id != ? AND o.owner != ? AND o.lease >= ? AND o.status IN (${MARKS}))`
    const until = now + LEASE_MS
    const values = [owner, until, id, ...UNFINISHED, owner, now, tenant, id, owner, now]
    return this.#run(sql, ...values, ...UNFINISHED) > 0
  }

  async release(owner: string): Promise<void> {
    this.#run('UPDATE batches SET owner = NULL WHERE owner = ?', owner)
  }

  async addResults(batch: string, owner: string, results: readonly LineResult[]): Promise<boolean> {
    return this.#atOnce(() => {
      if (!this.#isOwned(batch, owner)) return false
      const sql = 'INSERT OR IGNORE INTO results (batch, line, failed, text) VALUES (?, ?, ?, ?)'
      for (const { line, isFailed, text } of results) this.#run(sql, batch, line, isFailed ? 1 : 0, text)
      return true
    })
  }

  async linesDone(batch: string): Promise<ReadonlySet<number>> {
    const rows = this.#all('SELECT line FROM results WHERE batch = ?', batch)
    return new Set(rows.map(({ line }) => Number(line)))
  }

  async countsOf({ id, data }: BatchRow): Promise<Counts> {
    if (data.counts !== null) return data.counts
    const sql = 'SELECT count(*) AS lines, total(failed) AS failed FROM results WHERE batch = ?'
    const row = this.#get(sql, id)
    const failed = Number(row?.failed ?? 0)
    return { completed: Number(row?.lines ?? 0) - failed, failed }
  }

  async finish(ended: BatchRow, owner: string, files: ResultFiles): Promise<boolean> {
    const { id } = ended
    if (!this.#isOwned(id, owner)) return false
    const rows: FileRow[] = []
    for (const [isFailed, file] of [files.output, files.error].entries()) {
      if (file === null) continue
      const bytes = await this.#write(file.id, this.#resultLines(id, isFailed))
      rows.push({ ...file, bytes })
    }
    return this.#atOnce(() => {
      if (!this.#isOwned(id, owner)) return false
      for (const row of rows) insertFile(this.#open(), row)
      this.#update(ended)
      this.#run('UPDATE batches SET owner = NULL WHERE id = ?', id)
      this.#run('DELETE FROM results WHERE batch = ?', id)
      return true
    })
  }

  /** Also deletes the leftovers of a crash. */
  async tidy(now: number): Promise<void> {
    const over = this.#all('SELECT * FROM files WHERE expires <= ?', now)
    for (const row of over as unknown as FileRow[]) await this.removeFile(row)
    for (const name of readdirSync(this.#folder)) {
      const id = name.split('.')[0]!
      if (!name.includes('.jsonl') || this.#get('SELECT id FROM files WHERE id = ?', id)) continue
      const path = join(this.#folder, name)
      const { mtimeMs } = statSync(path, { throwIfNoEntry: false }) ?? { mtimeMs: Infinity }
      if (1000 * now - mtimeMs > STRAY_MS) rmSync(path, { force: true })
    }
  }

  /** Page by page, so that no statement stays open while others run. */
  *#resultLines(batch: string, isFailed: number): Generator<string> {
    const sql = 'SELECT line, text FROM results WHERE batch = ? AND failed = ? AND line > ? ORDER BY line LIMIT 100'
    for (let last = -1; ; ) {
      const rows = this.#all(sql, batch, isFailed, last)
      if (rows.length === 0) return
      yield rows.map(({ text }) => `${text}\n`).join('')
      last = Number(rows.at(-1)!.line)
    }
  }

  #isOwned(batch: string, owner: string): boolean {
    return this.#get('SELECT 1 FROM batches WHERE id = ? AND owner = ?', batch, owner) !== undefined
  }

  #update({ id, status, data }: BatchRow): void {
    const sql = 'UPDATE batches SET status = ?, data = ? WHERE id = ?'
    this.#run(sql, status, JSON.stringify(data), id)
  }

  /** Runs in a transaction that excludes other writers. */
  #atOnce<T>(work: () => T): T {
    const db = this.#open()
    db.exec('BEGIN IMMEDIATE')
    try {
      const result = work()
      db.exec('COMMIT')
      return result
    } catch (error) {
      db.exec('ROLLBACK')
      throw error
    }
  }

  /** The file appears only when it is whole. Returns its size. */
  async #write(id: string, parts: Iterable<string | Uint8Array>): Promise<number> {
    const path = this.#pathOf(id)
    const temporary = `${path}.${process.pid}.tmp`
    const file = await open(temporary, 'w', 0o600)
    let bytes = 0
    try {
      for (const part of parts) {
        await file.appendFile(part)
        bytes += Buffer.byteLength(part)
      }
      await file.sync()
    } finally {
      await file.close()
    }
    await rename(temporary, path)
    return bytes
  }

  #pathOf(id: string): string {
    return join(this.#folder, `${id}.jsonl`)
  }

  get #databasePath(): string {
    return join(this.#folder, 'batches.sqlite')
  }

  #open(): Database {
    if (this.#db !== null) return this.#db
    makeFolder(this.#folder, 0o700)
    this.#db = openBatchDatabase(this.#databasePath)
    return this.#db
  }

  #get(sql: string, ...values: Values): Row | undefined {
    return this.isInUse ? (this.#prepare(sql).get(...values) as Row | undefined) : undefined
  }

  #all(sql: string, ...values: Values): Row[] {
    return this.isInUse ? (this.#prepare(sql).all(...values) as Row[]) : []
  }

  /** Returns the number of changed rows. */
  #run(sql: string, ...values: Values): number {
    return Number(this.#prepare(sql).run(...values).changes)
  }

  #prepare(sql: string) {
    return this.#open().prepare(sql)
  }
}

type Values = readonly (string | number)[]
type Row = Record<string, unknown>

function insertFile(db: Database, row: FileRow): void {
  const { id, tenant, filename, purpose, bytes, created, expires } = row
  db.prepare(
    'INSERT OR REPLACE INTO files (id, tenant, filename, purpose, bytes, created, expires) VALUES (?, ?, ?, ?, ?, ?, ?)',
  ).run(id, tenant, filename, purpose, bytes, created, expires)
}

function goneOrThrow(error: NodeJS.ErrnoException): null {
  if (error.code === 'ENOENT') return null
  throw error
}

function batchOf({ id, tenant, status, created, data }: Row): BatchRow {
  // Only addBatch and advance write it.
  return { id, tenant, status, created, data: JSON.parse(data as string) as BatchData } as BatchRow
}

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

/** Creates the database if it does not exist. */
function openBatchDatabase(path: string): Database {
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
