/**
 * The file of named keys. It is read and replaced as a whole (temporary file, fsync, rename; mode 0600), by one writer
 * at a time across all processes. A running server follows it; an unreadable file changes nothing. It knows no HTTP.
 */
import {
  closeSync,
  type FSWatcher,
  fchownSync,
  fsyncSync,
  openSync,
  readFileSync,
  rmSync,
  statSync,
  watch,
} from 'node:fs'
import { basename, dirname } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { SkeinError } from '../../errors.ts'
import { makeFolder } from '../../files/make-folder.ts'
import { replaceFile } from '../../files/replace.ts'
import { KeyIndex, type NamedKeys } from './key-index.ts'
import { formatKeyList, type KeyRecord, parseKeyList } from './keys.ts'

/** Empty if there is no file. Throws if it is unreadable or damaged. */
export function readKeys(path: string): readonly KeyRecord[] {
  const text = readText(path)
  if (text === null) return []
  try {
    return parseKeyList(text)
  } catch (error) {
    const { message } = SkeinError.from(error)
    throw new SkeinError('invalid_request', `${path} is not a file of keys: ${message}`, { cause: error })
  }
}

const LOCK_TRIES = 100
const LOCK_PAUSE_MS = 30
/** No change takes a second, so a lock this old was left by a process that died. */
const LOCK_STALE_MS = 10_000

/** Replaces the list with the result of `change`, and returns that result. Nothing is written if it throws. */
export async function changeKeys<T extends { readonly keys: readonly KeyRecord[] }>(
  path: string,
  change: (keys: readonly KeyRecord[]) => T,
): Promise<T> {
  try {
    makeFolder(dirname(path), 0o700)
  } catch (error) {
    throw unwritable(path, error)
  }
  const lock = `${path}.lock`
  await takeLock(lock)
  try {
    const changed = change(readKeys(path))
    writeKeys(path, formatKeyList(changed.keys))
    return changed
  } finally {
    rmSync(lock, { force: true })
  }
}

async function takeLock(lock: string): Promise<void> {
  for (let i = 0; i < LOCK_TRIES; i++) {
    try {
      closeSync(openSync(lock, 'wx', 0o600))
      return
    } catch (error) {
      // Errors of the file system carry a code.
      if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw unwritable(lock, error)
    }
    const age = Date.now() - (statSync(lock, { throwIfNoEntry: false })?.mtimeMs ?? Date.now())
    if (age > LOCK_STALE_MS) rmSync(lock, { force: true })
    else await delay(LOCK_PAUSE_MS)
  }
  throw new SkeinError('conflict', `another process is changing the keys; if none is, remove ${lock}`)
}

function writeKeys(path: string, text: string): void {
  const beforeNamed = (file: number) => {
    leaveOwner(file, path)
    fsyncSync(file)
  }
  try {
    replaceFile(path, text, { mode: 0o600, beforeNamed })
  } catch (error) {
    throw unwritable(path, error)
  }
}

/**
 * Keeps the owner of a file that root writes, or uses the owner of its folder. The server runs as another user and
 * could not read root's file, so a revoked key would stay valid.
 */
function leaveOwner(file: number, path: string): void {
  if (process.getuid?.() !== 0) return
  const { uid, gid } = statSync(path, { throwIfNoEntry: false }) ?? statSync(dirname(path))
  if (uid !== 0) fchownSync(file, uid, gid)
}

function unwritable(path: string, cause: unknown): SkeinError {
  const { message } = SkeinError.from(cause)
  return new SkeinError(
    'forbidden',
    `cannot write ${path}: ${message}; make its folder this user's own, name another file with --keys, or another data folder with --data-dir or XDG_DATA_HOME`,
    { cause },
  )
}

/** Null if there is no file. */
function readText(path: string): string | null {
  try {
    return readFileSync(path, 'utf8')
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException
    if (code === 'ENOENT') return null
    const problem =
      code === 'ENOTDIR'
        ? `${dirname(path)} is no folder, and the keys would be in it; name another with --data-dir, or the file of the keys with --keys`
        : `cannot read the keys: ${message}; let this user read them, or name another file with --keys`
    throw new SkeinError('invalid_request', problem, { cause: error })
  }
}

const CHECK_EVERY_MS = 2000

export class KeyRing extends KeyIndex implements NamedKeys {
  readonly path: string
  readonly #onProblem: (error: SkeinError) => void
  #seen: string
  #timer: NodeJS.Timeout | null = null
  #watcher: FSWatcher | null = null

  /** Throws for a file that exists but is not a valid list: a server must not start open because of it. */
  constructor(path: string, onProblem: (error: SkeinError) => void = () => {}) {
    super()
    this.path = path
    this.#onProblem = onProblem
    this.#seen = stampOf(path)
    this.replace(readKeys(path))
  }

  async change<T extends { readonly keys: readonly KeyRecord[] }>(
    change: (keys: readonly KeyRecord[]) => T,
  ): Promise<T> {
    const changed = await changeKeys(this.path, change)
    this.refresh()
    return changed
  }

  /** Follows the file from now on, without keeping the process alive. */
  follow(): void {
    if (this.#timer !== null) return
    this.#timer = setInterval(() => this.refresh(), CHECK_EVERY_MS).unref()
    try {
      // Watches the folder, because the file is replaced. Systems that cannot watch rely on the timer.
      this.#watcher = watch(dirname(this.path), { persistent: false }, (_event, name) => {
        if (name === basename(this.path)) this.refresh()
      })
      this.#watcher.on('error', () => this.#watcher?.close())
    } catch {
      this.#watcher = null
    }
  }

  /** Reads the file if it has changed. If that fails, the keys stay as they are, and the failure is logged once. */
  refresh(): void {
    const stamp = stampOf(this.path)
    if (stamp === this.#seen) return
    this.#seen = stamp
    try {
      if (stamp === MISSING) {
        const message = `${this.path} is gone; its keys stay in force until it is back or the server restarts`
        throw new SkeinError('not_found', message)
      }
      this.replace(readKeys(this.path))
    } catch (error) {
      this.#onProblem(SkeinError.from(error))
    }
  }

  close(): void {
    if (this.#timer !== null) clearInterval(this.#timer)
    this.#watcher?.close()
  }
}

const MISSING = 'missing'

/** Never throws, because a timer calls it. A file that cannot be inspected counts as changed; reading it says why. */
function stampOf(path: string): string {
  try {
    const found = statSync(path, { throwIfNoEntry: false, bigint: true })
    return found === undefined ? MISSING : `${found.ino} ${found.size} ${found.mtimeNs}`
  } catch (error) {
    return `unreadable: ${SkeinError.from(error).message}`
  }
}
