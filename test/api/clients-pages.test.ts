/**
 * The pages of docs/clients/: each is listed, names its tests like the table of docs/clients.md, and its example is a
 * real exchange with the demo model, through the library or curl.
 */
import { execFile } from 'node:child_process'
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import type { FastifyInstance } from 'fastify'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { hasDemo, serveDemo } from './demo.ts'
import { urlOf } from './kit.ts'

const ROOT = join(import.meta.dirname, '../..')
const FOLDER = join(ROOT, 'docs/clients')
const INDEX = readFileSync(join(ROOT, 'docs/clients.md'), 'utf8')
const PAGES = readdirSync(FOLDER).map((name) => [name, readFileSync(join(FOLDER, name), 'utf8')])
/** The address in the pages, and the address of this test's server. */
const ADDRESS = 'http://127.0.0.1:8000'

/** Tested features, by client. */
function rowsOf(table: string): ReadonlyMap<string, string> {
  const [head, , ...rows] = table
    .split('\n')
    .filter((line) => line.startsWith('|'))
    .map((line) =>
      line
        .split('|')
        .slice(1, -1)
        .map((cell) => cell.trim()),
    )
  const named = rows.map(([name, ...marks]) => {
    const features = head!.slice(1).filter((_, i) => marks[i] === '✔')
    return [name!, features.join(', ')] as const
  })
  return new Map(named)
}

const TESTED = rowsOf(INDEX.split('## What works\n')[1]!.split('\n## ')[0]!)

test('the index lists every page, and every client of the table has one', () => {
  for (const [name] of PAGES) expect(INDEX).toContain(`](clients/${name})`)
  expect(TESTED.size).toBeGreaterThan(10)
  const said = PAGES.flatMap(([, page]) => [...page!.matchAll(/^- Tested with (.+?): /gm)])
  expect([...new Set(said.map(([, name]) => name))].sort()).toEqual([...TESTED.keys()].sort())
})

test.each(PAGES)('%s says what to install, how to connect, and what does not work', (_, page) => {
  const headings = page!.match(/^#+ .+$/gm)!.slice(1)
  expect(headings).toEqual(['## Connect', '## With the demo model', '## What works'])
  expect(page).toMatch(/^- Not: /m)
  for (const [, name, features] of page!.matchAll(/^- Tested with (.+?): (.+)\.$/gm))
    expect(features, name).toBe(TESTED.get(name!))
})

describe.skipIf(!hasDemo)('example requests and replies', () => {
  let url: string
  let app: FastifyInstance
  beforeAll(async () => {
    ;({ app } = await serveDemo())
    url = await urlOf(app)
  })
  afterAll(() => app.close())

  const run = async (command: string, args: string[]) =>
    (await promisify(execFile)(command, args, { cwd: ROOT })).stdout

  const programs = PAGES.flatMap(([name, page]) => {
    const found = [...page!.matchAll(/^```js\n(.*?)^```\nprints\n```\n(.*?)^```/gms)]
    return found.map(([, program, output]) => [name!, program!, output!] as const)
  })
  test.each(programs)('of the program of %s', async (_, program, output) => {
    const code = program.replaceAll(ADDRESS, url)
    expect(await run(process.execPath, ['--input-type=module', '-e', code])).toBe(output)
  })

  const calls = PAGES.flatMap(([name, page]) => {
    const found = [...page!.matchAll(/^```sh\n(curl .*)\n```\n```json\n(.*)\n```/gm)]
    return found.map(([, call, part]) => [name!, call!, part!] as const)
  })
  test.each(calls)('of the call of %s', async (_, call, part) => {
    const reply = await run('sh', ['-c', call.replaceAll(ADDRESS, url).replace('curl', 'curl -s')])
    expect(JSON.parse(reply)).toMatchObject(JSON.parse(part))
  })

  test('every page has one; the page about MCP is run by the tests of examples/', () => {
    const seen = new Set([...programs, ...calls].map(([name]) => name))
    expect(PAGES.map(([name]) => name).filter((name) => !seen.has(name!))).toEqual(['mcp.md'])
  })
})
