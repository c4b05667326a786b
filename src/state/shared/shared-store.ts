/**
 * A store that all nodes of a cluster share: sessions and small states are rows of its database, large states are blobs.
 * A change is one statement. A blob is kept before the statement that names it and removed after the one that no longer
 * does; what a crash leaves between the two is found by age (`sweep`). It runs in a thread of its own, store/thread.ts.
 */

import { Database } from '../../cluster/database.ts'
import { Lease, newWorkerId, type WorkerFacts } from '../../cluster/lease.ts'
import { LeaseView } from '../../cluster/lease-view.ts'
import { MemberSeal } from '../../cluster/member-seal.ts'
import { forgetOldMoves } from '../../cluster/moves.ts'
import { letGo, ownerOf, type SessionKey, take } from '../../cluster/ownership.ts'
import { SkeinError } from '../../errors.ts'
import { modelKeyOf } from '../model-key.ts'
import type { ModelIdentity, Snapshot } from '../snapshot.ts'
import { snapshotParts } from '../snapshot-file.ts'
import { unavailable, unwritten, warn } from '../store/failures.ts'
import {
  type Claim,
  expiresAt,
  type ListPage,
  MAX_INLINE_BYTES,
  nameKey,
  readStored,
  type SessionName,
  type SessionRecord,
  type StatePut,
  type StoreChange,
  type StoredSession,
  type Usage,
  VERSION_GAP,
} from '../store/store.ts'
import type { Blobs } from './blobs.ts'
import { type Coming, Handover } from './handover.ts'
import { openBlobs } from './open-blobs.ts'
import { removeIdle, SharedPrefixes } from './prefixes.ts'
import * as rows from './rows.ts'
import { removeStale, wanted } from './rows.ts'
import { StoredStates } from './stored-states.ts'

/** What a worker says of itself besides what its store knows. */
export type MemberFacts = Omit<WorkerFacts, 'id' | 'fingerprint'>

export interface SharedStoreOptions {
  /** postgres://… */
  readonly database: string
  /** s3://… or file:///… */
  readonly blobs: string
  readonly identity: ModelIdentity
  readonly worker: MemberFacts
  /** Turns are told of before they are written. */
  readonly isToldFirst: boolean
  /** The words of a LeaseView, shared with the engine's thread. */
  readonly leaseWords?: BigInt64Array | undefined
  /** i32 [1], shared: requests under way. */
  readonly numInFlight?: Int32Array | undefined
  readonly renewMs?: number | undefined
  readonly leaseMs?: number | undefined
  readonly now?: (() => number) | undefined
  /** The members' key, used instead of the secret in the database. */
  readonly key?: string | undefined
  /** How long a state is offered to the next owner of its session, and how long one is waited for. */
  readonly offerMs?: number | undefined
  readonly fetchMs?: number | undefined
  /** Larger states are blobs. */
  readonly maxInlineBytes?: number | undefined
}

/** A session that nobody had a moment ago is somebody's now. */
const TRIES = 5
const SWEEP_CHECK_MS = 10 * 60_000

export class SharedStore {
  readonly secret: Uint8Array
  /** This process, among those of the cluster. */
  readonly owner: string
  readonly lease: Lease
  readonly prefixes: SharedPrefixes
  readonly #database: Database
  readonly #states: StoredStates
  readonly #handover: Handover
  readonly #options: SharedStoreOptions
  readonly #model: string
  readonly #now: () => number
  /** What claimed sessions are written with. */
  readonly #fences = new Map<string, number>()
  /** Blobs of states that are not in the database yet, by key: another try need not bring them again. */
  readonly #staged = new Map<string, string>()
  readonly #sweeping: NodeJS.Timeout

