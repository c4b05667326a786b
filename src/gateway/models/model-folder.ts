/**
 * The folder whose files may be loaded over HTTP, and further folders that are searched as well. A name is a path below
 * the folder, or, as clients of other servers write it, a path from the working directory or one that starts with the
 * folder's name, as long as it ends up below the folder; links are resolved first. Files outside count as missing: the
 * answer is the same whether they exist or not.
 */
import { type Dirent, readdirSync, realpathSync, statSync } from 'node:fs'
import { dirname, isAbsolute, join, relative, resolve, sep } from 'node:path'
import { SkeinError } from '../../errors.ts'

const SEGMENT = /^[A-Za-z0-9._ ()+=@-]{1,128}$/
const MAX_SEGMENTS = 16
/** Limits of a listing: depth of folders, and number of files. */
const MAX_DEPTH = 4
const MAX_FILES = 5000
/** A directory with this file is one checkpoint, in the layout of the hub. */
const CONFIG = 'config.json'

interface FolderFile {
  /** Relative to the folder, with "/" as separator. */
  readonly path: string
  readonly bytes: number
  /** Milliseconds since 1970. */
  readonly modifiedAt: number
}

export interface ModelFolder {
  /** The real path of a file; throws `not_found`. `param` is the field that the error names. */
  find(name: string, param: string): string
  /** Files whose path is wanted, and directories that are checkpoints. Links are left out. */
  list(isWanted: (path: string) => boolean): FolderFile[]
  /** Shortens paths in errors for clients: they start at the folder. */
  conceal(thrown: unknown): unknown
}

/** Files of `others` are found but not listed. */
export function openModelFolder(folder: string, others: readonly string[] = []): ModelFolder {
  const asGiven = resolve(folder)
  const all = [asGiven, ...others.map((other) => resolve(other))]
  return {
    find(name, param) {
      const plain = name.replace(/^\.\//, '')
      for (const one of isPlain(plain) ? all : []) {
        const found = findBelow(one, plain)
        if (found !== null) return found
      }
      throw new SkeinError('not_found', `${param}: no such file in the folder of models`, { param })
    },
    conceal(thrown) {
      if (!(thrown instanceof SkeinError)) return thrown
      const { code, message, param } = thrown
      const shown = all
        .flatMap((one) => [one, realPath(one) ?? one])
        .reduce((text, root) => text.replaceAll(root + sep, ''), message)
      return new SkeinError(code, shown, { cause: thrown, ...(param === undefined ? {} : { param }) })
    },
    list(isWanted) {
      const root = realPath(asGiven)
      const found = root === null ? [] : [...filesBelow(root, 0, isWanted)].slice(0, MAX_FILES)
      return found.map((path) => {
        const { size: bytes, mtimeMs: modifiedAt } = statSync(path)
        const name = relative(root!, path).split(sep).join('/')
        return { path: name, bytes: isFile(path) ? bytes : bytesIn(path), modifiedAt }
      })
    },
  }
}

function findBelow(folder: string, name: string): string | null {
  const root = realPath(folder)
  for (const candidate of candidatesOf(folder, name)) {
    const path = realPath(candidate)
    if (path === null || root === null || !path.startsWith(root + sep)) continue
    if (isFile(path) || isFile(join(path, CONFIG))) return path
  }
  return null
}

function* filesBelow(folder: string, depth: number, isWanted: (path: string) => boolean): Generator<string> {
  for (const entry of entriesOf(folder)) {
    const path = join(folder, entry.name)
    if (entry.isFile() && isWanted(path)) yield path
    if (!entry.isDirectory() || entry.name.startsWith('.')) continue
    if (isFile(join(path, CONFIG))) yield path
    else if (depth < MAX_DEPTH) yield* filesBelow(path, depth + 1, isWanted)
  }
}

function entriesOf(folder: string): Dirent[] {
  try {
    const entries = readdirSync(folder, { withFileTypes: true })
    return entries.sort((a, b) => (a.name < b.name ? -1 : 1))
  } catch {
    return []
  }
}

function bytesIn(folder: string): number {
  const files = entriesOf(folder).filter((entry) => entry.isFile())
  return files.reduce((sum, { name }) => sum + statSync(join(folder, name)).size, 0)
}

function isFile(path: string): boolean {
  return statSync(path, { throwIfNoEntry: false })?.isFile() === true
}

/** True if all segments have only safe characters and none leads upwards. */
function isPlain(name: string): boolean {
  const segments = name.replace(/^\//, '').split('/')
  if (segments.length > MAX_SEGMENTS) return false
  return segments.every((segment) => SEGMENT.test(segment) && !/^\.+$/.test(segment))
}

function candidatesOf(folder: string, name: string): string[] {
  const places = isAbsolute(name) ? [name] : [join(folder, name), resolve(name), join(dirname(folder), name)]
  return places.flatMap((place) => [place, `${place}.pth`])
}

function realPath(path: string): string | null {
  try {
    return realpathSync(path)
  } catch {
    return null
  }
}
