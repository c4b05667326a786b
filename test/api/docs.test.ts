import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { chatBody } from '../../src/api/openai/chat-schema.ts'
import { completionBody } from '../../src/api/openai/completions-schema.ts'
import { HARMLESS, NOT_IMPLEMENTED } from '../../src/api/openai/parameters.ts'
import { allDialects } from '../../src/gateway/app.ts'
import { DEFAULT_LIMITS } from '../../src/gateway/limits.ts'

const page = readFileSync(join(import.meta.dirname, '../../docs/api.md'), 'utf8')
const sectionOf = (title: string) => page.split(/\n##+ /).find((part) => part.startsWith(title))!
const namesIn = (text: string) => [...text.matchAll(/`([a-z_]+)`/g)].map((match) => match[1]!)

test('docs/api.md lists exactly the refused and the harmless fields', () => {
  const refused = namesIn(sectionOf('Refused')).filter((name) => name !== 'unsupported_parameter')
  expect(refused).toEqual(Object.keys(NOT_IMPLEMENTED).sort())
  expect(namesIn(sectionOf('Harmless'))).toEqual([...HARMLESS].sort())
})

test('docs/api.md names every honoured field and every route', () => {
  const honoured = [
    ...Object.keys(chatBody(DEFAULT_LIMITS).properties),
    ...Object.keys(completionBody(DEFAULT_LIMITS).properties),
  ]
  for (const name of honoured) expect(page).toMatch(new RegExp(`\`${name}[\`.:]`))
  for (const { path } of allDialects(DEFAULT_LIMITS).flatMap(({ routes }) => routes)) {
    expect(page).toContain(path.replace(/:(\w+)/, '{$1}'))
  }
})
