/** A folder for the tests of one file, removed at their end. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll } from 'vitest'

export function temporaryFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), 'skein-test-'))
  afterAll(() => rmSync(folder, { recursive: true, force: true }))
  return folder
}
