/** Regular expressions for client texts run in linear time, and none is made from what a client sends. */
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { check } from 'recheck'
import { parseSync } from 'vite'
import { expect, test } from 'vitest'

const ROOT = join(import.meta.dirname, '../..')
/** The others read operator input: flags, hub answers, library names. */
const MET_BY_CLIENTS = ['api', 'engine', 'gateway', 'state', 'threads', 'tokenizer']

interface Found {
  readonly file: string
  readonly source: string
  readonly flags: string
}

function filesOf(folder: string): string[] {
  const names = readdirSync(join(ROOT, folder), { recursive: true, encoding: 'utf8' })
  return names.filter((name) => /\.tsx?$/.test(name)).map((name) => join(folder, name))
}

const files = MET_BY_CLIENTS.flatMap((wing) => filesOf(`src/${wing}`))

test('no regular expression is compiled while the server runs', () => {
  const makers = files.filter((file) => /\bRegExp\(/.test(readFileSync(join(ROOT, file), 'utf8')))
  expect(makers).toEqual([])
})

test('all are linear in the length of the text', async () => {
  const found = files.flatMap(patternsOf)
  expect(found.length).toBeGreaterThan(50)
  const seen = new Map(found.map((one) => [`/${one.source}/${one.flags}`, one]))
  const bad: string[] = []
  for (const [text, { file, source, flags }] of seen) {
    const { status } = await check(source, flags, { timeout: 10_000 })
    if (status !== 'safe') bad.push(`${file}: ${text} is ${status}`)
  }
  expect(bad).toEqual([])
}, 120_000)

test('the check finds a slow one', async () => {
  expect((await check('1/?\\d+x', 'g')).status).toBe('vulnerable')
})

function patternsOf(file: string): Found[] {
  const found: Found[] = []
  const visit = (node: unknown): void => {
    if (typeof node !== 'object' || node === null) return
    const { type, regex } = node as { type?: string; regex?: { pattern: string; flags: string } }
    if (type === 'Literal' && regex) found.push({ file, source: regex.pattern, flags: regex.flags })
    for (const value of Object.values(node)) visit(value)
  }
  visit(parseSync(file, readFileSync(join(ROOT, file), 'utf8')).program)
  return found
}
