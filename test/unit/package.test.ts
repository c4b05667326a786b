/** An installed package has the files that its pages name. */
import { execFileSync, spawnSync } from 'node:child_process'
import { cpSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { temporaryFolder } from '../helpers/temporary-folder.ts'

const ROOT = join(import.meta.dirname, '../..')
const BUNDLED = {
  bundle: ['fastify', 'pino', 'ajv', 'prom-client', 'commander'],
  web: ['preact', '@preact/signals', 'marked', 'lowlight', 'temml', 'uplot'],
  browser: ['@noble/hashes'],
  'web/browser': ['@noble/hashes'],
}

// It compresses 24 MB, twice.
test('the package has the files that its pages name, the licences of what it bundles, and no source maps without sources', {
  tags: 'night',
  timeout: 60_000,
}, () => {
  const options = ['pack', '--dry-run', '--json', '--ignore-scripts']
  const packed = JSON.parse(execFileSync('npm', options, { cwd: ROOT, encoding: 'utf8' }))
  // A list, or a record by name, depending on the npm version.
  const [{ files: entries }] = Object.values(packed) as [{ files: { readonly path: string }[] }]
  const files = entries.map(({ path }) => path)
  const pages = files.filter((path) => /^(README|docs\/operations)\.md$/.test(path))
  const texts = pages.map((page) => readFileSync(join(ROOT, page), 'utf8')).join('\n')
  const named = [...texts.matchAll(/\b(?:deploy|examples)\/[\w.-]*/g)].map(([path]) => path)
  expect(named).toContain('deploy/skein.service')
  const isThere = (name: string) => files.some((path) => path.startsWith(name))
  expect(named.filter((name) => !isThere(name))).toEqual([])
  expect(files.filter((path) => path.endsWith('.map'))).toEqual([])
  for (const folder of Object.keys(BUNDLED)) expect(files).toContain(`dist/${folder}/licenses.md`)
})

test.each(Object.entries(BUNDLED))('dist/%s has the licences of the packages in it', (folder, names) => {
  const licences = readFileSync(join(ROOT, `dist/${folder}/licenses.md`), 'utf8')
  for (const name of names) expect(licences).toContain(`\n## ${name} - `)
})

test('npm start in a clone that was not built says what to do', () => {
  const clone = temporaryFolder()
  for (const path of ['scripts/prepare.js', 'package.json', 'package-lock.json', 'tsconfig.json', 'bundle.config.ts'])
    cpSync(join(ROOT, path), join(clone, path))
  const start = () => spawnSync('npm', ['start'], { cwd: clone, encoding: 'utf8' })
  expect(start()).toMatchObject({
    status: 1,
    stderr: expect.stringContaining('nothing is built here yet; run: npm ci'),
  })
  for (const folder of ['dist/cli', 'src', 'web', 'kernels/webgpu']) mkdirSync(join(clone, folder), { recursive: true })
  writeFileSync(join(clone, 'dist/cli/main.js'), '')
  expect(start()).toMatchObject({ status: 0, stderr: expect.stringContaining('built from other sources') })
  expect(spawnSync('npm', ['run', 'postbuild'], { cwd: clone }).status).toBe(0)
  expect(start().stderr).not.toContain('skein')
})

test('badges agree with package.json', () => {
  const { license, engines } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'))
  for (const page of ['README.md', 'README_zh.md']) {
    const text = readFileSync(join(ROOT, page), 'utf8').replaceAll('%E2%89%A5', '≥')
    expect(text).toContain(`/licence-${license.replace('-', '--')}-`)
    expect(text).toContain(`/node-${engines.node.replace('>=', '≥_')}-`)
  }
})

test('the recording is small, and stands still for users who prefer no motion', () => {
  const cast = readFileSync(join(ROOT, 'docs/images/cast.svg'), 'utf8')
  expect(cast.length).toBeLessThan(300_000)
  expect(cast).toContain('prefers-reduced-motion')
  for (const said of ['npx skein serve', 'npx skein chat', 'Paris', '/fork', 'Tokyo']) expect(cast).toContain(said)
})
