/**
 * Makes a folder with those above it. Node's own `recursive` never returns where the system answers that a folder cannot
 * be made in one that is there, as in /proc: it takes the parent for missing, makes it, and tries again for ever.
 */
import { mkdirSync, statSync } from 'node:fs'
import { dirname } from 'node:path'

/** `mode` is for what is made. Throws the error of the system for the first one that cannot be. */
export function makeFolder(path: string, mode = 0o777): void {
  if (isFolder(path)) return
  const parent = dirname(path)
  if (parent !== path) makeFolder(parent, mode)
  try {
    mkdirSync(path, { mode })
  } catch (error) {
    // Another process may have been first.
    if (!isFolder(path)) throw error
  }
}

function isFolder(path: string): boolean {
  return statSync(path, { throwIfNoEntry: false })?.isDirectory() ?? false
}
