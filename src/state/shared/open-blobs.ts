/** Which storage of blobs an address names. */

import { randomBytes } from 'node:crypto'
import { type FileHandle, open, readdir, rename, rm, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { SkeinError } from '../../errors.ts'
import { makeFolder } from '../../files/make-folder.ts'
import type { BlobInfo, Blobs } from './blobs.ts'
import { S3Blobs } from './s3-blobs.ts'

/** Throws invalid_request for what names no storage. */
export function openBlobs(url: string, environment: NodeJS.ProcessEnv = process.env): Blobs {
  const found = URL.canParse(url) ? new URL(url) : null
  if (found?.protocol === 'file:' && found.host === '') return new FolderBlobs(decodeURIComponent(found.pathname))
  if (found?.protocol === 's3:' && found.host !== '') return S3Blobs.at(found.host, found.pathname, environment)
  throw new SkeinError(
    'invalid_request',
    `${url} names no storage of states: give file:///FOLDER (of a file system that all nodes share) or s3://BUCKET/PREFIX`,
  )
}

/** Its first letters are the folder that a blob is in: some file systems are slow with many names in one. */
const FOLDER_LETTERS = 2

/** Blobs as files of a file system that all nodes share. */
export class FolderBlobs implements Blobs {
  readonly #folder: string

  constructor(folder: string) {
    this.#folder = folder
    makeFolder(folder, 0o700)
  }

  async put(name: string, parts: readonly Uint8Array[]): Promise<void> {
    const folder = this.#folderOf(name)
    makeFolder(folder, 0o700)
    const temporary = join(folder, `${name}.${randomBytes(4).toString('hex')}.tmp`)
    try {
      await withFile(temporary, 'wx', async (file) => {
        await file.writev(parts.filter(({ length }) => length > 0) as Uint8Array[])
        await file.sync()
      })
      await rename(temporary, this.#path(name))
    } catch (error) {
      await rm(temporary, { force: true }).catch(() => {})
      throw error
    }
    await withFile(folder, 'r', (handle) => handle.sync())
    await withFile(this.#folder, 'r', (handle) => handle.sync())
  }

  async get(name: string): Promise<Uint8Array> {
    return withFile(this.#path(name), 'r', async (file) => {
      const { size } = await file.stat()
      const bytes = new Uint8Array(size)
      let at = 0
      while (at < size) {
        const { bytesRead } = await file.read(bytes, at, size - at, at)
        if (bytesRead === 0) break
        at += bytesRead
      }
      return bytes.subarray(0, at)
    })
  }

  async remove(name: string): Promise<void> {
    await rm(this.#path(name), { force: true })
  }

  /** What was never finished is among them. */
  async *list(): AsyncIterable<BlobInfo> {
    for (const entry of await readdir(this.#folder, { withFileTypes: true })) {
      if (!entry.isDirectory()) continue
      const folder = join(this.#folder, entry.name)
      for (const name of await readdir(folder)) {
        const found = await stat(join(folder, name)).catch(() => null)
        if (found !== null) yield { name, changedAt: found.mtimeMs }
      }
    }
  }

  #folderOf(name: string): string {
    return join(this.#folder, name.slice(0, FOLDER_LETTERS))
  }

  #path(name: string): string {
    return join(this.#folderOf(name), name)
  }
}

async function withFile<T>(path: string, flags: string, work: (file: FileHandle) => Promise<T>): Promise<T> {
  const file = await open(path, flags, 0o600)
  try {
    return await work(file)
  } finally {
    await file.close()
  }
}
