/** Brings the tables of a cluster up to what this release needs: migrations/, in order, by whoever comes first. */
import { setTimeout as delay } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import Postgrator from 'postgrator'
import { SkeinError } from '../errors.ts'

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
