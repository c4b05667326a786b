/**
 * Creates a folder and its parents. Node's `recursive` option loops forever where the system reports a missing parent
 * that exists, as in /proc.
 */
import { mkdirSync, statSync } from 'node:fs'
import { dirname } from 'node:path'

/** `mode` applies to the created folders. Throws the system's error for the first that cannot be created. */
export function makeFolder(path: string, mode = 0o777): void {
  if (isFolder(path)) return
  const parent = dirname(path)
  if (parent !== path) makeFolder(parent, mode)
  try {
    mkdirSync(path, { mode })
  } catch (error) {
    // Another process may have created it first.
    if (!isFolder(path)) throw error
  }
}

function isFolder(path: string): boolean {
  return statSync(path, { throwIfNoEntry: false })?.isDirectory() ?? false
}
