/** Replaces a small file atomically: readers see the old or the new version, never a part. */
import { randomBytes } from 'node:crypto'
import { closeSync, openSync, renameSync, rmSync, writeFileSync } from 'node:fs'

interface Replacement {
  readonly mode?: number
  /** Called with the new file before it is renamed. */
  readonly beforeNamed?: (file: number) => void
}

/** Throws the system's error; the old file is then unchanged, and no temporary file is left. */
export function replaceFile(
  path: string,
  content: string | Uint8Array,
  { mode = 0o666, beforeNamed = () => {} }: Replacement = {},
): void {
  const temporary = `${path}.${randomBytes(6).toString('hex')}.tmp`
  try {
    const file = openSync(temporary, 'wx', mode)
    try {
      writeFileSync(file, content)
      beforeNamed(file)
    } finally {
      closeSync(file)
    }
    renameSync(temporary, path)
  } catch (error) {
    // A file that cannot be removed was probably never written.
    try {
      rmSync(temporary, { force: true })
    } catch {}
    throw error
  }
}
