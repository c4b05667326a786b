/**
 * The output of a worker: the latest lines in memory, all of them in files if a folder is given, and a feed for
 * listeners. A native library may print anything, so lines are limited in length and control characters are escaped.
 */
import { createWriteStream, openSync, readdirSync, renameSync, rmSync, statSync, type WriteStream } from 'node:fs'
import { dirname, join } from 'node:path'
import type { Readable } from 'node:stream'
import { StringDecoder } from 'node:string_decoder'
import { makeFolder } from '../../files/make-folder.ts'

/** Longer lines are split. */
const MAX_LINE = 4096
const KEPT_LINES = 5000
const MAX_FILE_BYTES = 8 * 2 ** 20
/** Files besides the current one. */
const OLD_FILES = 3
/** Maximum logs in a folder. Every worker of every start writes its own file, and nothing else deletes them. */
const MAX_LOGS = 200

/** Paths of open logs. They are kept although a quiet worker's log may be older than those of many ended workers. */
const OPEN_LOGS = new Set<string>()

/** Calls `onLine` for each line, and at the end of the stream for an unfinished line. */
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

  /** `path`: the log file, which is renamed to ".1", ".2", … when it is full; null: none. */
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

  /** Returns a function that stops the feed. */
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

/** Opened at the first line. If the disk fails, only the file is lost. */
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
    // Opened now, because another file may have the path later.
    const fd = openSync(this.#path, 'a', 0o600)
    OPEN_LOGS.add(this.#path)
    const stream = createWriteStream(this.#path, { fd })
    stream.on('error', () => {
      this.#isBroken = true
    })
    return stream
  }

  /** The open stream keeps writing to the renamed file until it ends. */
  #rotate(): void {
    this.close()
    for (let n = OLD_FILES - 1; n >= 0; n--) {
      const from = n === 0 ? this.#path : `${this.#path}.${n}`
      if (statSync(from, { throwIfNoEntry: false })) renameSync(from, `${this.#path}.${n + 1}`)
    }
  }
}

/** Deletes all logs except the most recently written; it touches only files that are named like a worker's log. */
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

/** Escapes control characters, because logs are read on terminals and web pages. */
function printable(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u2028\u2029]/g, (character) => {
    return `\\x${character.charCodeAt(0).toString(16).padStart(2, '0')}`
  })
}
