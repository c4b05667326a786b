/** The SQLite driver: opening a database file, and telling a held lock from other errors. Knows no table. */
import { pathToFileURL } from 'node:url'
import { DatabaseSync, type EnhancedDatabaseSync, enhance } from '@photostructure/sqlite'

export type Database = EnhancedDatabaseSync<InstanceType<typeof DatabaseSync>>

interface OpenOptions {
  /** Milliseconds to wait for other processes' locks. */
  readonly timeout: number
}

/** Opens a file that exists. */
export function openDatabase(path: string, { timeout }: OpenOptions): Database {
  const url = pathToFileURL(path)
  url.searchParams.set('mode', 'rw')
  return enhance(new DatabaseSync(url, { timeout }))
}

/** How long to wait before the lock is asked for again: two milliseconds at first, half of it after so much waiting. */
const [FIRST_WAIT_MS, HALVED_AFTER_MS, LEAST_WAIT_MS] = [2, 20, 0.5]
/** Who has the lock for so long does not end now: then a part of the time waited so far. */
const [LONG_MS, PART_OF_WAIT] = [1000, 1 / 500]
const CELL = new Int32Array(new SharedArrayBuffer(4))

/**
 * Waiting for others' locks. SQLite's own wait asks again after longer and longer pauses, up to a tenth of a second. Beside
 * others that have just begun to wait it would hardly ever find the lock free: of eight workers some stood still for a second
 * or two. So whatever needs the lock waits like this, or it would come last. Who has waited longer asks more often, so it is
 * likely to be the next: the other way round, one of eight workers fell further and further behind.
 */
export class Patience {
  readonly #began = performance.now()
  readonly #mostMs: number

  constructor(mostMs: number) {
    this.#mostMs = mostMs
  }

  get leftMs(): number {
    return Math.max(0, this.#mostMs - (performance.now() - this.#began))
  }

  /** Waits for a moment; false, at once, when the time is over. */
  waits(): boolean {
    const waitedMs = performance.now() - this.#began
    if (waitedMs >= this.#mostMs) return false
    const soon = Math.max(LEAST_WAIT_MS, (FIRST_WAIT_MS * HALVED_AFTER_MS) / (HALVED_AFTER_MS + waitedMs))
    const ms = waitedMs < LONG_MS ? soon : waitedMs * PART_OF_WAIT
    // Not in step with the others.
    Atomics.wait(CELL, 0, 0, ms * (0.5 + Math.random()))
    return true
  }
}

/** Runs a transaction that excludes others from its first statement on; waits `timeoutMs` at most for theirs. */
export function alone<T>(db: Database, timeoutMs: number, work: () => T): T {
  const patience = new Patience(timeoutMs)
  try {
    db.pragma('busy_timeout = 0')
    while (!begins(db, patience));
  } finally {
    db.pragma(`busy_timeout = ${timeoutMs}`)
  }
  try {
    const result = work()
    db.exec('COMMIT')
    return result
  } catch (error) {
    // SQLite has undone it already after some errors.
    if (db.isTransaction) db.exec('ROLLBACK')
    throw error
  }
}

/** False after a pause: another has the lock. Asked for so often, this must cost little (`db.transaction` takes twice as long). */
function begins(db: Database, patience: Patience): boolean {
  try {
    db.exec('BEGIN IMMEDIATE')
    return true
  } catch (error) {
    if (isLocked(error) && patience.waits()) return false
    throw error
  }
}

/** Another connection holds a lock that this one needed. SQLite's primary result code is the low byte. */
export function isLocked(error: unknown): boolean {
  return isSqliteError(error) && (error.errcode & 0xff) === SQLITE_BUSY
}

export function isSqliteError(error: unknown): error is Error & { readonly errcode: number } {
  return error instanceof Error && 'errcode' in error && typeof error.errcode === 'number'
}

/** Nothing can be written: the disk is full, or broken, or to be read alone. */
export function isWithoutRoom(error: unknown): boolean {
  return isSqliteError(error) && NO_ROOM.includes(error.errcode & 0xff)
}

const SQLITE_BUSY = 5
/** SQLITE_READONLY, SQLITE_IOERR and SQLITE_FULL. */
const NO_ROOM = [8, 10, 13]
