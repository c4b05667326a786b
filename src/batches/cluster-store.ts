/**
 * Files and batches of a cluster: rows in its database and contents as blobs, for all nodes. A content is stored before
 * the row that names it and deleted after it; leftovers of a crash are swept by age with the states
 * (state/shared/shared-store.ts). Writers of results name themselves, and change nothing once another node has the
 * batch.
 */

import { randomBytes } from 'node:crypto'
import type { Connection, Database, Value } from '../cluster/database.ts'
import { joinBytes, utf8 } from '../files/bytes.ts'
import type { Blobs } from '../state/shared/blobs.ts'
import {
  type BatchRow,
  type BatchStore,
  type Counts,
  type FileReader,
  type FileRow,
  type LineResult,
  type ResultFiles,
  UNFINISHED,
} from './store.ts'

type StoredFile = FileRow & { readonly parts: readonly Part[] }
/** As text, because the database's JSON does not accept every character. */
type StoredBatch = Omit<BatchRow, 'data'> & { readonly data: string }

const POLL_MS = 2000
const LEASE_MS = 10_000
/** A line may have megabytes. */
const LINES_AT_ONCE = 32

const FILE = 'id, tenant, filename, purpose, bytes, created, expires'
const BATCH = 'id, tenant, status, created, data'
const IS_FREE = '(owner is null or owner = $1 or lease < now())'

export class ClusterBatchStore implements BatchStore {
  readonly pollMs = POLL_MS
  readonly isInUse = true
  readonly #database: Database
  readonly #parts: Parts

  /** The caller closes both. */
  constructor(database: Database, blobs: Blobs) {
    this.#database = database
    this.#parts = new Parts(blobs)
  }

  close(): void {}

  async addFile(row: FileRow, content: Uint8Array, mostBytes: number): Promise<boolean> {
    if (!(await hasRoom(this.#database, row, mostBytes))) return false
    const parts = await this.#parts.write([content])
    const isKept = await this.#inTurn(row.tenant, async (connection) => {
      if (!(await hasRoom(connection, row, mostBytes))) return false
      await insertFile(connection, { ...row, parts })
      return true
    })
    if (!isKept) await this.#parts.remove(parts)
    return isKept
  }

  async file(tenant: string, id: string): Promise<FileRow | null> {
    const sql = `select ${FILE} from batch_file where id = $1 and tenant = $2`
    return (await this.#database.query<FileRow>(sql, [id, tenant])).rows[0] ?? null
  }

  async files(tenant: string, purpose: string | null): Promise<readonly FileRow[]> {
    const sql = `select ${FILE} from batch_file where tenant = $1
      and ($2::text is null or purpose = $2) order by created, id`
    return (await this.#database.query<FileRow>(sql, [tenant, purpose])).rows
  }

  async read({ id }: FileRow): Promise<Uint8Array> {
    return this.#parts.read((await this.#partsOf(id)) ?? [])
  }

  async openFile(id: string): Promise<FileReader | null> {
    const parts = await this.#partsOf(id)
    return parts === null ? null : this.#parts.open(parts)
  }

  async removeFile({ id }: FileRow): Promise<void> {
    const sql = 'delete from batch_file where id = $1 returning parts'
    const { rows } = await this.#database.query<Pick<StoredFile, 'parts'>>(sql, [id])
    for (const { parts } of rows) await this.#parts.remove(parts)
  }

  async addBatch({ id, tenant, status, created, data }: BatchRow, most: number): Promise<boolean> {
    return this.#inTurn(tenant, async (connection) => {
      const { count } = await connection.query(
        `insert into batch (id, tenant, status, created, data) select $1, $2, $3, $4, $5
         where (select count(*) from batch where tenant = $2 and status = any($6)) < $7`,
        [id, tenant, status, created, JSON.stringify(data), UNFINISHED, most],
      )
      return count > 0
    })
  }

  async batch(tenant: string, id: string): Promise<BatchRow | null> {
    const sql = `select ${BATCH} from batch where id = $1 and tenant = $2`
    return (await this.#batches(sql, [id, tenant]))[0] ?? null
  }

  async batches(tenant: string): Promise<readonly BatchRow[]> {
    const sql = `select ${BATCH} from batch where tenant = $1 order by created desc, id desc`
    return this.#batches(sql, [tenant])
  }

  async unfinished(owner: string): Promise<readonly BatchRow[]> {
    const sql = `select ${BATCH} from batch where status = any($2) and ${IS_FREE} order by created, id`
    return this.#batches(sql, [owner, UNFINISHED])
  }

  change(id: string, change: (batch: BatchRow) => BatchRow | null): Promise<boolean> {
    return this.#database.transaction(async (connection) => {
      const sql = `select ${BATCH} from batch where id = $1 for update`
      const { rows } = await connection.query<StoredBatch>(sql, [id])
      const changed = rows[0] === undefined ? null : change(batchOf(rows[0]))
      if (changed === null) return false
      await connection.query('update batch set status = $2, data = $3 where id = $1', [
        ...[id, changed.status, JSON.stringify(changed.data)],
      ])
      return true
    })
  }

