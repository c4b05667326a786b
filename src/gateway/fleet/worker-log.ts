/**
 * What a worker prints: the latest lines in memory, all of them in files if a folder is given, and to whoever listens.
 * A native library may print anything, so lines are bounded in length and hold no control characters.
 */
import { createWriteStream, openSync, readdirSync, renameSync, rmSync, statSync, type WriteStream } from 'node:fs'
import { dirname, join } from 'node:path'
import type { Readable } from 'node:stream'
import { StringDecoder } from 'node:string_decoder'
import { makeFolder } from '../../files/make-folder.ts'

/** Longer lines are told in pieces. */
const MAX_LINE = 4096
const KEPT_LINES = 5000
const MAX_FILE_BYTES = 8 * 2 ** 20
/** Beside the one being written. */
const OLD_FILES = 3
/** In a folder. Every worker of every start has a file of its own, and nobody else would ever remove it. */
const MAX_LOGS = 200

/** Paths of the logs that are being written. Workers that have little to say may be older than many that came and went. */
const OPEN_LOGS = new Set<string>()

/** Calls `onLine` for each line, and for what comes after the last end of a line when the stream ends. */
export function forwardLines(stream: Readable | null, onLine: (line: string) => void): void {
  const decoder = new StringDecoder('utf8')
  let rest = ''
  const take = (line: string) => {
    for (let at = 0; at < line.length; at += MAX_LINE) onLine(line.slice(at, at + MAX_LINE))
  }
  stream?.on('data', (bytes: Buffer) => {
    const lines = (rest + decoder.write(bytes)).split(/\r?\n/)
    rest = lines.pop()!
    for (const line of lines) take(line)
    if (rest.length < MAX_LINE) return
    take(rest)
    rest = ''
  })
  stream?.on('end', () => take(rest + decoder.end()))
}

export class WorkerLog {
  readonly #lines: string[] = []
  readonly #listeners = new Set<(line: string) => void>()
  readonly #file: LogFile | null

  /** `path`: of the file, which gets ".1", ".2", … when it is full; null: none. */
  constructor(path: string | null) {
    this.#file = path === null ? null : new LogFile(path)
  }

  add(text: string): void {
    const line = printable(text)
    this.#lines.push(line)
    if (this.#lines.length > KEPT_LINES) this.#lines.shift()
    this.#file?.write(`${new Date().toISOString()} ${line}\n`)
    for (const listener of this.#listeners) listener(line)
  }

  /** The last `count` lines, oldest first. */
  tail(count: number): string[] {
    return count === 0 ? [] : this.#lines.slice(-count)
  }

  /** Returns what ends it. */
  listen(listener: (line: string) => void): () => void {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }

  close(): void {
    this.#file?.close()
  }
}

/** Path of a worker's log in a folder; null without a folder. */
export function logPath(folder: string | undefined, workerId: string): string | null {
  return folder === undefined ? null : join(folder, `${workerId}.log`)
}

/** Opened at its first line. A disk that fails costs the file and nothing else. */
class LogFile {
  readonly #path: string
  #stream: WriteStream | null = null
  #bytes = 0
  #isBroken = false

  constructor(path: string) {
    this.#path = path
  }

  write(line: string): void {
    if (this.#isBroken) return
    try {
      this.#stream ??= this.#open()
      this.#stream.write(line)
      this.#bytes += Buffer.byteLength(line)
      if (this.#bytes >= MAX_FILE_BYTES) this.#rotate()
    } catch {
      this.#isBroken = true
    }
  }

  close(): void {
    this.#stream?.end()
    this.#stream = null
    OPEN_LOGS.delete(this.#path)
  }

  #open(): WriteStream {
    const folder = dirname(this.#path)
    makeFolder(folder, 0o700)
    const size = statSync(this.#path, { throwIfNoEntry: false })?.size
    if (size === undefined) dropOldLogs(folder, MAX_LOGS - 1)
    this.#bytes = size ?? 0
    // Opened now: later the path may be another file's.
    const fd = openSync(this.#path, 'a', 0o600)
    OPEN_LOGS.add(this.#path)
    const stream = createWriteStream(this.#path, { fd })
    stream.on('error', () => {
      this.#isBroken = true
    })
    return stream
  }

  /** The open stream goes on writing to the renamed file until its end. */
  #rotate(): void {
    this.close()
    for (let n = OLD_FILES - 1; n >= 0; n--) {
      const from = n === 0 ? this.#path : `${this.#path}.${n}`
      if (statSync(from, { throwIfNoEntry: false })) renameSync(from, `${this.#path}.${n + 1}`)
    }
  }
}

/** All but those of the workers that wrote last; only files that are a worker's by name. */
function dropOldLogs(folder: string, numKept: number): void {
  const files = readdirSync(folder).filter((name) => /^wkr-[0-9a-f]+\.log(\.\d)?$/.test(name))
  const logs = files.filter((name) => name.endsWith('.log'))
  if (logs.length <= numKept) return
  const writtenAt = (name: string) => statSync(join(folder, name), { throwIfNoEntry: false })?.mtimeMs ?? 0
  const oldest = logs
    .filter((name) => !OPEN_LOGS.has(join(folder, name)))
    .map((name) => ({ name, at: writtenAt(name) }))
    .sort((a, b) => a.at - b.at)
    .slice(0, logs.length - numKept)
  for (const { name: log } of oldest)
    for (const name of files.filter((name) => name.startsWith(log))) rmSync(join(folder, name), { force: true })
}

/** Control characters written out: a log is read on terminals and pages. */
function printable(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u2028\u2029]/g, (character) => {
    return `\\x${character.charCodeAt(0).toString(16).padStart(2, '0')}`
  })
}
