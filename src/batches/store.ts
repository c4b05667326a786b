/**
 * Files that clients sent, batches over them and the results so far: rows in SQLite, contents as files of the data folder.
 * Whatever is told to a client is there after a crash. Several servers may share the folder; a batch is run by the one whose
 * lease it has. Nothing is made on disk before the first file.
 */
import { existsSync, readdirSync, rmSync, statSync } from 'node:fs'
import { open, readFile, rename, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { makeFolder } from '../files/make-folder.ts'
import type { Database } from '../state/store/sqlite.ts'
import { openBatchDatabase } from './database.ts'

export interface FileRow {
  readonly id: string
  readonly tenant: string
  readonly filename: string
  readonly purpose: string
  readonly bytes: number
  /** Unix seconds, as all times here. */
  readonly created: number
  readonly expires: number | null
}

export type BatchStatus =
  | 'validating'
  | 'in_progress'
  | 'finalizing'
  | 'completed'
  | 'failed'
  | 'expired'
  | 'cancelling'
  | 'cancelled'

export const UNFINISHED: readonly BatchStatus[] = [
  'validating',
  'in_progress',
  'finalizing',
  'cancelling',
]

/** What is known of a batch beside its status; grows as it goes on. */
export interface BatchData {
  readonly endpoint: string
  readonly inputFile: string
  readonly window: string
  readonly metadata: object | null
  readonly expires: number
  /** Seconds that the files of results are kept; null: as long as the caller wants. */
  readonly outputSeconds: number | null
  /** Lines of the input, once they were read. */
  readonly total: number
  readonly outputFile: string | null
  readonly errorFile: string | null
  /** Lines at fault, where there is nothing to run. */
  readonly errors: readonly LineError[]
  /** When it came into each of its later states. */
  readonly times: Readonly<Partial<Record<BatchStatus, number>>>
  /** Of the results, once they are files. */
  readonly counts: Counts | null
}

export interface LineError {
  readonly code: string
  readonly message: string
  readonly line: number | null
  readonly param: string | null
}

export interface BatchRow {
  readonly id: string
  readonly tenant: string
  readonly status: BatchStatus
  readonly created: number
  readonly data: BatchData
}

export interface Counts {
  readonly completed: number
  readonly failed: number
}

/** Contents that no row names, after a crash between the two. Another server may be about to write theirs. */
const STRAY_MS = 3_600_000

export class BatchStore {
  readonly #folder: string
  #db: Database | null = null

  constructor(folder: string) {
    this.#folder = folder
  }

  close(): void {
    this.#db?.close()
    this.#db = null
  }

  /** False where no file has ever come: there is nothing to look for. */
  get isInUse(): boolean {
    return this.#db !== null || existsSync(this.#databasePath)
  }

  pathOf(id: string): string {
    return join(this.#folder, `${id}.jsonl`)
  }

  /** On disk when this resolves. */
  async addFile(row: FileRow, content: Uint8Array): Promise<void> {
    const db = this.#open()
    await this.#write(row.id, [content])
    insertFile(db, row)
  }

  file(tenant: string, id: string): FileRow | null {
    const row = this.#get('SELECT * FROM files WHERE id = ? AND tenant = ?', id, tenant)
    return (row as FileRow | undefined) ?? null
  }

  /** Those before or after the one named, by their age. */
  files(tenant: string, purpose: string | null): FileRow[] {
    const rows = this.#all('SELECT * FROM files WHERE tenant = ? ORDER BY created, id', tenant)
    const all = rows as unknown as FileRow[] // the columns are its fields
    return purpose === null ? all : all.filter((row) => row.purpose === purpose)
  }

  read({ id }: FileRow): Promise<Buffer> {
    return readFile(this.pathOf(id))
  }

  async removeFile({ id }: FileRow): Promise<void> {
    this.#run('DELETE FROM files WHERE id = ?', id)
    await rm(this.pathOf(id), { force: true })
  }

  bytesOf(tenant: string): number {
    const row = this.#get('SELECT total(bytes) AS bytes FROM files WHERE tenant = ?', tenant)
    return Number(row?.bytes ?? 0)
  }

  addBatch({ id, tenant, status, created, data }: BatchRow): void {
    const sql = 'INSERT INTO batches (id, tenant, status, created, data) VALUES (?, ?, ?, ?, ?)'
    this.#run(sql, id, tenant, status, created, JSON.stringify(data))
  }

  batch(tenant: string, id: string): BatchRow | null {
    const row = this.#get('SELECT * FROM batches WHERE id = ? AND tenant = ?', id, tenant)
    return row === undefined ? null : batchOf(row)
  }

  /** Latest first. */
  batches(tenant: string): BatchRow[] {
    const sql = 'SELECT * FROM batches WHERE tenant = ? ORDER BY created DESC, id DESC'
    return this.#all(sql, tenant).map(batchOf)
  }

  /** Of all tenants, oldest first. */
  unfinished(): BatchRow[] {
    const marks = UNFINISHED.map(() => '?').join()
    const sql = `SELECT * FROM batches WHERE status IN (${marks}) ORDER BY created, id`
    return this.#all(sql, ...UNFINISHED).map(batchOf)
  }

  /** The status changes only where it is one of `from`; false where it is not. */
  advance(id: string, from: readonly BatchStatus[], status: BatchStatus, data: BatchData): boolean {
    const marks = from.map(() => '?').join()
    const sql = `UPDATE batches SET status = ?, data = ? WHERE id = ? AND status IN (${marks})`
    return this.#run(sql, status, JSON.stringify(data), id, ...from) > 0
  }

  /** Nobody else runs it until `until`; false where somebody does. */
  claim(id: string, owner: string, now: number, until: number): boolean {
    const sql =
      'UPDATE batches SET owner = ?, lease = ? WHERE id = ? AND (owner IS NULL OR owner = ? OR lease < ?)'
    return this.#run(sql, owner, until, id, owner, now) > 0
  }

  release(owner: string): void {
    this.#run('UPDATE batches SET owner = NULL WHERE owner = ?', owner)
  }

  /** The first result of a line counts. */
  addResult(batch: string, line: number, isFailed: boolean, text: string): void {
    const sql = 'INSERT OR IGNORE INTO results (batch, line, failed, text) VALUES (?, ?, ?, ?)'
    this.#run(sql, batch, line, isFailed ? 1 : 0, text)
  }

  linesDone(batch: string): Set<number> {
    const rows = this.#all('SELECT line FROM results WHERE batch = ?', batch)
    return new Set(rows.map(({ line }) => Number(line)))
  }

  countsOf({ id, data }: BatchRow): Counts {
    if (data.counts !== null) return data.counts
    const sql = 'SELECT count(*) AS lines, total(failed) AS failed FROM results WHERE batch = ?'
    const row = this.#get(sql, id)
    const failed = Number(row?.failed ?? 0)
    return { completed: Number(row?.lines ?? 0) - failed, failed }
  }

  /** The results become the files of these rows, and the batch ends; all of it or, after a crash, nothing. */
  async finish(
    { id }: BatchRow,
    status: BatchStatus,
    data: BatchData,
    files: { readonly output: FileRow | null; readonly error: FileRow | null },
  ): Promise<void> {
    const rows: FileRow[] = []
    for (const [isFailed, file] of [files.output, files.error].entries()) {
      if (file === null) continue
      const bytes = await this.#write(file.id, this.#resultLines(id, isFailed))
      rows.push({ ...file, bytes })
    }
    const db = this.#open()
    db.exec('BEGIN IMMEDIATE')
    try {
      for (const row of rows) insertFile(db, row)
      db.prepare('UPDATE batches SET status = ?, data = ?, owner = NULL WHERE id = ?').run(
        status,
        JSON.stringify(data),
        id,
      )
      db.prepare('DELETE FROM results WHERE batch = ?').run(id)
      db.exec('COMMIT')
    } catch (error) {
      db.exec('ROLLBACK')
      throw error
    }
  }

  /** Files whose time is over, and what a crash left behind. */
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

  /** A page at a time: no statement is open while others go on. */
  *#resultLines(batch: string, isFailed: number): Generator<string> {
    const sql =
      'SELECT line, text FROM results WHERE batch = ? AND failed = ? AND line > ? ORDER BY line LIMIT 100'
    for (let last = -1; ; ) {
      const rows = this.#all(sql, batch, isFailed, last)
      if (rows.length === 0) return
      yield rows.map(({ text }) => `${text}\n`).join('')
      last = Number(rows.at(-1)!.line)
    }
  }

  /** Whoever finds the file finds all of it. Returns its size. */
  async #write(id: string, parts: Iterable<string | Uint8Array>): Promise<number> {
    const path = this.pathOf(id)
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

  get #databasePath(): string {
    return join(this.#folder, 'batches.sqlite')
  }

  #open(): Database {
    if (this.#db !== null) return this.#db
    makeFolder(this.#folder, 0o700)
    this.#db = openBatchDatabase(this.#databasePath)
    return this.#db
  }

  #get(sql: string, ...values: (string | number)[]): Row | undefined {
    return this.isInUse
      ? (this.#open()
          .prepare(sql)
          .get(...values) as Row | undefined)
      : undefined
  }

  #all(sql: string, ...values: (string | number)[]): Row[] {
    return this.isInUse
      ? (this.#open()
          .prepare(sql)
          .all(...values) as Row[])
      : []
  }

  /** How many rows it changed. */
  #run(sql: string, ...values: (string | number)[]): number {
    return Number(
      this.#open()
        .prepare(sql)
        .run(...values).changes,
    )
  }
}

type Row = Record<string, unknown>

function insertFile(db: Database, row: FileRow): void {
  const { id, tenant, filename, purpose, bytes, created, expires } = row
  db.prepare(
    'INSERT OR REPLACE INTO files (id, tenant, filename, purpose, bytes, created, expires) VALUES (?, ?, ?, ?, ?, ?, ?)',
  ).run(id, tenant, filename, purpose, bytes, created, expires)
}

function batchOf({ id, tenant, status, created, data }: Row): BatchRow {
  // Written by addBatch and advance alone.
  return { id, tenant, status, created, data: JSON.parse(data as string) } as BatchRow
}