  async claim({ id, tenant }: BatchRow, owner: string): Promise<boolean> {
    return this.#inTurn(tenant, async (connection) => {
      const { count } = await connection.query(
        `update batch set owner = $1, lease = statement_timestamp() + $2 * interval '1 millisecond'
         where id = $3 and status = any($4) and ${IS_FREE} and not exists (
           select 1 from batch o where o.tenant = $5 and o.id <> $3 and o.owner <> $1
             and o.lease >= now() and o.status = any($4)
         )`,
        [owner, LEASE_MS, id, UNFINISHED, tenant],
      )
      return count > 0
    })
  }

  async release(owner: string): Promise<void> {
    await this.#database.query('update batch set owner = null where owner = $1', [owner])
  }

  async addResults(batch: string, owner: string, results: readonly LineResult[]): Promise<boolean> {
    // The row keeps its owner until the lines are stored.
    const { rows } = await this.#database.query(
      `with mine as (select id from batch where id = $1 and owner = $2 for share),
       kept as (
         insert into batch_line (batch, line, failed, text)
         select id, line, failed, text from mine,
           unnest($3::integer[], $4::boolean[], $5::text[]) as result (line, failed, text)
         on conflict do nothing
       ) select 1 from mine`,
      [
        ...[batch, owner, results.map(({ line }) => line)],
        ...[results.map(({ isFailed }) => String(isFailed)), results.map(({ text }) => text)],
      ],
    )
    return rows.length > 0
  }

  async linesDone(batch: string): Promise<ReadonlySet<number>> {
    const sql = 'select line from batch_line where batch = $1'
    const { rows } = await this.#database.query<{ line: number }>(sql, [batch])
    return new Set(rows.map(({ line }) => line))
  }

  async countsOf({ id, data }: BatchRow): Promise<Counts> {
    if (data.counts !== null) return data.counts
    const { rows } = await this.#database.query<Counts>(
      `select count(*) filter (where not failed) as completed, count(*) filter (where failed) as failed
       from batch_line where batch = $1`,
      [id],
    )
    return rows[0]!
  }

  async finish(ended: BatchRow, owner: string, files: ResultFiles): Promise<boolean> {
    const written: StoredFile[] = []
    for (const [isFailed, file] of [
      [false, files.output],
      [true, files.error],
    ] as const) {
      if (file === null) continue
      const parts = await this.#parts.write(this.#results(ended.id, isFailed))
      const bytes = parts.reduce((sum, part) => sum + part.bytes, 0)
      written.push({ ...file, bytes, parts })
    }
    const { id, status, data } = ended
    const isDone = await this.#database.transaction(async (connection) => {
      const sql = 'update batch set status = $3, data = $4, owner = null where id = $1 and owner = $2'
      const { count } = await connection.query(sql, [id, owner, status, JSON.stringify(data)])
      if (count === 0) return false
      for (const file of written) await insertFile(connection, file)
      await connection.query('delete from batch_line where batch = $1', [id])
      return true
    })
    if (!isDone) for (const { parts } of written) await this.#parts.remove(parts)
    return isDone
  }

  async tidy(now: number): Promise<void> {
    const sql = 'delete from batch_file where expires <= $1 returning parts'
    const { rows } = await this.#database.query<Pick<StoredFile, 'parts'>>(sql, [now])
    for (const { parts } of rows) await this.#parts.remove(parts)
  }

  async #partsOf(id: string): Promise<readonly Part[] | null> {
    const sql = 'select parts from batch_file where id = $1'
    const { rows } = await this.#database.query<Pick<StoredFile, 'parts'>>(sql, [id])
    return rows[0]?.parts ?? null
  }

  async #batches(sql: string, values: readonly Value[]): Promise<BatchRow[]> {
    return (await this.#database.query<StoredBatch>(sql, values)).rows.map(batchOf)
  }

  /** Results of one kind, in the order of the input. */
  async *#results(batch: string, isFailed: boolean): AsyncGenerator<Uint8Array> {
    for (let last = -1; ; ) {
      const { rows } = await this.#database.query<{ line: number; text: string }>(
        `select line, text from batch_line where batch = $1 and failed = $2 and line > $3
         order by line limit $4`,
        [batch, isFailed, last, LINES_AT_ONCE],
      )
      for (const { text } of rows) yield utf8(`${text}\n`)
      if (rows.length < LINES_AT_ONCE) return
      last = rows.at(-1)!.line
    }
  }

  /** Runs the transactions of one tenant one after another, so that its limits hold. */
  #inTurn<T>(tenant: string, work: (connection: Connection) => Promise<T>): Promise<T> {
    return this.#database.transaction(async (connection) => {
      const name = `skein batches ${tenant}`
      await connection.query('select pg_advisory_xact_lock(hashtextextended($1, 0))', [name])
      return work(connection)
    })
  }
}

