/**
 * The store itself: one SQLite database and a folder of large states, of one model, in one folder that several processes
 * may use. Synchronous; thread.ts keeps it off the engine's thread.
 *
 * A change is one transaction. A state larger than a megabyte is a file: its bytes are on disk before the transaction
 * that refers to it, it gets its name within that, and it goes after the one that no longer refers to it. Names are given
 * and files removed only under the database's lock, so a process never takes away what another is about to refer to;
 * what a crash leaves behind is a file that nothing refers to, which the next start of any process removes.
 */
import { join } from 'node:path'
import { SkeinError } from '../../errors.ts'
import { joinBytes } from '../../files/bytes.ts'
import { makeFolder } from '../../files/make-folder.ts'
import type { ModelIdentity, Snapshot } from '../snapshot.ts'
import { snapshotParts } from '../snapshot-file.ts'
import { Blobs } from './blobs.ts'
import { type ConnectionOptions, connect, LOCK_TIMEOUT_MS, OPEN_TIMEOUT_MS } from './connection.ts'
import { unavailable, unwritten, warn } from './failures.ts'
import { type FileLayer, realFiles } from './files.ts'
import { StoreLog } from './log.ts'
import { Owners } from './owners.ts'
import { SessionRows, type StateRow } from './session-rows.ts'
import { alone, type Database, isWithoutRoom } from './sqlite.ts'
import {
  type Claim,
  type ClaimAsk,
  type ListPage,
  MAX_INLINE_BYTES,
  nameKey,
  readStored,
  type SessionName,
  type StatePut,
  type StoreChange,
  type StoredSession,
  type Usage,
} from './store.ts'

export interface DatabaseOptions extends ConnectionOptions {
  /** Made if it is not there. */
  readonly folder: string
  readonly identity: ModelIdentity
  /** `owner` of another connection of this process: this one shares its claims and is closed before it. */
  readonly owner?: string | undefined
  /** Turns of this store are told of before they are written; absent: where this connection is not durable. */
  readonly isToldFirst?: boolean | undefined
  readonly now?: (() => number) | undefined
  readonly files?: FileLayer | undefined
  /** Larger states are files. */
  readonly maxInlineBytes?: number | undefined
}

/** A state that can be referred to. */
interface StagedState extends StateRow {
  readonly key: string
  /** The file's temporary name until then. */
  readonly staged: string | null
}

export class StoreDatabase {
  /** This process, among those that use the store. */
  readonly owner: string
  readonly #db: Database
  readonly #rows: SessionRows
  readonly #owners: Owners
  readonly #blobs: Blobs
  readonly #options: DatabaseOptions
  /** This connection registered the owner. */
  readonly #isFirst: boolean
  readonly #now: () => number
  readonly #log: StoreLog
  /** Files that nothing refers to, and when the first of them, or of rows, was removed since the log was last emptied. */
  #removed: string[] = []
  #removedAt: number | null = null

