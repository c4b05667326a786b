/**
 * Tests the tables of fields that routes do not read: harmless fields, fields that are refused unless neutral, and
 * where docs/ names them.
 */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { UNREAD as ANTHROPIC } from '../../src/api/anthropic/body.ts'
import type { UnreadFields } from '../../src/api/fields.ts'
import { UNREAD as LLAMA } from '../../src/api/llama/body.ts'
import { UNREAD_OPTIONS } from '../../src/api/ollama/body.ts'
import { UNREAD_CHAT } from '../../src/api/ollama/chat.ts'
import { UNREAD_GENERATE } from '../../src/api/ollama/generate.ts'
import { UNREAD as RESPONSES } from '../../src/api/responses/body.ts'
import { closest, distance } from '../../src/files/closest.ts'
import { postTo, serve } from './kit.ts'

const messages = [{ role: 'user', content: 'Hi' }]

interface Table {
  readonly route: string
  /** The section of docs/api.md or docs/dialects.md. */
  readonly section: string
  readonly body: object
  readonly unread: UnreadFields
  /** The object with the fields, if it is not the body. */
  readonly within?: string
}

const OLLAMA = { model: 'goose', stream: false }
const TABLES: readonly Table[] = [
  { route: '/api/chat', section: 'Ollama', body: { ...OLLAMA, messages }, unread: UNREAD_CHAT },
  { route: '/api/generate', section: 'Ollama', body: { ...OLLAMA, prompt: 'Hi' }, unread: UNREAD_GENERATE },
  { route: '/api/chat', section: 'Ollama', body: { ...OLLAMA, messages }, unread: UNREAD_OPTIONS, within: 'options' },
  {
    route: '/v1/messages',
    section: 'Anthropic Messages',
    body: { model: 'goose', max_tokens: 5, messages },
    unread: ANTHROPIC,
  },
  {
    route: '/v1/responses',
    section: 'Responses',
    body: { model: 'goose', input: 'Hi', store: false },
    unread: RESPONSES,
  },
  { route: '/completion', section: 'llama.cpp and ai00', body: { prompt: 'Hi' }, unread: LLAMA },
]

const docs = join(import.meta.dirname, '../../docs')
const pages = ['api.md', 'dialects.md'].map((page) => readFileSync(join(docs, page), 'utf8')).join('\n')
const sectionOf = (title: string) => pages.split(/\n##+ /).find((part) => part.startsWith(title))!

describe.each(TABLES)('$route $within', ({ route, section, body, unread, within }) => {
  const { app } = serve()
  const send = (field: string, value: unknown) => {
    const fields = { [field]: value }
    return postTo(app, route, { ...body, ...(within === undefined ? fields : { [within]: fields }) })
  }

  test('harmless fields are accepted with any value, without a warning', async () => {
    for (const field of unread.harmless) {
      for (const value of [7, 'x', [], {}, true]) {
        const reply = await send(field, value)
        expect(reply.statusCode, `${field}: ${reply.body}`).toBe(200)
        expect(reply.headers.warnings, field).toBeUndefined()
      }
    }
  })

  test('refused fields are refused by name, unless their value is neutral', async () => {
    for (const [field, off] of Object.entries(unread.refused)) {
      for (const value of [...off, null]) {
        const reply = await send(field, value)
        expect(reply.statusCode, `${field}: ${reply.body}`).toBe(200)
      }
      const reply = await send(field, 'something')
      expect(reply.statusCode, field).toBe(400)
      expect(reply.body).toContain(`${within === undefined ? '' : `${within}.`}${field}: `)
    }
  })

  test('the documentation names them', () => {
    const text = sectionOf(section)
    const fields = [...unread.harmless, ...Object.keys(unread.refused)]
    expect(fields.filter((field) => !new RegExp(`\`${field}[\`:]`).test(text))).toEqual([])
  })
})

test('a misspelt field gets the right name as a hint', () => {
  const names = ['temperature', 'top_p', 'max_tokens', 'n']
  expect(closest('temprature', names)).toBe('temperature')
  expect(closest('Temperature', names)).toBe('temperature')
  expect(closest('maxTokens', names)).toBe('max_tokens')
  expect(closest('top-p', names)).toBe('top_p')
  expect(closest('topp_', names)).toBe('top_p')
  expect(closest('stop', names)).toBeNull()
  expect(closest('x'.repeat(100_000), names)).toBeNull()
  expect(distance('abcd', 'abdc')).toBe(1)
  expect(distance('kitten', 'sitting')).toBe(3)
  expect(distance('', 'ab')).toBe(2)
})
