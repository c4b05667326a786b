/**
 * The database of a cluster: connections, what its errors mean, and its tables, which the first to come makes. The only
 * file that knows the driver.
 */
import { randomBytes } from 'node:crypto'
import { setTimeout as delay } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import pg from 'pg'
import Postgrator from 'postgrator'
import { SkeinError } from '../errors.ts'

/** What stands for a value in a statement: $1, $2, … Objects become JSON. */
export type Value = string | number | boolean | null | Uint8Array | readonly (string | number | null | Uint8Array)[]

export interface Result<Row> {
  readonly rows: readonly Row[]
  /** Touched by the statement. */
  readonly count: number
}

/** Runs one statement. */
export interface Connection {
  query<Row = never>(sql: string, values?: readonly Value[]): Promise<Result<Row>>
}

export interface DatabaseOptions {
  /** At most, at a time. */
  readonly connections?: number | undefined
}

const CONNECTIONS = 4
const CONNECT_MS = 5000
/** A statement takes milliseconds. What takes longer hangs, and who asked for it has a lease to lose. */
const STATEMENT_MS = 10_000
/** A process that was stopped within a transaction must not hold its rows for long. */
const IDLE_MS = 3000
const SECRET_BYTES = 32
const RECONNECT_MS = 1000

const BIGINT = 20

export class Database implements Connection {
  /** 32 bytes that all of the cluster share. */
  readonly secret: Uint8Array
  readonly #pool: pg.Pool
  readonly #config: pg.ClientConfig
  readonly #listeners = new Set<Listener>()

  private constructor(pool: pg.Pool, config: pg.ClientConfig, secret: Uint8Array) {
    this.#pool = pool
    this.#config = config
    this.secret = secret
  }

  /** Connects, and makes what tables are missing. Throws invalid_request for no such address, else state_unavailable. */
  static async open(url: string, { connections = CONNECTIONS }: DatabaseOptions = {}): Promise<Database> {
    const config = configOf(url)
    const pool = new pg.Pool({ ...config, max: connections })
    // Connections that nobody uses end with the server; the next statement makes a new one.
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

  /** All that `work` does through the connection it is given, or nothing. */
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
   * Tells of notices on a channel, and once whenever it begins to listen: what came before was missed. Goes on after the
   * server was away. Returns what ends it.
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

/** One connection that waits for notices. */
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

  /** Ends with the connection. */
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
    throw new SkeinError(
      'invalid_request',
      'the database of a cluster is named like postgres://USER:PASSWORD@HOST:5432/DATABASE',
    )
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
    // Counts are below 2^53 here; the driver would give text.
    types: {
      getTypeParser: ((oid: number, format?: 'text' | 'binary') =>
        oid === BIGINT ? Number : pg.types.getTypeParser(oid, format as 'text')) as never,
    },
  }
}

async function run<Row>(on: pg.Pool | pg.ClientBase, sql: string, values: readonly Value[]): Promise<Result<Row>> {
  // The driver takes a mutable list, and rows are as the statement says.
  const { rows, rowCount } = await on.query(sql, values as unknown[])
  return { rows: rows as Row[], count: rowCount ?? 0 }
}

async function withClient<T>(pool: pg.Pool, work: (client: pg.PoolClient) => Promise<T>): Promise<T> {
  const client = await pool.connect()
  let failure: Error | undefined
  // Without a listener an error of the connection would end the process; the statement fails as well.
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
  // Of several addresses that refuse, the driver's error has no message of its own.
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
/** A busy machine may leave a process that has just begun for seconds without its turn: more than others in a transaction get. */
const IDLE = '30s'
const WAIT_MS = 60_000
const POLL_MS = 100
/** Of an advisory lock: "skein" in ASCII. Others wait and find the work done. */
const LOCK = 0x73_6b_65_69_6e

/** As the driver has it. */
interface Client {
  query(sql: string, values?: unknown[]): Promise<{ rows: unknown[] }>
}

/** A database that a later release has brought further is left as it is: releases add, and one older can still read. */
export async function migrate(client: Client): Promise<void> {
  const end = performance.now() + WAIT_MS
  while (!(await tryToMigrate(client))) {
    if (performance.now() > end)
      throw new SkeinError(
        'state_unavailable',
        'another member has been making the tables of the cluster for a minute; look what holds its advisory lock (pg_locks)',
      )
    await delay(POLL_MS)
  }
}

/** False: another is at it. */
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
    // A database may have several clusters, by the search_path of their addresses.
    currentSchema: (rows[0] as { name: string }).name,
    migrationPattern: FILES,
    schemaTable: 'skein_schema',
    // Files are text, and some systems change the ends of lines.
    newline: 'LF',
    execQuery: (sql) => client.query(sql),
  })
  const [now, newest] = [await postgrator.getDatabaseVersion(), await postgrator.getMaxVersion()]
  if (now < newest) await postgrator.migrate()
}
