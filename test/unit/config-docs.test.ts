/**
 * The published documentation of the settings is generated: `npx vitest run test/unit/config-docs.test.ts -u` updates
 * it.
 */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import type { Kind } from '../../src/settings/flags.ts'
import { publishedSchema, serveSchema } from '../../src/settings/serve-settings.ts'
import { fieldOf, SETTING_ROWS, variableOf } from '../../src/settings/setting.ts'

const DOCS = join(import.meta.dirname, '../../docs')

test('docs/skein.schema.json is the schema that checks files and that the command prints', async () => {
  const published = publishedSchema()
  expect(published).toMatchObject(serveSchema())
  const text = `${JSON.stringify(published, null, 2)}\n`
  await expect(text).toMatchFileSnapshot(join(DOCS, 'skein.schema.json'))
})

test('the table of docs/configuration.md has every setting', async () => {
  const path = join(DOCS, 'configuration.md')
  const [before, , after] = readFileSync(path, 'utf8').split(/<!-- \/?settings -->/)
  expect(after, 'the marks of the table').toBeDefined()
  const rows = SETTING_ROWS.map(({ flag, kind, description, default: given }) => {
    const about = given === undefined ? description : `${description} (default ${given})`
    const cells = [`\`--${flag}\``, `\`${fieldOf(flag)}\``, `\`${variableOf(flag)}\``, describeKind(kind), about]
    return `| ${cells.map((cell) => cell.replaceAll('|', '\\|')).join(' | ')} |`
  })
  const head = '| flag | field | variable | value in the file | |\n|---|---|---|---|---|'
  const table = `\n${[head, ...rows].join('\n')}\n`
  const whole = `${before}<!-- settings -->${table}<!-- /settings -->${after}`
  await expect(whole).toMatchFileSnapshot(path)
})

/** How the value is written in the file. */
function describeKind(kind: Kind): string {
  switch (kind.type) {
    case 'text':
      return 'text'
    case 'path':
      return 'path'
    case 'switch':
      return 'true or false'
    case 'number':
    case 'integer':
      return 'number'
    case 'choice':
      return kind.of.map((word) => `\`${word}\``).join(', ')
    case 'list':
      return kind.ofPaths === true ? 'list of paths' : 'list'
    case 'integers':
      return 'list of numbers'
    case 'paths':
      return '{name: path}'
    default:
      return kind satisfies never
  }
}