async function hasRoom(on: Connection, { tenant, bytes }: FileRow, mostBytes: number): Promise<boolean> {
  const sql = 'select coalesce(sum(bytes), 0)::bigint as bytes from batch_file where tenant = $1'
  const { rows } = await on.query<{ bytes: number }>(sql, [tenant])
  return rows[0]!.bytes + bytes <= mostBytes
}

async function insertFile(on: Connection, file: StoredFile): Promise<void> {
  const { id, tenant, filename, purpose, bytes, created, expires, parts } = file
  // The database accepts every character except this one.
  const shown = filename.replaceAll('\0', '\ufffd')
  await on.query(`insert into batch_file (${FILE}, parts) values ($1, $2, $3, $4, $5, $6, $7, $8)`, [
    id,
    tenant,
    shown,
    purpose,
    bytes,
    created,
    expires,
    JSON.stringify(parts),
  ])
}

function batchOf(row: StoredBatch): BatchRow {
  return { ...row, data: JSON.parse(row.data) }
}

interface Part {
  readonly blob: string
  readonly bytes: number
}

const PART_BYTES = 8 * 2 ** 20

/** Contents of any size as blobs of some megabytes, so that only one of them is in memory. */
class Parts {
  readonly #blobs: Blobs

  constructor(blobs: Blobs) {
    this.#blobs = blobs
  }

  /** Stored when this resolves. Blobs of a failed write are swept by age. */
  async write(pieces: AsyncIterable<Uint8Array> | Iterable<Uint8Array>): Promise<Part[]> {
    const parts: Part[] = []
    let held: Uint8Array[] = []
    let bytes = 0
    const put = async () => {
      if (bytes === 0) return
      const blob = randomBytes(16).toString('hex')
      await this.#blobs.put(blob, held)
      parts.push({ blob, bytes })
      held = []
      bytes = 0
    }
    for await (const piece of pieces) {
      for (let at = 0; at < piece.length; at += PART_BYTES) {
        const slice = piece.subarray(at, at + PART_BYTES)
        held.push(slice)
        bytes += slice.length
        if (bytes >= PART_BYTES) await put()
      }
    }
    await put()
    return parts
  }

  async read(parts: readonly Part[]): Promise<Uint8Array> {
    const contents: Uint8Array[] = []
    for (const { blob } of parts) contents.push(await this.#blobs.get(blob))
    return joinBytes(contents)
  }

  open(parts: readonly Part[]): FileReader {
    // The part that was read last, because readers go from start to end.
    let last: { readonly blob: string; readonly content: Uint8Array } | null = null
    return {
      read: async (into, at) => {
        let start = 0
        let count = 0
        for (const { blob, bytes } of parts) {
          const from = at + count - start
          start += bytes
          if (from >= bytes || count === into.length) continue
          if (last?.blob !== blob) last = { blob, content: await this.#blobs.get(blob) }
          const piece = last.content.subarray(from, from + into.length - count)
          into.set(piece, count)
          count += piece.length
        }
        return count
      },
      close: async () => {
        last = null
      },
    }
  }

  async remove(parts: readonly Part[]): Promise<void> {
    for (const { blob } of parts) await this.#blobs.remove(blob)
  }
}
