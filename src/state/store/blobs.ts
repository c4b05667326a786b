/**
 * Files of large states. A file is there whole or not at all: it is written under another name, flushed to disk, and
 * renamed under the database's lock. The database knows what refers to files and which ones may be removed.
 */
import { join } from 'node:path'
import type { FileLayer } from './files.ts'

const TEMPORARY = /\.([^.]+)\.tmp$/

export class Blobs {
  readonly #folder: string
  readonly #files: FileLayer
  /** Name of this process, which marks the files that it is writing, as against those of a dead process. */
  readonly #owner: string
  #numStaged = 0

  constructor(folder: string, files: FileLayer, owner: string) {
    this.#folder = folder
    this.#files = files
    this.#owner = owner
  }

  /** Writes the content to disk under a temporary name, which it returns. */
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

  /** Renames a staged file. A file of that name is replaced. */
  publish(staged: string, name: string): void {
    this.#files.rename(this.#path(staged), this.#path(name))
    this.#files.syncFolder(this.#folder)
  }

  read(name: string): Uint8Array {
    return this.#files.read(this.#path(name))
  }

  /** Does nothing when there is no such file. */
  remove(name: string): void {
    this.#files.remove(this.#path(name))
  }

  /** Removes all files except the named ones and those that live processes are writing. */
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
