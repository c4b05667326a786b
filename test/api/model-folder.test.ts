/** Which files a client may name: those below the model folder, and no path that leads out of it. */
import { mkdirSync, mkdtempSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, join, relative } from 'node:path'
import { describe, expect, test } from 'vitest'
import { SkeinError } from '../../src/errors.ts'
import { openModelFolder } from '../../src/gateway/models/model-folder.ts'
import { hosted } from './hosted.ts'

describe('the folder', () => {
  const { folder } = hosted()
  const outside = join(mkdtempSync(join(tmpdir(), 'skein-outside-')), 'secret.pth')
  writeFileSync(outside, '')
  mkdirSync(join(folder, 'sub'))
  writeFileSync(join(folder, 'sub', 'c.pth'), '')
  symlinkSync(outside, join(folder, 'link.pth'))
  symlinkSync(join(folder, 'a.pth'), join(folder, 'inner.pth'))
  const { find } = openModelFolder(folder)

  test.each(['a.pth', './a.pth', 'a', 'sub/c.pth', 'inner.pth', join(folder, 'a.pth')])('%s is found', (name) => {
    expect(find(name, 'f')).toMatch(/[ac]\.pth$/)
  })

  test('files of other folders are found by their own names only', () => {
    const states = mkdtempSync(join(tmpdir(), 'skein-states-'))
    writeFileSync(join(states, 'tuned.pth'), '')
    writeFileSync(join(states, 'a.pth'), '')
    const both = openModelFolder(folder, [states])
    for (const name of ['tuned.pth', 'tuned', `${basename(states)}/tuned.pth`])
      expect(both.find(name, 'f')).toBe(join(states, 'tuned.pth'))
    expect(both.find('a.pth', 'f')).toBe(join(folder, 'a.pth'))
    expect(() => both.find(relative(folder, outside), 'f')).toThrow('no such file')
    expect(both.list(() => true).map(({ path }) => path)).not.toContain('tuned.pth')
    expect(both.conceal(new SkeinError('conflict', `${states}/tuned.pth is odd`))).toMatchObject({
      message: 'tuned.pth is odd',
    })
  })

  test('a path from the working directory is accepted if it ends below the folder', () => {
    const { find } = openModelFolder('models')
    expect(find('models/demo.vocab.txt', 'f')).toMatch(/demo\.vocab\.txt$/)
    expect(() => find('package.json', 'f')).toThrow('no such file')
  })

  test.each([
    outside,
    relative(folder, outside),
    `../${folder.split('/').at(-1)}/a.pth`,
    'sub/../a.pth',
    'link.pth',
    'sub',
    '',
    '.',
    '..',
    'a.pth\0',
    'a.pth/',
    '//a.pth',
    '\\\\host\\a.pth',
    '/etc/passwd',
    'a'.repeat(200),
    'a/'.repeat(40),
  ])('%j does not exist', (name) => {
    expect(() => find(name, 'f')).toThrow('f: no such file in the folder of models')
  })
})
