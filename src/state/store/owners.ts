/**
 * Which processes use a store, and which of them are alive. Each holds a lock of the operating system on a file of its
 * own, which ends with the process, whatever ended that. Node has no such locks; SQLite takes one on an empty database.
 *
 * To look whether a lock is held is to try to take it, so everything here is done under the lock of the store's own
 * database: two that look at once would each see the other's hold.
 */
import { randomBytes } from 'node:crypto'
import { closeSync, openSync, readdirSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { makeFolder } from '../../files/make-folder.ts'
import { type Database, isLocked, isSqliteError, openDatabase } from './sqlite.ts'

export class Owners {
  readonly #folder: string
  #lock: Database | null = null

  constructor(folder: string) {
    this.#folder = folder
    makeFolder(folder, 0o700)
  }

  /** A new owner, alive until `close` or the end of the process. The name begins with the process's id. */
  register(): string {
    const owner = `${process.pid}-${randomBytes(8).toString('hex')}`
    closeSync(openSync(this.#path(owner), 'wx', 0o600))
    this.#lock = this.#take(owner)
    return owner
  }

  isAlive(owner: string): boolean {
    try {
      this.#take(owner).close()
      return false
    } catch (error) {
      if (!isSqliteError(error)) throw error
      // A file that is not there cannot be locked.
      return isLocked(error)
    }
  }

  /** All that have not gone in order. */
  list(): string[] {
    return readdirSync(this.#folder)
  }

  /** Removes the lock file of a dead process. */
  forget(owner: string): void {
    rmSync(this.#path(owner), { force: true })
  }

  /** The end of the one registered here. */
  close(owner: string): void {
    this.forget(owner)
    this.#lock?.close()
    this.#lock = null
  }

  #take(owner: string): Database {
    const lock = openDatabase(this.#path(owner), { timeout: 0 })
    try {
      lock.exec('BEGIN EXCLUSIVE')
      return lock
    } catch (error) {
      lock.close()
      throw error
    }
  }

  #path(owner: string): string {
    return join(this.#folder, owner)
  }
}
