/**
 * The one folder whose files may be loaded over HTTP. A name is looked up below it, or, as clients of other servers write it,
 * as a path from the working directory that ends up below it; links count for what they point to. Whatever lies outside
 * does not exist: the answer is the same whether there is a file or not.
 */
import { realpathSync, statSync } from 'node:fs'
import { isAbsolute, join, resolve, sep } from 'node:path'
import { SkeinError } from '../errors.ts'

const SEGMENT = /^[A-Za-z0-9._ ()+=@-]{1,128}$/
const MAX_SEGMENTS = 16

export interface ModelFolder {
  /** The real path of a file; throws `not_found`. `param` is the field to complain about. */
  find(name: string, param: string): string
}

export function openModelFolder(folder: string): ModelFolder {
  const asGiven = resolve(folder)
  return {
    find(name, param) {
      const root = realPath(asGiven)
      const candidates = isPlain(name) ? candidatesOf(asGiven, name) : []
      for (const candidate of candidates) {
        const path = realPath(candidate)
        if (path === null || root === null || !path.startsWith(root + sep)) continue
        if (statSync(path, { throwIfNoEntry: false })?.isFile()) return path
      }
      throw new SkeinError('not_found', `${param}: no such file in the folder of models`, { param })
    },
  }
}

/** Of harmless segments only, none of which leads upwards. */
function isPlain(name: string): boolean {
  const segments = name.replace(/^\//, '').split('/')
  if (segments.length > MAX_SEGMENTS) return false
  return segments.every((segment) => SEGMENT.test(segment) && !/^\.+$/.test(segment))
}

function candidatesOf(folder: string, name: string): string[] {
  const places = isAbsolute(name) ? [name] : [join(folder, name), resolve(name)]
  return places.flatMap((place) => [place, `${place}.pth`])
}

function realPath(path: string): string | null {
  try {
    return realpathSync(path)
  } catch {
    return null
  }
}
