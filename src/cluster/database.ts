/**
 * The database of a cluster: connections, errors and tables, which the first member creates. Only this file knows the
 * driver.
 */
import { randomBytes } from 'node:crypto'
import { setTimeout as delay } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import pg from 'pg'
import Postgrator from 'postgrator'
import { SkeinError } from '../errors.ts'

/** A parameter of a statement: $1, $2, … Objects become JSON. */
export type Value = string | number | boolean | null | Uint8Array | readonly (string | number | null | Uint8Array)[]

interface Result<Row> {
  readonly rows: readonly Row[]
  readonly count: number
}

export interface Connection {
  query<Row = never>(sql: string, values?: readonly Value[]): Promise<Result<Row>>
}

/** Maximum open connections. */
const CONNECTIONS = 4
const CONNECT_MS = 5000
/** Statements take milliseconds. A slower one hangs, and its caller's lease would expire. */
const STATEMENT_MS = 10_000
/** A process that stops inside a transaction must not hold its locks for long. */
const IDLE_MS = 3000
const SECRET_BYTES = 32
const RECONNECT_MS = 1000

const BIGINT = 20

export class Database implements Connection {
  /** 32 bytes that all members share. */
  readonly secret: Uint8Array
  readonly #pool: pg.Pool
  readonly #config: pg.ClientConfig
  readonly #listeners = new Set<Listener>()

  private constructor(pool: pg.Pool, config: pg.ClientConfig, secret: Uint8Array) {
    this.#pool = pool
    this.#config = config
    this.secret = secret
  }

  /** Connects and creates missing tables. Throws invalid_request for an invalid address, else state_unavailable. */
  static async open(url: string): Promise<Database> {
    const config = configOf(url)
    const pool = new pg.Pool({ ...config, max: CONNECTIONS })
    // Idle connections end with the database server; the next statement opens a new one.
    pool.on('error', () => {})
    try {
      await withClient(pool, migrate)
      return new Database(pool, config, await secretOf(pool))
    } catch (error) {
      await pool.end()
      throw unavailable(error)
    }
  }

  async query<Row = never>(sql: string, values: readonly Value[] = []): Promise<Result<Row>> {
    try {
      return await run<Row>(this.#pool, sql, values)
    } catch (error) {
      throw unavailable(error)
    }
  }

  async transaction<T>(work: (connection: Connection) => Promise<T>): Promise<T> {
    try {
      return await withClient(this.#pool, async (client) => {
        await client.query('begin')
        try {
          const result = await work({
            query: <Row>(sql: string, values: readonly Value[] = []) => run<Row>(client, sql, values),
          })
          await client.query('commit')
          return result
        } catch (error) {
          await client.query('rollback').catch(() => {})
          throw error
        }
      })
    } catch (error) {
      throw error instanceof SkeinError ? error : unavailable(error)
    }
  }

