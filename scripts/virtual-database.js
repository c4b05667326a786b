/**
 * The simulator's cluster database, in memory and virtual time. It understands only the statements that lease.ts,
 * members.ts and ownership.ts send, and counts them. An unknown statement is an error: the code has changed.
 */
import process from 'node:process'

export class VirtualDatabase {
  /** Since `numStatements` was last set to 0. */
  numStatements = 0
  #now
  /** Rows of workers by id, `expires` in seconds. */
  #workers = new Map()
  /** Rows of sessions by id: their owner's id, or null, and the fence. */
  #sessions = new Map()
  #list = null

  /** `now`: seconds. */
  constructor(now) {
    this.#now = now
    // The time for lease-view.ts.
    process.hrtime.bigint = () => BigInt(Math.round(1e9 * (now() + 1)))
  }

  /** A session from before the run. */
  seed(id, owner) {
    this.#sessions.set(id, { owner, fence: 1 })
  }

  ownerOf(id) {
    return this.#sessions.get(id)?.owner ?? null
  }

  /** rows.ts's statements, one each: publish a turn, release a session. */
  publish() {
    this.numStatements++
  }

  letGo(id) {
    this.numStatements++
    this.#sessions.get(id).owner = null
  }

  /** A statement whose result does not matter here: keys, rates, the use of a tenant. */
  other() {
    this.numStatements++
  }

  transaction(work) {
    return work(this)
  }

  async query(sql, values = []) {
    this.numStatements++
    const text = sql.trim()
    const known = STATEMENTS.find(([beginning]) => text.startsWith(beginning))
    if (known === undefined) throw new Error(`the simulator does not know the statement ${text}`)
    return { rows: this[known[1]](values) ?? [], count: 0 }
  }

  renew([id, node, url, model, fingerprint, slots, info, inFlight, leaseMs]) {
    const old = this.#workers.get(id)
    const expires = this.#now() + leaseMs / 1000
    const facts = { id, node, url, model, fingerprint, slots, info: JSON.parse(info) }
    this.#workers.set(id, { ...facts, inFlight, expires })
    this.#list = null
    return [{ wasOver: old === undefined || old.expires <= this.#now() }]
  }

  /** All gateways ask at the same virtual time. */
  alive() {
    const now = this.#now()
    if (this.#list?.now !== now) {
      const rows = [...this.#workers.values()].filter(({ expires }) => expires > now)
      this.#list = { now, rows }
    }
    return this.#list.rows
  }

  isAlive(worker) {
    return (this.#workers.get(worker)?.expires ?? 0) > this.#now()
  }

  take([, , id, worker]) {
    const row = this.#sessions.get(id) ?? { owner: null, fence: 0 }
    this.#sessions.set(id, row)
    if (row.owner !== null && row.owner !== worker && this.isAlive(row.owner)) return []
    const former = row.owner === worker ? null : row.owner
    row.owner = worker
    row.fence++
    return [{ fence: row.fence, version: 0, record: null, former }]
  }

  owner([, , id]) {
    const owner = this.ownerOf(id)
    if (owner === null || !this.isAlive(owner)) return []
    const { node, url } = this.#workers.get(owner)
    return [{ owner, node, url }]
  }

  nothing() {}
}

/** The beginning of each statement, and the method that answers it. */
const STATEMENTS = [
  ['with old as (select expires', 'renew'],
  ['select id, node, url, model', 'alive'],
  ['select id, info from worker', 'alive'],
  ['insert into session as s', 'take'],
  ['select s.owner, w.node', 'owner'],
  ['delete from worker where expires', 'nothing'],
  ['select pg_advisory_xact_lock', 'nothing'],
  ['select pg_notify', 'nothing'],
]
