/**
 * The lease of an engine's process: a row of the database whose expiry is extended every two seconds. The process
 * starts its own clock before the database does, so it stops before anyone else may start.
 */
import { randomBytes } from 'node:crypto'
import { SkeinError } from '../errors.ts'
import type { Connection, Database } from './database.ts'
import { LeaseView, monotonicNow } from './lease-view.ts'
import { checkNear, PROTOCOL, protocolOf } from './protocol.ts'

export const MEMBERS_CHANNEL = 'skein_members'

/** What others need to know of an engine's process. */
export interface WorkerFacts {
  /** Never used before: a restarted process has a new id. */
  readonly id: string
  /** The server that it belongs to. */
  readonly node: string
  /** URL at which other nodes reach that server. */
  readonly url: string
  /** The name of the model in the API. */
  readonly model: string
  /** Identifies shape, vocabulary and weights: states fit between workers with the same fingerprint. */
  readonly fingerprint: string
  readonly slots: number
  /** Plain JSON for people and dashboards. */
  readonly info: Readonly<Record<string, unknown>>
}

const ID_BYTES = 8

export function newWorkerId(node: string): string {
  return `${node}-${randomBytes(ID_BYTES).toString('hex')}`
}

/** The node of a worker, even if that worker is long gone. */
export function nodeOfWorker(id: string): string {
  return id.slice(0, -(2 * ID_BYTES + 1))
}

interface LeaseOptions {
  readonly renewMs?: number | undefined
  readonly leaseMs?: number | undefined
  /** Shared with other threads. */
  readonly view?: LeaseView | undefined
  /** Requests in flight, as reported to others. */
  readonly inFlight?: (() => number) | undefined
}

const RENEW_MS = 2000
const LEASE_MS = 10_000
/** Advisory lock: "join" in ASCII. */
const JOINING = 0x6a_6f_69_6e

export class Lease {
  readonly id: string
  readonly view: LeaseView
  readonly #database: Database
  readonly #facts: WorkerFacts
  readonly #leaseMs: number
  readonly #inFlight: () => number
  #timer: NodeJS.Timeout | null = null

  private constructor(database: Database, facts: WorkerFacts, options: LeaseOptions) {
    const { leaseMs = LEASE_MS, view = new LeaseView(), inFlight = () => 0 } = options
    this.id = facts.id
    this.view = view
    this.#database = database
    this.#facts = facts
    this.#leaseMs = leaseMs
    this.#inFlight = inFlight
  }

  /** Resolves when the row exists. Throws conflict if a member runs a release that is too far from this one. */
  static async join(database: Database, facts: WorkerFacts, options: LeaseOptions = {}): Promise<Lease> {
    const lease = new Lease(database, facts, options)
    await database.query("delete from worker where expires < now() - interval '10 minutes'")
    const sentAt = monotonicNow()
    const wasOver = await database.transaction(async (connection) => {
      // Joins one at a time, so that of two simultaneous starts the later sees the earlier.
      await connection.query('select pg_advisory_xact_lock($1)', [JOINING])
      const sql = 'select id, info from worker where expires > now()'
      const { rows } = await connection.query<Pick<WorkerFacts, 'id' | 'info'>>(sql)
      const own = protocolOf({ protocol: PROTOCOL, ...facts.info })
      for (const { id, info } of rows) checkNear(protocolOf(info), `worker ${id}`, own)
      return lease.#write(connection)
    })
    lease.view.extend(sentAt, lease.#leaseMs, wasOver)
    await lease.#tell()
    const { renewMs = RENEW_MS } = options
    // A hanging renewal does not delay the next.
    lease.#timer = setInterval(() => lease.renew().catch(() => {}), renewMs).unref()
    return lease
  }

  /** The database counts from when the statement arrives; this process counts from when it was sent. */
  async renew(): Promise<void> {
    const sentAt = monotonicNow()
    const wasOver = await this.#write(this.#database)
    // If it had expired, by time, by hand, or by a changed clock, others may have taken its sessions.
    this.view.extend(sentAt, this.#leaseMs, wasOver)
  }

  /** Whether it had expired or did not exist. */
  async #write(on: Connection): Promise<boolean> {
    const { id, node, url, model, fingerprint, slots, info } = this.#facts
    const { rows } = await on.query<{ wasOver: boolean }>(
      `with old as (select expires <= now() as over from worker where id = $1)
       insert into worker (id, node, url, model, fingerprint, slots, info, in_flight, expires)
       values ($1, $2, $3, $4, $5, $6, $7, $8, statement_timestamp() + $9 * interval '1 millisecond')
       on conflict (id) do update set in_flight = excluded.in_flight, expires = excluded.expires
       returning coalesce((select over from old), true) as "wasOver"`,
      [
        ...[id, node, url, model, fingerprint, slots],
        JSON.stringify({ protocol: PROTOCOL, ...info }),
        ...[this.#inFlight(), this.#leaseMs],
      ],
    )
    return rows[0]!.wasOver
  }

  /** Throws state_unavailable if it has expired: nothing may be promised any more. */
  check(): void {
    if (this.view.isOver) throw leaseOver()
  }

  /** Releases all sessions and deletes the row, so that others need not wait for its expiry. */
  async leave(): Promise<void> {
    if (this.#timer !== null) clearInterval(this.#timer)
    this.view.end()
    await this.#database.query('update session set owner = null, former = owner where owner = $1', [this.id])
    await this.#database.query('delete from worker where id = $1', [this.id])
    await this.#tell()
  }

  async #tell(): Promise<void> {
    await this.#database.query('select pg_notify($1, $2)', [MEMBERS_CHANNEL, this.id])
  }
}

/** Ends the leases of a process that has gone, so that its sessions are free now and not at expiry. */
export async function endLeasesOf(on: Connection, node: string, pid: number): Promise<void> {
  const sql = "delete from worker where node = $1 and info->>'pid' = $2 returning id"
  const { rows } = await on.query<{ id: string }>(sql, [node, String(pid)])
  for (const { id } of rows) await on.query('select pg_notify($1, $2)', [MEMBERS_CHANNEL, id])
}

function leaseOver(): SkeinError {
  return new SkeinError(
    'state_unavailable',
    "this worker could not reach the cluster's database for a while, and another may have the session; try again",
    { retryAfterSeconds: 2 },
  )
}
