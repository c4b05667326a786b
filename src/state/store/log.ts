/**
 * The write-ahead log of a store's database: when it is moved into the database and emptied, and how commits proceed
 * while a read transaction of another process prevents that.
 */
import { statSync } from 'node:fs'
import { SkeinError } from '../../errors.ts'
import { warn } from './failures.ts'
import { alone, type Database, isLocked, Patience } from './sqlite.ts'

/** From this length on the log is emptied between commits. */
const FULL_BYTES = 16 * 2 ** 20
/** Above this length it is emptied before the next commit, and SQLite cuts the file to it. */
export const LONG_BYTES = 64 * 2 ** 20
/** Longer than this it may not get; a commit is a few megabytes. */
const MAX_BYTES = 240 * 2 ** 20
/** While the log cannot be emptied, larger states are written as files. */
const SCARCE_INLINE_BYTES = 4096
/** From this length on, emptying waits for readers, including new ones that overlap with the first. */
const URGENT_BYTES = 128 * 2 ** 20
/** From here on each time, as long as that helps. */
const LAST_BYTES = 192 * 2 ** 20
/** How often emptying is tried while the log is long, and how long it waits for others. */
const RETRY_MS = 1000
const WAIT_MS = 200
/** How long it waits, with the lock, for readers: whoever asks for the lock is one for a moment, and in vain it would be all again. */
const BRIEFLY_MS = 20
/** The share of time that may be spent waiting in vain. */
const PATIENT_SHARE = 0.1

export class StoreLog {
  readonly #db: Database
  readonly #path: string
  readonly #lockTimeoutMs: number
  /** There may be something in it. */
  #isUsed = true
  /** Its length after the last commit. */
  #usedBytes = 0
  #retryAt = 0
  #patientAt = 0
  /** Readers that were waited for have ended. */
  #isWorthWaiting = true

  /** `lockTimeoutMs` is the database's. */
  constructor(db: Database, lockTimeoutMs: number) {
    this.#db = db
    this.#path = `${db.location()}-wal`
    this.#lockTimeoutMs = lockTimeoutMs
  }

  get bytes(): number {
    return statSync(this.#path, { throwIfNoEntry: false })?.size ?? 0
  }

  /** Something was committed. */
  used(): void {
    this.#isUsed = true
    this.#usedBytes = this.bytes
  }

  /** Another process has emptied it since. One that begins the log anew cuts it as well, but to no less than LONG_BYTES. */
  get wasEmptied(): boolean {
    return this.bytes < Math.min(this.#usedBytes, LONG_BYTES)
  }

  /**
   * Moves the log into the database and empties it, unless others are reading: then it is still used, and tried again later.
   * Most is moved beside others' transactions, which leaves little to do under the lock; and that is waited for as by a commit,
   * because each try to empty writes and syncs what has come since the last. `mayLeaveIt`: to another that is at it.
   */
  empty(waitMs = WAIT_MS, mayLeaveIt = false): 'empty' | 'used' | 'left' {
    if (!this.#isUsed) return 'empty'
    const patience = new Patience(waitMs)
    try {
      const [moved] = this.#db.pragma('wal_checkpoint(PASSIVE)') as { busy: number }[]
      // Another is at it, and a turn at the lock would only be in its way.
      if (mayLeaveIt && moved?.busy !== 0) return 'left'
      do {
        alone(this.#db, patience.leftMs, () => {})
        this.#db.pragma(`busy_timeout = ${BRIEFLY_MS}`)
        const [result] = this.#db.pragma('wal_checkpoint(TRUNCATE)') as { busy: number }[]
        this.#isUsed = result?.busy !== 0
      } while (this.#isUsed && patience.waits())
    } catch (error) {
      if (!isLocked(error)) warn('the log of the store could not be emptied', error)
    } finally {
      this.#db.pragma(`busy_timeout = ${this.#lockTimeoutMs}`)
    }
    return this.#isUsed ? 'used' : 'empty'
  }

  /** Between commits. */
  tend(): void {
    if (this.bytes > FULL_BYTES) this.#tryToEmpty()
  }

  /** Before a commit: the largest state that may go through the log. Throws while it is full. */
  inlineBytes(usual: number): number {
    if (this.bytes <= LONG_BYTES) return usual
    this.#tryToEmpty()
    const { bytes } = this
    if (bytes <= LONG_BYTES) return usual
    if (bytes <= MAX_BYTES) return Math.min(usual, SCARCE_INLINE_BYTES)
    const message = `the log of the session database has ${Math.round(bytes / 2 ** 20)} MiB and cannot be emptied while another process reads the database; end its read transaction`
    throw new SkeinError('state_unavailable', message)
  }

  #tryToEmpty(): void {
    const now = performance.now()
    const isLast = this.#isWorthWaiting && this.bytes > LAST_BYTES
    if (now < this.#retryAt && !isLast) return
    const isPatient = isLast || (this.bytes > URGENT_BYTES && now >= this.#patientAt)
    this.#isUsed = true
    this.empty(isPatient ? this.#lockTimeoutMs : WAIT_MS, !isPatient)
    const end = performance.now()
    if (this.#isUsed) this.#retryAt = end + RETRY_MS
    if (!isPatient) return
    this.#isWorthWaiting = !this.#isUsed
    this.#patientAt = end + (end - now) / PATIENT_SHARE
  }
}
