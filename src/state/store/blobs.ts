/**
 * Files named after their content. One is there whole or not at all: it is written under another name, brought to disk
 * and renamed. What refers to them is the database's business, which also says what may be removed.
 */
import { join } from 'node:path'
import type { FileLayer } from './files.ts'

const TEMPORARY = '.tmp'

export class Blobs {
  readonly #folder: string
  readonly #files: FileLayer
  #numWritten = 0

  constructor(folder: string, files: FileLayer) {
    this.#folder = folder
    this.#files = files
  }

  /** On disk under that name when this returns. Writing the same content again is harmless. */
  put(name: string, bytes: Uint8Array): void {
    this.#numWritten++
    const temporary = join(this.#folder, `${name}-${process.pid}-${this.#numWritten}${TEMPORARY}`)
    try {
      this.#files.write(temporary, bytes)
      this.#files.rename(temporary, join(this.#folder, name))
    } catch (error) {
      this.#files.remove(temporary)
      throw error
    }
    this.#files.syncFolder(this.#folder)
  }

  read(name: string): Uint8Array {
    return this.#files.read(join(this.#folder, name))
  }

  remove(name: string): void {
    this.#files.remove(join(this.#folder, name))
  }

  /** Removes all files but the named ones: what a crash has left behind. Returns how many went. */
  collect(named: ReadonlySet<string>): number {
    const orphans = this.#files.list(this.#folder).filter((name) => !named.has(name))
    for (const name of orphans) this.remove(name)
    return orphans.length
  }
}
