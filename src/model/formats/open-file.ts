/** Opens the files of models. The system's own words, which name the path, are followed by what can be done. */
import { closeSync, fstatSync, openSync, readSync, renameSync, rmSync, type Stats, statSync, writeSync } from 'node:fs'
import { SkeinError } from '../../errors.ts'
import { ParallelReader } from '../../files/parallel-read.ts'
import type { ByteSource } from './byte-source.ts'

/** The caller has made sure that `path` is a regular file. */
export function openFile(path: string): ByteSource {
  const file = openToRead(path)
  const { size } = fstatSync(file)
  const reader = new ParallelReader(file)
  return {
    path,
    size,
    readInto(target, offset) {
      if (!reader.read(target, offset)) readFully(file, path, target, offset)
    },
    takeBuffer: () => reader.takeBuffer(),
    close() {
      reader.close()
      closeSync(file)
    },
  }
}

function openToRead(path: string): number {
  try {
    return openSync(path, 'r')
  } catch (error) {
    throw refused('cannot read the model', error, 'let this user read it')
  }
}

/** Undefined where nothing is. */
export function statIfThere(path: string): Stats | undefined {
  try {
    return statSync(path, { throwIfNoEntry: false })
  } catch (error) {
    throw refused('cannot read the model', error, 'let this user read it')
  }
}

/** Empty, in place of one that is there. */
export function openToWrite(path: string): number {
  try {
    return openSync(path, 'w')
  } catch (error) {
    throw refused('cannot write the model', error, 'name a folder that this user may write in')
  }
}

/** Behind what is written already. */
export function writeFully(file: number, bytes: Uint8Array): void {
  try {
    for (let done = 0; done < bytes.byteLength; ) done += writeSync(file, bytes, done)
  } catch (error) {
    throw refused('cannot write the model', error, 'make room on its disk, or name a file on another')
  }
}

/** Closes a complete file and gives it its name; where it cannot have it, a folder's, nothing is left. */
export function putInPlace(file: number, partialPath: string, path: string): void {
  closeSync(file)
  try {
    renameSync(partialPath, path)
  } catch (error) {
    rmSync(partialPath, { force: true })
    throw refused('cannot write the model', error, 'name a file that this user may replace')
  }
}

function refused(problem: string, cause: unknown, advice: string): SkeinError {
  const { message } = SkeinError.from(cause)
  return new SkeinError('invalid_request', `${problem}: ${message}; ${advice}`, { cause })
}

/** One system call reads at most 2 GiB. */
const MAX_READ = 1 << 30

function readFully(file: number, path: string, target: Uint8Array, offset: number): void {
  let done = 0
  while (done < target.byteLength) {
    const length = Math.min(target.byteLength - done, MAX_READ)
    const count = readSync(file, target, done, length, offset + done)
    if (count === 0) throw new SkeinError('corrupt_weights', `${path}: the file became shorter while it was read`)
    done += count
  }
}