  private constructor(database: Database, blobs: Blobs, lease: Lease, handover: Handover, options: SharedStoreOptions) {
    this.secret = database.secret
    this.owner = lease.id
    this.lease = lease
    this.#database = database
    this.#handover = handover
    this.#options = options
    this.#model = modelKeyOf(options.identity)
    const { identity, maxInlineBytes = MAX_INLINE_BYTES } = options
    this.#states = new StoredStates({ database, blobs, identity, maxInlineBytes })
    this.prefixes = new SharedPrefixes(database, this.#model, this.#states)
    this.#now = options.now ?? Date.now
    this.#sweeping = setInterval(() => {
      sweepWhenDue(database, blobs).catch((error) => warn('old states were not looked for', error))
    }, SWEEP_CHECK_MS).unref()
  }

  static async open(options: SharedStoreOptions): Promise<SharedStore> {
    const blobs = openBlobs(options.blobs)
    const database = await Database.open(options.database)
    try {
      const { identity, worker, leaseWords, numInFlight, renewMs, leaseMs, key } = options
      const id = newWorkerId(worker.node)
      const facts = { ...worker, id, fingerprint: modelKeyOf(identity) }
      const lease = await Lease.join(database, facts, {
        renewMs,
        leaseMs,
        view: new LeaseView(leaseWords),
        inFlight: () => (numInFlight === undefined ? 0 : Atomics.load(numInFlight, 0)),
      })
      const handover = await Handover.open({
        ...{ database, worker: id, model: facts.fingerprint },
        seal: new MemberSeal(key ?? database.secret),
        minBytes: options.maxInlineBytes ?? MAX_INLINE_BYTES,
        ...{ offerMs: options.offerMs, fetchMs: options.fetchMs },
      })
      return new SharedStore(database, blobs, lease, handover, options)
    } catch (error) {
      await database.close()
      throw error
    }
  }

  find(name: SessionName): Promise<StoredSession | null> {
    return rows.find(this.#database, this.#model, name, this.#now())
  }

  list(namespace: string, page: ListPage): Promise<StoredSession[]> {
    return rows.list(this.#database, this.#elsewhere(namespace), page)
  }

  usage(namespace: string): Promise<Usage> {
    return rows.usage(this.#database, this.#elsewhere(namespace))
  }

  async claim(name: SessionName, mayCreate: boolean): Promise<Claim> {
    this.lease.check()
    const gap = this.#options.isToldFirst ? VERSION_GAP : 0
    for (let i = 0; i < TRIES; i++) {
      const taken = await take(this.#database, this.#keyOf(name), { worker: this.owner, mayCreate, gap })
      if (taken !== null) {
        this.#fences.set(nameKey(name), taken.fence)
        // Written by publish.
        const record = taken.record as SessionRecord | null
        const session = record === null ? null : await this.#fresh({ ...name, record })
        const { former } = taken
        const [others] = await Promise.all([
          this.usage(name.namespace),
          session === null || former === null ? null : this.#handover.expect(session, former),
        ])
        return { session, others }
      }
      await this.#refuseForeign(name)
      if (!mayCreate && (await this.#isGone(name))) return { session: null, others: await this.usage(name.namespace) }
    }
    throw new SkeinError('conflict', `session ${name.id} changes hands; try again`)
  }

  async expire(): Promise<void> {
    await this.#removeUnused(await rows.expire(this.#database, this.#now()))
  }

  /** Throws state_unavailable for what is missing, damaged or another's, state_incompatible for another model's. */
  async load(key: string, namespace: string): Promise<Snapshot> {
    const coming = this.#handover.take(key)
    const began = performance.now()
    try {
      const direct = coming === null ? null : await this.#direct(coming, key, namespace)
      const snapshot = direct ?? (await this.#states.get(key, namespace))
      if (coming !== null) this.#handover.note(coming, direct !== null, performance.now() - began)
      return snapshot
    } catch (error) {
      if (error instanceof SkeinError && error.code === 'state_incompatible') throw error
      throw unavailable('read', error)
    }
  }

  offer({ key, floats, namespace, isForeign, ...text }: StatePut): void {
    const { identity } = this.#options
    this.#handover.offer(key, snapshotParts({ ...text, floats }, identity, { namespace, isForeign, key }))
  }

  async commit({ puts, sessions, deleteKeys, releases = [] }: StoreChange): Promise<SessionName[]> {
    const changes = this.#changesOf(sessions, releases)
    const given = changes.filter(({ fence }) => fence !== NO_FENCE)
    let outcome: rows.Outcome
    try {
      const states = await Promise.all(puts.map((put) => this.#stage(put)))
      outcome = await rows.publish(this.#database, this.#model, given, states)
      for (const change of changes)
        if (change.fence === NO_FENCE && change.isReleased) await letGo(this.#database, this.#keyOf(change), this.owner)
    } catch (error) {
      throw unwritten(error)
    }
    const held = new Set(outcome.held.map(nameKey))
    const lost: SessionName[] = []
    for (const { namespace, id, record, isReleased } of changes) {
      const name = { namespace, id }
      const isHeld = held.has(nameKey(name))
      if (!isHeld || record === null || isReleased) this.#fences.delete(nameKey(name))
      if (!isHeld && record !== undefined && !(record === null && (await this.#isGone(name)))) lost.push(name)
    }
    const keys = puts.map(({ key }) => key)
    for (const key of keys) this.#staged.delete(key)
    const unused = [...outcome.dropped, ...deleteKeys, ...(lost.length > 0 ? keys : [])]
    await this.#removeUnused(unused)
    return lost
  }

  /** Gives up all claims. */
  async close(): Promise<void> {
    clearInterval(this.#sweeping)
    this.#handover.close()
    try {
      await this.lease.leave()
    } catch (error) {
      // They end with the lease.
      warn('the sessions of this worker stay its own for a while', error)
    }
    await this.#database.close()
  }

  /** Null: the worker that had it has nothing, or not this. */
  async #direct(coming: Coming, key: string, namespace: string): Promise<Snapshot | null> {
    const of = { key, namespace, identity: this.#options.identity }
    const file = await this.#handover.fetch(coming, key)
    try {
      return file === null ? null : readStored(file, of, true)
    } catch {
      return null
    }
  }

  /** One entry a session: the last of those that are about it. */
  #changesOf(sessions: StoreChange['sessions'], releases: readonly SessionName[]): rows.Published[] {
    const changes = new Map<string, rows.Published>()
    const fenceOf = (name: SessionName) => this.#fences.get(nameKey(name)) ?? NO_FENCE
    for (const { namespace, id, record } of sessions) {
      const name = { namespace, id }
      changes.set(nameKey(name), { ...name, fence: fenceOf(name), record, isReleased: false })
    }
    for (const { namespace, id } of releases) {
      const name = { namespace, id }
      const change = changes.get(nameKey(name)) ?? { ...name, fence: fenceOf(name) }
      changes.set(nameKey(name), { ...change, isReleased: true })
    }
    return [...changes.values()]
  }

  async #stage(put: StatePut): Promise<rows.StoredState> {
    const { key } = put
    const staged = this.#staged.get(key)
    if (staged !== undefined) return { key, inline: null, blob: staged }
    const state = await this.#states.put(put)
    if (state.blob !== null) this.#staged.set(key, state.blob)
    return state
  }

  /** Of states that are not needed by what was written; what cannot be removed now is found by age. */
  async #removeUnused(keys: readonly string[]): Promise<void> {
    try {
      const staged = keys.flatMap((key) => this.#staged.get(key) ?? [])
      for (const key of keys) this.#staged.delete(key)
      await this.#states.removeUnused(keys, staged)
    } catch (error) {
      warn('a deleted state is still there', error)
    }
  }

  /** One whose time is over begins anew: the claim stays, its turns go. */
  async #fresh(session: StoredSession): Promise<StoredSession | null> {
    const end = expiresAt(session.record)
    if (end === null || end > this.#now()) return session
    const { namespace, id } = session
    await this.commit({ puts: [], sessions: [{ namespace, id, record: null }], deleteKeys: [] })
    const taken = await take(this.#database, this.#keyOf(session), { worker: this.owner, mayCreate: true, gap: 0 })
    if (taken === null) await this.#refuseForeign(session)
    else this.#fences.set(nameKey(session), taken.fence)
    return null
  }

  /** Throws when a live worker has it. Workers of one server know each other; of another, it is that which is to be asked. */
  async #refuseForeign(name: SessionName): Promise<void> {
    const owner = await ownerOf(this.#database, this.#keyOf(name))
    if (owner === null || owner.owner === this.owner) return
    if (owner.node === this.#options.worker.node)
      throw new SkeinError('conflict', `session ${name.id} is in the hands of another worker`)
    throw new SkeinError('misdirected', `session ${name.id} is on another node`, { location: owner.url })
  }

  async #isGone(name: SessionName): Promise<boolean> {
    return !(await rows.exists(this.#database, this.#model, name).catch(() => true))
  }

  #elsewhere(namespace: string): rows.Elsewhere {
    return { model: this.#model, namespace, worker: this.owner, now: this.#now() }
  }

  #keyOf({ namespace, id }: SessionName): SessionKey {
    return { model: this.#model, tenant: namespace, id }
  }
}

/** Fence of a session that is not claimed here. */
const NO_FENCE = 0

/** Longer than any write takes, by any clock: the storage's is not ours. */
const AGE_MS = 24 * 3_600_000
const NAMES_AT_ONCE = 1000

/** By one worker of the cluster an hour. */
async function sweepWhenDue(database: Database, blobs: Blobs): Promise<void> {
  const sql = "update cluster set swept = now() where swept < now() - interval '1 hour'"
  const { count } = await database.query(sql)
  if (count === 0) return
  await forgetOldMoves(database)
  for (const blob of await removeIdle(database)) await blobs.remove(blob)
  await sweep(database, blobs)
}

/** Returns how many blobs it has removed. */
export async function sweep(database: Database, blobs: Blobs, ageMs = AGE_MS): Promise<number> {
  for (const blob of await removeStale(database, ageMs)) await blobs.remove(blob)
  const end = Date.now() - ageMs
  let old: string[] = []
  let count = 0
  const removeOrphans = async () => {
    const named = await wanted(database, old)
    const orphans = old.filter((name) => !named.has(name))
    old = []
    for (const name of orphans) await blobs.remove(name)
    count += orphans.length
  }
  for await (const { name, changedAt } of blobs.list()) {
    if (changedAt > end) continue
    old.push(name)
    if (old.length >= NAMES_AT_ONCE) await removeOrphans()
  }
  await removeOrphans()
  return count
}
