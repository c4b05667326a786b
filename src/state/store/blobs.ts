/**
 * Files of large states. One is there whole or not at all: it is written under another name, brought to disk, and
 * renamed by whoever holds the database's lock. What refers to files is the database's business, which also says what
 * may be removed.
 */
import { join } from 'node:path'
import type { FileLayer } from './files.ts'

const TEMPORARY = /\.([^.]+)\.tmp$/

export class Blobs {
  readonly #folder: string
  readonly #files: FileLayer
  /** Name of this process. It tells files that this process is writing from those that a dead one left. */
  readonly #owner: string
  #numStaged = 0

  constructor(folder: string, files: FileLayer, owner: string) {
    this.#folder = folder
    this.#files = files
    this.#owner = owner
  }

  /** Brings the content of a file to disk, under another name, which it returns. */
  stage(name: string, parts: readonly Uint8Array[]): string {
    this.#numStaged++
    const staged = `${name}.${this.#numStaged}.${this.#owner}.tmp`
    try {
      this.#files.write(this.#path(staged), parts)
    } catch (error) {
      this.remove(staged)
      throw error
    }
    return staged
  }

  /** Gives it its name. A file of that name is replaced. */
  publish(staged: string, name: string): void {
    this.#files.rename(this.#path(staged), this.#path(name))
    this.#files.syncFolder(this.#folder)
  }

  read(name: string): Uint8Array {
    return this.#files.read(this.#path(name))
  }

  /** It need not be there. */
  remove(name: string): void {
    this.#files.remove(this.#path(name))
  }

  /** Removes all files but the named ones and what live processes are writing: what crashes have left behind. */
  collect(named: ReadonlySet<string>, isAlive: (owner: string) => boolean): void {
    for (const name of this.#files.list(this.#folder)) {
      const owner = TEMPORARY.exec(name)?.[1]
      const isWanted = owner === undefined ? named.has(name) : isAlive(owner)
      if (!isWanted) this.remove(name)
    }
  }

  #path(name: string): string {
    return join(this.#folder, name)
  }
}
