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
