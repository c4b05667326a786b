/**
 * The file operations of blobs.ts, each complete when it returns. Tests replace them with ones that fail, tear or run
 * out of space.
 */
import {
  closeSync,
  fdatasyncSync,
  fstatSync,
  fsyncSync,
  openSync,
  readdirSync,
  readSync,
  renameSync,
  rmSync,
  writeSync,
} from 'node:fs'

export interface FileLayer {
  /** Writes these parts to a new file that only the owner can read; they are on disk when this returns. */
  write(path: string, parts: readonly Uint8Array[]): void
  /** Atomic: `to` is the old file or the new one. */
  rename(from: string, to: string): void
  /** Makes added and removed names in a folder survive a loss of power. */
  syncFolder(folder: string): void
  read(path: string): Uint8Array
  /** A file that is not there is fine. */
  remove(path: string): void
  list(folder: string): string[]
}

/** Bytes written and flushed at a time, so that urgent work can run in between. */
const PIECE_BYTES = 2 ** 20
const SYNC_BYTES = 4 * 2 ** 20

/** `pause` is called between pieces of a file that is being written. */
export function filesWith(pause: () => void): FileLayer {
  return { ...realFiles, write: (path, parts) => writeInPieces(path, parts, pause) }
}

function writeInPieces(path: string, parts: readonly Uint8Array[], pause: () => void): void {
  const file = openSync(path, 'wx', 0o600)
  try {
    let unsynced = 0
    for (const part of parts) {
      for (let at = 0; at < part.length; ) {
        const count = writeSync(file, part, at, Math.min(PIECE_BYTES, part.length - at))
        at += count
        unsynced += count
        if (unsynced >= SYNC_BYTES) {
          fdatasyncSync(file)
          unsynced = 0
        }
        pause()
      }
    }
    fsyncSync(file)
  } finally {
    closeSync(file)
  }
}

export const realFiles: FileLayer = {
  write: (path, parts) => writeInPieces(path, parts, () => {}),
  rename: renameSync,
  syncFolder(folder) {
    const handle = openSync(folder, 'r')
    try {
      fsyncSync(handle)
    } finally {
      closeSync(handle)
    }
  },
  read(path) {
    const file = openSync(path, 'r')
    try {
      // readFileSync fills many small pieces; this is one read, into a buffer that a state can be a view of.
      const bytes = new Uint8Array(fstatSync(file).size)
      let at = 0
      while (at < bytes.length) {
        const count = readSync(file, bytes, at, bytes.length - at, at)
        if (count === 0) break
        at += count
      }
      return bytes.subarray(0, at)
    } finally {
      closeSync(file)
    }
  },
  remove: (path) => rmSync(path, { force: true }),
  list: (folder) => readdirSync(folder),
}
