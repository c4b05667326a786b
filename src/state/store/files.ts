/**
 * The few things that blobs.ts does to files, each complete when it returns. Tests put another implementation here that
 * fails, tears or runs out of space.
 */
import {
  closeSync,
  fsyncSync,
  openSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeSync,
} from 'node:fs'

export interface FileLayer {
  /** A new file of the owner's alone; its bytes are on disk when this returns. */
  write(path: string, bytes: Uint8Array): void
  /** Atomic: `to` is the old file or the new one. */
  rename(from: string, to: string): void
  /** Makes names in a folder that were given or taken survive a loss of power. */
  syncFolder(folder: string): void
  read(path: string): Uint8Array
  /** A file that is not there is fine. */
  remove(path: string): void
  list(folder: string): string[]
}

export const realFiles: FileLayer = {
  write(path, bytes) {
    const file = openSync(path, 'wx', 0o600)
    try {
      for (let at = 0; at < bytes.length; ) at += writeSync(file, bytes, at)
      fsyncSync(file)
    } finally {
      closeSync(file)
    }
  },
  rename: renameSync,
  syncFolder(folder) {
    const handle = openSync(folder, 'r')
    try {
      fsyncSync(handle)
    } finally {
      closeSync(handle)
    }
  },
  read: (path) => readFileSync(path),
  remove: (path) => rmSync(path, { force: true }),
  list: (folder) => readdirSync(folder),
}