  constructor(options: DatabaseOptions) {
    const { folder, owner, files = realFiles, now = Date.now } = options
    this.#options = options
    this.#isFirst = owner === undefined
    this.#now = now
    const blobFolder = join(folder, 'states')
    makeFolder(blobFolder, 0o700)
    this.#db = connect(join(folder, 'sessions.db'), options)
    this.#log = new StoreLog(this.#db, LOCK_TIMEOUT_MS)
    try {
      this.#rows = new SessionRows(this.#db)
      this.#owners = new Owners(join(folder, 'owners'))
      this.owner = owner ?? alone(this.#db, OPEN_TIMEOUT_MS, () => this.#owners.register())
      this.#blobs = new Blobs(blobFolder, files, this.owner)
      if (this.#isFirst) this.#collect()
    } catch (error) {
      this.#db.close()
      throw error
    }
  }

  sessions(): StoredSession[] {
    return this.#rows.all()
  }

  find(name: SessionName): StoredSession | null {
    return this.#rows.isExpired(name, this.#now()) ? null : this.#rows.find(name)
  }

  list(namespace: string, page: ListPage): StoredSession[] {
    return this.#rows.list({ namespace, owner: this.owner, now: this.#now() }, page)
  }

  usage(namespace: string): Usage {
    return this.#rows.usage({ namespace, owner: this.owner, now: this.#now() })
  }

  claim(name: SessionName, mayCreate: boolean): Claim {
    const [claim] = this.claimAll([{ name, mayCreate }])
    if (claim instanceof SkeinError) throw claim
    return claim!
  }

  /** One turn at the lock for all; one that is refused does not affect the others. */
  claimAll(asked: readonly ClaimAsk[]): (Claim | SkeinError)[] {
    const removed: string[][] = []
    try {
      const found = this.#locked(() => asked.map((ask) => this.#claim(ask, removed)))
      this.#remove(removed.flat(), removed.length > 0)
      const namespaces = new Set(asked.map(({ name }) => name.namespace))
      const usage = new Map([...namespaces].map((namespace) => [namespace, this.usage(namespace)]))
      const othersOf = (i: number) => usage.get(asked[i]!.name.namespace)!
      return found.map((one, i) => (one instanceof SkeinError ? one : { session: one, others: othersOf(i) }))
    } catch (error) {
      // Where nothing can be written it depends on each.
      return asked.length > 1 ? asked.flatMap((ask) => this.claimAll([ask])) : [this.#unclaimed(asked[0]!, error)]
    }
  }

  /** Under the lock. Adds the files of a session that is over to `removed`. */
  #claim({ name, mayCreate }: ClaimAsk, removed: string[][]): StoredSession | SkeinError | null {
    const refusal = this.#refusalOf(name)
    if (refusal !== null) return refusal
    if (this.#rows.isExpired(name, this.#now())) removed.push(this.#removeSession(name))
    const found = this.#rows.find(name)
    if (found !== null || mayCreate) this.#rows.claim(name, this.owner)
    return found
  }

  #unclaimed({ name, mayCreate }: ClaimAsk, error: unknown): Claim | SkeinError {
    const isNew = mayCreate && this.#isToldFirst && isWithoutRoom(error)
    // Turns are told of before they are written, the first one of a session too.
    if (isNew && this.#rows.find(name) === null)
      return { session: null, others: this.usage(name.namespace), isUnclaimed: true }
    return error instanceof SkeinError ? error : unavailable('claimed', error)
  }

  expire(): void {
    const removed = this.#locked(() => {
      const over = this.#rows.expired(this.#now())
      return over.map((name) => this.#removeSession(name))
    })
    this.#remove(removed.flat(), removed.length > 0)
  }

  /**
   * Throws state_unavailable when the state is missing, damaged or another tenant's, state_incompatible when it is
   * another model's.
   */
  load(key: string, namespace: string): Snapshot {
    try {
      const row = this.#rows.stateOf(key)
      if (row === undefined) throw new SkeinError('state_unavailable', 'it is not there')
      const of = { key, namespace, identity: this.#options.identity }
      return row.inline ? readStored(row.inline, of) : readStored(this.#blobs.read(row.file!), of, true)
    } catch (error) {
      if (error instanceof SkeinError && error.code === 'state_incompatible') throw error
      throw unavailable('read', error)
    }
  }

  /** Writes all of the change, except the sessions that it returns, or nothing. Throws state_refused and state_unavailable. */
  commit(change: StoreChange): readonly SessionName[] {
    const staged: StagedState[] = []
    let removed: string[]
    const lost: SessionName[] = []
    try {
      const { maxInlineBytes = MAX_INLINE_BYTES } = this.#options
      const inlineBytes = this.#log.inlineBytes(maxInlineBytes)
      if (this.#log.wasEmptied) this.#emptied()
      for (const put of change.puts) staged.push(this.#stage(put, inlineBytes))
      removed = this.#locked(() => this.#apply(change, staged, lost))
    } catch (error) {
      for (const state of staged) this.#unstage(state)
      throw unwritten(error)
    }
    this.#log.used()
    const isDeletion = change.sessions.some(({ record }) => record === null)
    this.#remove(removed, isDeletion)
    return lost
  }

  /**
   * Moves the log into the database and empties it. A failure here is tried again later; the changes are committed
   * anyway. `mayLeaveIt`: to another process that is at it.
   */
  checkpoint(mayLeaveIt = false): void {
    const how = this.#log.empty(undefined, mayLeaveIt)
    if (this.#removedAt !== null) this.#removedAt = how === 'empty' ? null : performance.now()
    // Of a log that another is emptying nothing may be on disk yet, and its rows would be back after a crash of the machine.
    if (how !== 'left') this.#removeFiles()
  }

  /**
   * As checkpoint, if something was removed at least so long ago, and nobody has emptied the log since. Every new turn removes
   * old ones, so many are purged at once; and one of several processes does it for all.
   */
  purge(ageMs = 0): void {
    const isDue = this.#removedAt !== null && performance.now() - this.#removedAt >= ageMs
    if (isDue && !this.#log.wasEmptied) this.checkpoint(true)
    else this.#log.tend()
    if (this.#log.wasEmptied) this.#emptied()
  }

  /** Nothing of what was removed is in the log. */
  #emptied(): void {
    this.#removedAt = null
    this.#removeFiles()
  }

  close(): void {
    this.purge()
    if (this.#isFirst) {
      try {
        this.#locked(() => {
          this.#rows.unclaimAllOf(this.owner)
          this.#owners.close(this.owner)
        })
      } catch (error) {
        // Its lock ends with the process, and with that its claims.
        warn('the claims of this process remain', error)
      }
    }
    this.#db.close()
  }

  /** Runs a transaction that excludes others from its first statement on. */
  #locked<T>(work: () => T): T {
    return alone(this.#db, LOCK_TIMEOUT_MS, work)
  }

  /** Returns files that may go. */
  #apply(
    { sessions, deleteKeys, releases = [], unclaimed = [] }: StoreChange,
    staged: readonly StagedState[],
    lost: SessionName[],
  ): string[] {
    const keys = [...deleteKeys]
    for (const { record, ...name } of sessions) {
      if (unclaimed.some((one) => nameKey(one) === nameKey(name)) && this.#isMeanwhileOthers(name)) {
        lost.push(name)
        keys.push(...(record?.turns ?? []).map(({ key }) => key))
        continue
      }
      const refusal = this.#refusalOf(name)
      if (refusal !== null) throw refusal
      keys.push(...this.#rows.remove(name))
      if (record === null) continue
      this.#rows.put(name, record)
      this.#rows.claim(name, this.owner)
    }
    // A session of another process was not claimed here, or was released already: that must not fail the rest.
    for (const name of releases) if (this.#rows.claimantOf(name) === this.owner) this.#rows.unclaim(name)
    // Only after all sessions were written: a fork may come after the session that its states were of. And before the new
    // states are: they take the pages of the old ones, and each of them is written once.
    const own = new Set(staged.map(({ key }) => key))
    const files = this.#removeUnused(keys.filter((key) => !own.has(key)))
    for (const state of staged) this.#insert(state)
    return [...files, ...this.#removeUnused(keys.filter((key) => own.has(key)))]
  }

  get #isToldFirst(): boolean {
    const { isDurable, isToldFirst = !isDurable } = this.#options
    return isToldFirst
  }

  /** Another process has made a session of that name since this one began it without a claim. */
  #isMeanwhileOthers(name: SessionName): boolean {
    const claimant = this.#rows.claimantOf(name)
    if (claimant === this.owner) return false
    return this.#rows.find(name) !== null || (claimant !== null && this.#owners.isAlive(claimant))
  }

  /** Of a session that another process has. Claims of a dead one are freed here. */
  #refusalOf(name: SessionName): SkeinError | null {
    const claimant = this.#rows.claimantOf(name)
    if (claimant === null || claimant === this.owner) return null
    if (!this.#owners.isAlive(claimant)) {
      this.#bury(claimant)
      return null
    }
    const message = `session ${name.id} is in the hands of another worker; if two servers have the same --data-dir, ask the other one`
    return new SkeinError('conflict', message)
  }

  /** Where turns are answered before they are written, the last ones of a dead process may be missing. */
  #bury(owner: string): void {
    if (this.#isToldFirst) this.#rows.leaveGap(owner)
    this.#rows.unclaimAllOf(owner)
    this.#owners.forget(owner)
  }

  #removeSession(name: SessionName): string[] {
    return this.#removeUnused(this.#rows.remove(name))
  }

  /** Removes those of the states that no session uses. Returns their files. */
  #removeUnused(keys: readonly string[]): string[] {
    const files: string[] = []
    for (const key of keys) {
      if (this.#rows.isUsed(key)) continue
      const file = this.#rows.stateOf(key)?.file
      this.#db.prepare('DELETE FROM states WHERE key = ?').run(key)
      this.#removedAt ??= performance.now()
      if (file) files.push(file)
    }
    return files
  }

  /** Deleted data must not stay in the log, and no crash may restore a row whose file is gone. */
  #remove(files: readonly string[], isUrgent: boolean): void {
    for (const file of files) this.#drop(file)
    if (!isUrgent) return
    this.#log.used()
    this.checkpoint()
  }

  #drop(file: string): void {
    this.#removed.push(file)
    this.#removedAt ??= performance.now()
  }

  #removeFiles(): void {
    const files = this.#removed
    if (files.length === 0) return
    this.#removed = []
    try {
      this.#locked(() => {
        for (const file of files) if (!this.#rows.isNamed(file)) this.#blobs.remove(file)
      })
    } catch (error) {
      // The next start finds them.
      warn('a deleted state is still on disk', error)
    }
  }