  /**
   * Reports notifications on a channel. It also reports once whenever it starts to listen, because earlier ones were
   * missed. It reconnects after an outage. Returns a function that stops it.
   */
  listen(channel: string, onNotice: (payload: string) => void): () => void {
    const listener = new Listener(this.#config, channel, onNotice)
    this.#listeners.add(listener)
    return () => {
      this.#listeners.delete(listener)
      listener.close()
    }
  }

  async close(): Promise<void> {
    for (const listener of this.#listeners) listener.close()
    this.#listeners.clear()
    await this.#pool.end()
  }
}

class Listener {
  readonly #config: pg.ClientConfig
  readonly #channel: string
  readonly #onNotice: (payload: string) => void
  #client: pg.Client | null = null
  readonly #closing = new AbortController()

  constructor(config: pg.ClientConfig, channel: string, onNotice: (payload: string) => void) {
    this.#config = config
    this.#channel = channel
    this.#onNotice = onNotice
    void this.#run()
  }

  close(): void {
    this.#closing.abort()
    this.#client?.end().catch(() => {})
  }

  async #run(): Promise<void> {
    const { signal } = this.#closing
    while (!signal.aborted) {
      await this.#session().catch(() => {})
      await delay(RECONNECT_MS, undefined, { signal, ref: false }).catch(() => {})
    }
  }

  /** Resolves when the connection ends. */
  async #session(): Promise<void> {
    const client = new pg.Client(this.#config)
    this.#client = client
    const ended = new Promise<void>((resolve) => {
      client.on('end', resolve)
      client.on('error', () => resolve())
    })
    client.on('notification', ({ payload = '' }) => this.#onNotice(payload))
    try {
      await client.connect()
      await client.query(`listen ${pg.escapeIdentifier(this.#channel)}`)
      if (!this.#closing.signal.aborted) this.#onNotice('')
      await ended
    } finally {
      client.end().catch(() => {})
    }
  }
}

function configOf(url: string): pg.ClientConfig {
  if (!/^postgres(ql)?:\/\//.test(url) || !URL.canParse(url)) {
    const message = 'the address of the cluster database must be like postgres://USER:PASSWORD@HOST:5432/DATABASE'
    throw new SkeinError('invalid_request', message)
  }
  return {
    connectionString: url,
    application_name: 'skein',
    connectionTimeoutMillis: CONNECT_MS,
    query_timeout: STATEMENT_MS,
    statement_timeout: STATEMENT_MS,
    lock_timeout: STATEMENT_MS / 2,
    idle_in_transaction_session_timeout: IDLE_MS,
    keepAlive: true,
    // Counts stay below 2^53 here; the driver would return text.
    types: {
      getTypeParser: ((oid: number, format?: 'text' | 'binary') =>
        oid === BIGINT ? Number : pg.types.getTypeParser(oid, format as 'text')) as never,
    },
  }
}

async function run<Row>(on: pg.Pool | pg.ClientBase, sql: string, values: readonly Value[]): Promise<Result<Row>> {
  // The driver wants a mutable list. The rows have the type that the statement returns.
  const { rows, rowCount } = await on.query(sql, values as unknown[])
  return { rows: rows as Row[], count: rowCount ?? 0 }
}

async function withClient<T>(pool: pg.Pool, work: (client: pg.PoolClient) => Promise<T>): Promise<T> {
  const client = await pool.connect()
  let failure: Error | undefined
  // Without a listener, a connection error would end the process; the statement fails anyway.
  const onError = (error: Error) => {
    failure = error
  }
  client.on('error', onError)
  try {
    return await work(client)
  } catch (error) {
    failure ??= error instanceof Error ? error : undefined
    throw error
  } finally {
    client.off('error', onError)
    client.release(failure)
  }
}

async function secretOf(pool: pg.Pool): Promise<Uint8Array> {
  const sql = 'insert into cluster (secret) values ($1) on conflict do nothing'
  await pool.query(sql, [randomBytes(SECRET_BYTES)])
  const { rows } = await pool.query('select secret from cluster')
  return new Uint8Array(rows[0].secret)
}

/** SQLSTATE of data that no column takes, of constraints, and of what is larger than the server's limits. */
const REFUSAL = /^(?:22|23|54)...$/

function unavailable(error: unknown): SkeinError {
  if (error instanceof SkeinError) return error
  const { message, code } = error as { message?: string; code?: string }
  // If all of several addresses refuse, the driver's error has no message.
  const reason = message || code || String(error)
  if (code !== undefined && REFUSAL.test(code)) {
    const refused = `the database of the cluster does not take what was to be written: ${reason}`
    return new SkeinError('state_refused', refused, { cause: error })
  }
  return new SkeinError(
    'state_unavailable',
    `the database of the cluster did not do what was asked: ${reason}; look whether it runs and can be reached`,
    { cause: error },
  )
}

const FILES = fileURLToPath(new URL('../../migrations/*.sql', import.meta.url))
/** A busy machine may leave a new process without its turn for seconds, longer than other transactions may idle. */
const IDLE = '30s'
const WAIT_MS = 60_000
const POLL_MS = 100
/** Advisory lock: "skein" in ASCII. Others wait for it and find the work done. */
const LOCK = 0x73_6b_65_69_6e

interface Client {
  query(sql: string, values?: unknown[]): Promise<{ rows: unknown[] }>
}

/** Leaves the tables of a later release as they are: releases only add, so an older one can still read them. */
export async function migrate(client: Client): Promise<void> {
  const end = performance.now() + WAIT_MS
  while (!(await tryToMigrate(client))) {
    if (performance.now() > end)
      throw new SkeinError(
        'state_unavailable',
        'another member has been creating the tables of the cluster for a minute; find out what holds its advisory lock (pg_locks)',
      )
    await delay(POLL_MS)
  }
}

/** False: another member is creating them. */
async function tryToMigrate(client: Client): Promise<boolean> {
  await client.query('begin')
  try {
    await client.query(`set local idle_in_transaction_session_timeout = '${IDLE}'`)
    const lock = await client.query('select pg_try_advisory_xact_lock($1) as held', [LOCK])
    const isHeld = (lock.rows[0] as { held: boolean }).held
    if (isHeld) await bringUp(client)
    await client.query('commit')
    return isHeld
  } catch (error) {
    await client.query('rollback').catch(() => {})
    throw error
  }
}

async function bringUp(client: Client): Promise<void> {
  const { rows } = await client.query('select current_schema() as name')
  const postgrator = new Postgrator({
    driver: 'pg',
    // One database may hold several clusters, separated by the search_path of their addresses.
    currentSchema: (rows[0] as { name: string }).name,
    migrationPattern: FILES,
    schemaTable: 'skein_schema',
    // Migrations are text files, and some systems change line ends.
    newline: 'LF',
    execQuery: (sql) => client.query(sql),
  })
  const [now, newest] = [await postgrator.getDatabaseVersion(), await postgrator.getMaxVersion()]
  if (now < newest) await postgrator.migrate()
}
