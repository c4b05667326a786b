/**
 * Checks a cluster for `skein doctor`: the database, the storage of states, the clocks, and the connection to each
 * node.
 */
import { randomBytes } from 'node:crypto'
import { Database } from '../cluster/database.ts'
import { Members } from '../cluster/members.ts'
import { PROTOCOL, protocolOf } from '../cluster/protocol.ts'
import { SkeinError } from '../errors.ts'
import { openBlobs } from '../state/shared/open-blobs.ts'

/** One line of the report. `fix` is null if nothing is wrong. */
export interface Finding {
  readonly what: string
  readonly found: string
  readonly fix: string | null
  /** It is missing, and the rest works without it. */
  readonly isOptional?: boolean
}

/** Skew that is reported as a problem. Signed messages between members are valid for two minutes. */
const MAX_SKEW_MS = 30_000
const NODE_MS = 3000

export async function checkCluster(url: string, blobs: string | undefined): Promise<Finding[]> {
  const storage = blobs === undefined ? [] : [await checkBlobs(blobs)]
  let database: Database
  try {
    database = await Database.open(url)
  } catch (error) {
    const { message } = SkeinError.from(error)
    return [{ what: 'database', found: 'not usable', fix: message }, ...storage]
  }
  try {
    return [...(await checkDatabase(database)), ...storage, ...(await checkNodes(database))]
  } finally {
    await database.close()
  }
}

async function checkDatabase(database: Database): Promise<Finding[]> {
  const sent = performance.now()
  const sentAt = Date.now()
  const { rows } = await database.query<{ version: string; now: number; standbys: number }>(
    `select current_setting('server_version') as version, extract(epoch from now()) * 1000 as now,
       (select count(*) from pg_stat_replication where sync_state in ('sync', 'quorum')) as standbys`,
  )
  const tookMs = performance.now() - sent
  const { version, now, standbys } = rows[0]!
  const skewMs = Math.round(Number(now) - (sentAt + tookMs / 2))
  return [
    {
      what: 'database',
      found: `PostgreSQL ${version}, ${tookMs.toFixed(1)} ms, ${standbys} synchronous standbys`,
      fix: null,
    },
    clock('clock', skewMs, 'the database'),
  ]
}

function clock(what: string, skewMs: number, whose: string): Finding {
  const isFar = Math.abs(skewMs) > MAX_SKEW_MS
  return {
    what,
    found: `${skewMs} ms from that of ${whose}`,
    fix: isFar ? 'synchronise the clocks of all machines (NTP): members refuse messages with old timestamps' : null,
  }
}

async function checkBlobs(url: string): Promise<Finding> {
  try {
    const blobs = openBlobs(url)
    const name = `doctor-${randomBytes(8).toString('hex')}`
    const bytes = new Uint8Array(randomBytes(1024))
    const begun = performance.now()
    await blobs.put(name, [bytes])
    const back = await blobs.get(name)
    await blobs.remove(name)
    const isSame = Buffer.compare(bytes, back) === 0
    const took = `${Math.round(performance.now() - begun)} ms to write, read and remove 1 KiB`
    const fix = isSame ? null : 'it returned different bytes than were written'
    return { what: 'storage', found: took, fix }
  } catch (error) {
    return { what: 'storage', found: 'not usable', fix: SkeinError.from(error).message }
  }
}

async function checkNodes(database: Database): Promise<Finding[]> {
  const members = new Members(database)
  await members.refresh()
  const urls = new Map(members.list.map(({ node, url }) => [node, url]))
  const strangers = members.strangers.map(({ node, info }) => ({
    what: `node ${node}`,
    found: `it speaks protocol ${protocolOf(info)} of clusters, this release ${PROTOCOL}`,
    fix: 'releases within a cluster may differ by one: upgrade one release at a time',
  }))
  if (urls.size + strangers.length === 0) return [{ what: 'nodes', found: 'none is alive', fix: null }]
  const found = await Promise.all([...urls].map(([node, url]) => checkNode(node, url)))
  return [...found, ...strangers]
}

async function checkNode(node: string, url: string): Promise<Finding> {
  const what = `node ${node}`
  try {
    const begun = Date.now()
    const reply = await fetch(`${url}/livez`, { signal: AbortSignal.timeout(NODE_MS) })
    await reply.arrayBuffer()
    const date = Date.parse(reply.headers.get('date') ?? '')
    if (!reply.ok) throw new Error(`it answers ${reply.status}`)
    // The header has whole seconds, so half a second is added.
    const skewMs = Number.isNaN(date) ? 0 : date + 500 - begun
    const { found, fix } = clock(what, skewMs, 'this machine')
    return { what, found: `${url} answers; its clock is ${found}`, fix }
  } catch (error) {
    const reason = error instanceof Error ? String(error.cause ?? error.message) : String(error)
    const fix = `${url} cannot be reached from here: ${reason}; members must reach it (--node-url)`
    return { what, found: 'does not answer', fix }
  }
}
