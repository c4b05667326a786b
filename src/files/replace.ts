/** A small file in place of another, or of none: whoever reads it sees the old one or the new one, never half of either. */
import { randomBytes } from 'node:crypto'
import { closeSync, openSync, renameSync, rmSync, writeFileSync } from 'node:fs'

interface Replacement {
  readonly mode?: number
  /** Called with the file before it gets its name. */
  readonly beforeNamed?: (file: number) => void
}

/** Throws the error of the system; then the old file is as it was and nothing is left beside it. */
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
    // What cannot be removed was most likely never written.
    try {
      rmSync(temporary, { force: true })
    } catch {}
    throw error
  }
}
