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

/** How long to wait before the lock is asked for again: as short as a commit at first, later a part of the time waited so far. */
const [LEAST_WAIT_MS, PART_OF_WAIT] = [0.5, 1 / 500]

/**
 * Runs a transaction that excludes others from its first statement on; waits `timeoutMs` at most for theirs. SQLite's own wait
 * asks again after longer and longer pauses, up to a tenth of a second. Beside others that have just begun to wait it would
 * hardly ever find the lock free: of eight workers some stood still for a second or two.
 */
export function alone<T>(db: Database, timeoutMs: number, work: () => T): T {
  const began = performance.now()
  const wait = (ms: number) => db.pragma(`busy_timeout = ${ms}`)
  const begun = () => {
    wait(timeoutMs)
    return work()
  }
  wait(0)
  for (;;) {
    try {
      return db.transaction(begun).immediate()
    } catch (error) {
      const waitedMs = performance.now() - began
      if (isLocked(error) && waitedMs < timeoutMs) pause(LEAST_WAIT_MS + waitedMs * PART_OF_WAIT * Math.random())
      else {
        wait(timeoutMs)
        throw error
      }
    }
  }
}

function pause(ms: number): void {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms)
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
