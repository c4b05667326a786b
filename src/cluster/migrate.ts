/** Brings the tables of a cluster up to what this release needs: migrations/, in order, by whoever comes first. */
import { fileURLToPath } from 'node:url'
import Postgrator from 'postgrator'

const FILES = fileURLToPath(new URL('../../migrations/*.sql', import.meta.url))
/** A busy machine may leave a process that has just begun for seconds without its turn: more than others in a transaction get. */
const IDLE = '30s'
/** Of an advisory lock: "skein" in ASCII. Others wait and find the work done. */
const LOCK = 0x73_6b_65_69_6e

/** As the driver has it. */
interface Client {
  query(sql: string, values?: unknown[]): Promise<{ rows: unknown[] }>
}

/** A database that a later release has brought further is left as it is: releases add, and one older can still read. */
export async function migrate(client: Client): Promise<void> {
  await client.query('begin')
  try {
    await client.query(`set local idle_in_transaction_session_timeout = '${IDLE}'`)
    await client.query('select pg_advisory_xact_lock($1)', [LOCK])
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
    await client.query('commit')
  } catch (error) {
    await client.query('rollback').catch(() => {})
    throw error
  }
}