  #stage({ key, floats, namespace, isForeign, ...text }: StatePut, inlineBytes: number): StagedState {
    const { identity } = this.#options
    const parts = snapshotParts({ ...text, floats }, identity, { namespace, isForeign, key })
    const size = parts.reduce((sum, part) => sum + part.length, 0)
    if (size <= inlineBytes) return { key, inline: joinBytes(parts), file: null, staged: null }
    return { key, inline: null, file: key, staged: this.#blobs.stage(key, parts) }
  }

  /** The file may have got its name before the transaction failed. */
  #unstage({ file, staged }: StagedState): void {
    if (file !== null) this.#drop(file)
    if (staged === null) return
    try {
      this.#blobs.remove(staged)
    } catch (error) {
      warn('what could not be written is still on disk', error)
    }
  }

  #insert({ key, inline, file, staged }: StagedState): void {
    if (file !== null && staged !== null) this.#blobs.publish(staged, file)
    this.#db.prepare('INSERT OR REPLACE INTO states (key, inline, file) VALUES (?, ?, ?)').run(key, inline, file)
  }

  /** Removes what dead processes have left: claims, states that no session uses, files without a state. */
  #collect(): void {
    alone(this.#db, OPEN_TIMEOUT_MS, () => {
      const owners = new Set([...this.#owners.list(), ...this.#rows.claimants()])
      const alive = new Set([...owners].filter((owner) => this.#owners.isAlive(owner)))
      for (const owner of owners) if (!alive.has(owner)) this.#bury(owner)
      this.#db.exec('DELETE FROM states WHERE key NOT IN (SELECT key FROM uses)')
      const files = this.#db.prepare('SELECT file FROM states WHERE file IS NOT NULL').pluck().all()
      this.#blobs.collect(new Set(files as string[]), (owner) => alive.has(owner)) // TEXT
    })
    this.checkpoint()
  }
}
