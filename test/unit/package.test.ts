/** What an installed package has: what its pages name is there. */
import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'

const ROOT = join(import.meta.dirname, '../..')

test('the package has the files that its pages name, and no maps of sources that it lacks', () => {
  const options = ['pack', '--dry-run', '--json', '--ignore-scripts']
  const packed = JSON.parse(execFileSync('npm', options, { cwd: ROOT, encoding: 'utf8' }))
  // A list, or a record by name, as npm's version has it.
  const [{ files: entries }] = Object.values(packed) as [{ files: { readonly path: string }[] }]
  const files = entries.map(({ path }) => path)
  const pages = files.filter((path) => /^(README|docs\/operations)\.md$/.test(path))
  const texts = pages.map((page) => readFileSync(join(ROOT, page), 'utf8')).join('\n')
  const named = [...texts.matchAll(/\b(?:deploy|examples)\/[\w.-]*/g)].map(([path]) => path)
  expect(named).toContain('deploy/skein.service')
  const isThere = (name: string) => files.some((path) => path.startsWith(name))
  expect(named.filter((name) => !isThere(name))).toEqual([])
  expect(files.filter((path) => path.endsWith('.map'))).toEqual([])
}, 60_000)
