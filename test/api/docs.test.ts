import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { chatBody } from '../../src/api/openai/chat-schema.ts'
import { completionBody } from '../../src/api/openai/completions-schema.ts'
import { HARMLESS, NOT_IMPLEMENTED } from '../../src/api/openai/parameters.ts'
import { allDialects } from '../../src/gateway/app.ts'
import { Metrics } from '../../src/gateway/figures/metrics.ts'
import { DEFAULT_LIMITS } from '../../src/gateway/http/limits.ts'
import { SAMPLING_ROWS, type SamplingParameter } from '../../src/sampling.ts'
import { FakeEngineClient, fakeRegistry } from '../helpers/fake-engine.ts'

const PAGE = join(import.meta.dirname, '../../docs/api.md')
const page = readFileSync(PAGE, 'utf8')
const sectionOf = (title: string) => page.split(/\n##+ /).find((part) => part.startsWith(title))!
const namesIn = (text: string) => [...text.matchAll(/`([a-z_]+)`/g)].map((match) => match[1]!)

/** Rows generated from the table: `npx vitest run test/api/docs.test.ts -u` updates them. */
test('docs/api.md has a row for every number of sampling.ts', async () => {
  const rows = SAMPLING_ROWS.filter(([, { fields }]) => fields.length > 0)
  const names = rows.map(([, { fields }]) => `| \`${fields[0]}\` |`)
  const [before, after] = page.split(/(?<=### Honoured by both completion routes\n)/) as [string, string]
  const end = after.indexOf('\n### ')
  const lines = after.slice(0, end).split('\n')
  const at = lines.findIndex((line) => line.startsWith(names[0]!))
  expect(at).toBeGreaterThan(0)
  const rest = lines.filter((line) => !names.some((name) => line.startsWith(name)))
  const made = rows.map(([, row]) => `| ${cellsOf(row).join(' | ')} |`)
  const table = [...rest.slice(0, at), ...made, ...rest.slice(at)].join('\n')
  const whole = before + table + after.slice(end)
  await expect(whole).toMatchFileSnapshot(PAGE)
})

function cellsOf({ fields: [name, alias], min, max, off, about, int }: SamplingParameter): string[] {
  const signed = (value: number) => String(value).replace('-', '−')
  const range = int === undefined ? `${signed(min)}–${max}` : `≥ ${signed(min)}`
  const other = alias === undefined ? '' : `. RWKV name: \`${alias}\``
  return [`\`${name}\``, range, signed(off), about + other]
}

test('docs/api.md lists exactly the refused and the harmless fields', () => {
  const refused = namesIn(sectionOf('Refused')).filter((name) => name !== 'unsupported_parameter')
  expect(refused).toEqual(Object.keys(NOT_IMPLEMENTED).sort())
  expect(namesIn(sectionOf('Harmless'))).toEqual([...HARMLESS].sort())
})

test('docs/api.md names every honoured field, and it or docs/dialects.md every route', () => {
  const honoured = [
    ...Object.keys(chatBody(DEFAULT_LIMITS).properties),
    ...Object.keys(completionBody(DEFAULT_LIMITS).properties),
  ]
  for (const name of honoured) expect(page).toMatch(new RegExp(`\`${name}[\`.:]`))
  const routes = page + readFileSync(join(PAGE, '../dialects.md'), 'utf8')
  for (const { path } of allDialects(DEFAULT_LIMITS).flatMap(({ routes }) => routes)) {
    expect(routes).toContain(path.replace(/:(\w+)/, '{$1}'))
  }
})

/** `npx vitest run test/api/docs.test.ts -u` updates it. */
test('docs/operations.md lists all our metrics', async () => {
  const fleet = { workers: [], routerCounts: () => new Map() }
  const metrics = new Metrics(fakeRegistry(new FakeEngineClient()), fleet)
  const all = await metrics.registry.getMetricsAsJSON()
  const rows = all
    .filter(({ name }) => name.startsWith('skein_'))
    .map(({ name, type, help }) => `| \`${name}\` | ${type} | ${help} |`)
  const path = join(import.meta.dirname, '../../docs/operations.md')
  const [before, , after] = readFileSync(path, 'utf8').split(/<!-- \/?metrics -->/)
  const table = ['', '| metric | type | |', '|---|---|---|', ...rows, ''].join('\n')
  const whole = `${before}<!-- metrics -->${table}<!-- /metrics -->${after}`
  await expect(whole).toMatchFileSnapshot(path)
})
