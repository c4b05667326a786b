/**
 * Everything that the tests of a run write is in one temporary folder, removed after the run: keys and sessions, too.
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

export function setup(): () => void {
  // Each project of vitest.config.ts calls this.
  if (process.env.TESTS_RUN_FOLDER !== undefined) return () => {}
  const folder = mkdtempSync(join(tmpdir(), 'skein-tests-'))
  process.env.TMPDIR = folder
  process.env.XDG_DATA_HOME = join(folder, 'data')
  process.env.TESTS_RUN_FOLDER = folder
  return () => rmSync(folder, { recursive: true, force: true })
}
