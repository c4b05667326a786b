import { existsSync, mkdirSync, mkdtempSync, statSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { makeFolder } from '../../src/files/make-folder.ts'

const folder = mkdtempSync(join(tmpdir(), 'skein-make-folder-'))

test('a missing folder is created with the mode, an existing one is not changed', () => {
  mkdirSync(join(folder, 'there'), { mode: 0o755 })
  makeFolder(join(folder, 'there/a/b'), 0o700)
  makeFolder(join(folder, 'there/a/b'), 0o777)
  const modes = ['there', 'there/a', 'there/a/b'].map((name) => statSync(join(folder, name)).mode)
  expect(modes.map((mode) => mode & 0o777)).toEqual([0o755, 0o700, 0o700])
})

test('a link to a folder counts as a folder', () => {
  symlinkSync(mkdtempSync(join(folder, 'target-')), join(folder, 'link'))
  makeFolder(join(folder, 'link/a'))
  expect(existsSync(join(folder, 'link/a'))).toBe(true)
})

test.each([
  ['file', 'EEXIST'],
  ['file/a', 'ENOTDIR'],
])('a file in the way is reported: %s', (path, code) => {
  writeFileSync(join(folder, 'file'), '')
  expect(() => makeFolder(join(folder, path))).toThrow(code)
})

// mkdirSync with `recursive` never returns here.
test.skipIf(!existsSync('/proc/self'))('a folder in which none can be made is said', () => {
  expect(() => makeFolder('/proc/nowhere/a')).toThrow("ENOENT: no such file or directory, mkdir '/proc/nowhere'")
})
