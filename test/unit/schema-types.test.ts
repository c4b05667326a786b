/** Our schemas compared with those of typebox, whose types they have. */
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import Typebox from 'typebox'
import { expect, test } from 'vitest'
import { Type } from '../../src/files/schema-types.ts'

const SRC = join(import.meta.dirname, '../../src')
type Makers = typeof Type

const SCHEMAS: Record<string, (make: Makers) => unknown> = {
  'what has a type': (make) => [
    make.String({ minLength: 1 }),
    make.Number(),
    make.Integer({ minimum: 0 }),
    make.Boolean({ description: 'a switch' }),
    make.Null(),
  ],
  'what has none': (make) => [
    make.Unknown(),
    make.Unknown({ description: 'anything' }),
    make.Unsafe<string>({ type: 'string', enum: ['a', null] }),
  ],
  'one of some': (make) => [
    make.Literal('x', { description: 'x' }),
    make.Literal(3),
    make.Literal(true),
    make.Enum(['a', 'b'], { description: 'one' }),
    make.Union([make.Null(), make.String()], { description: 'text' }),
  ],
  'lists and records': (make) => [
    make.Array(make.Integer(), { maxItems: 3 }),
    make.Record(make.String(), make.Unknown(), { type: 'object' }),
    make.Record(make.String({ pattern: '^[0-9]{1,10}$' }), make.Number(), { maxProperties: 2 }),
  ],
  'objects whose fields must be, may be, and are none': (make) => {
    const needed = make.String()
    const fields = { a: make.Optional(needed), b: needed, c: make.Optional(make.Null()) }
    return [
      make.Object(fields, { additionalProperties: false }),
      make.Object({ a: make.Optional(needed) }),
      make.Object({ b: needed, inner: make.Object(fields) }),
      make.Object({}),
    ]
  },
}

test.each(Object.entries(SCHEMAS))('%s: same as from typebox', (_, schemas) => {
  // As printed: typebox's marks are hidden, and the order of keys does not matter.
  const printed = (make: Makers) => JSON.parse(JSON.stringify(schemas(make)))
  expect(printed(Type)).toEqual(printed(Typebox))
})

test('no file in src imports typebox', () => {
  const loading = readdirSync(SRC, { recursive: true, encoding: 'utf8' })
    .filter((name) => name.endsWith('.ts'))
    .filter((name) => /^(import|export) (?!type )[^;]*?from 'typebox/m.test(readFileSync(join(SRC, name), 'utf8')))
  expect(loading).toEqual([])
})
