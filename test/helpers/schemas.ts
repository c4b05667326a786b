/** Random JSON Schemas that answers can be held to, and documents that are valid against them or nearly so. */
import fc from 'fast-check'
import type { JsonSchema } from '../../src/grammar/constraint.ts'

/** Schemas of supported features, to a depth. */
export function schemas(depth: number): fc.Arbitrary<JsonSchema> {
  const bounds = fc.tuple(fc.integer({ min: -40, max: 40 }), fc.nat(60))
  const leaves: fc.Arbitrary<JsonSchema>[] = [
    fc.constant({ type: 'string' }),
    fc.tuple(fc.nat(3), fc.nat(4)).map(([min, more]) => ({ type: 'string', minLength: min, maxLength: min + more })),
    fc.constantFrom('^[ab]{2}$', '^x+[0-9]$', '^(abc|xyz)$').map((pattern) => ({ type: 'string', pattern })),
    fc.constantFrom('integer', 'number', 'boolean', 'null').map((type) => ({ type })),
    bounds.map(([low, width]) => ({ type: 'integer', minimum: low, maximum: low + width })),
    fc
      .tuple(
        fc.constantFrom('minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum'),
        fc.integer({ min: -40, max: 40 }),
      )
      .map(([bound, value]) => ({ type: 'integer', [bound]: value })),
    fc.constant({ type: ['string', 'null'], maxLength: 3 }),
    fc.constant({ type: 'object', additionalProperties: { type: 'integer' } }),
    fc.constant({ enum: ['abc', 12, null, true] }),
    fc.constantFrom('xyz', 1.5, false).map((value) => ({ const: value })),
    fc.constant({ type: ['string', 'null'] }),
    // As zod writes them.
    fc.constant({ type: 'integer', minimum: -(2 ** 53 - 1), maximum: 2 ** 53 - 1 }),
    fc.constant({ type: 'object', propertyNames: { type: 'string' }, additionalProperties: { type: 'integer' } }),
    fc.constant({
      ...{ type: 'array', prefixItems: [{ type: 'string' }, { type: 'integer' }], items: false },
      ...{ minItems: 2, maxItems: 2 },
    }),
  ]
  if (depth === 0) return fc.oneof(...leaves)
  const inner = schemas(depth - 1)
  const properties = fc.uniqueArray(fc.constantFrom('a', 'b', 'abc', 'x', '世'), { maxLength: 4 })
  const objects = fc
    .tuple(properties, fc.array(inner, { minLength: 5, maxLength: 5 }), fc.nat(15), fc.boolean())
    .map(([names, types, needed, isOpen]) => ({
      type: 'object',
      properties: Object.fromEntries(names.map((name, i) => [name, types[i]!])),
      required: names.filter((_, i) => (needed >> i) & 1),
      additionalProperties: isOpen ? types[4]! : false,
    }))
  const lists = fc
    .tuple(inner, fc.nat(2), fc.nat(3))
    .map(([items, min, more]) => ({ type: 'array', items, minItems: min, maxItems: min + more }))
  const choices = fc.array(inner, { minLength: 1, maxLength: 3 }).map((anyOf) => ({ anyOf }))
  const kinds = fc.array(inner, { minLength: 1, maxLength: 3 }).map((types) => ({
    oneOf: types.map((type, i) => ({
      type: 'object',
      properties: { a: { type: 'string', const: 'xyz'.slice(i) }, b: type },
      required: ['a', 'b'],
      additionalProperties: false,
    })),
  }))
  return fc.oneof({ weight: 3, arbitrary: objects }, lists, choices, kinds, ...leaves.slice(0, 3))
}

/** Random short JSON, to put in wrong places of a document. */
const ODD: readonly unknown[] = [
  null,
  true,
  0,
  -41,
  7,
  1.5,
  '',
  'abc',
  'xyzx',
  'a"é世',
  [],
  [1],
  {},
  { a: 1 },
  { 世: [] },
]
const WORDS = ['', 'a', 'ab', 'abc', 'x y', '世é', 'xyz abc', 'a"b']

/** A document for a schema, sometimes with a wrong part. Its properties are in the order of the schema. */
export function documentOf(schema: JsonSchema, pick: (count: number) => number): unknown {
  if (pick(12) === 0) return ODD[pick(ODD.length)]
  if (typeof schema === 'boolean') return ODD[pick(ODD.length)]
  const inner = (part: unknown) => documentOf(part as JsonSchema, pick) // schemas() makes them
  if (Array.isArray(schema.anyOf)) return inner(schema.anyOf[pick(schema.anyOf.length)])
  if (Array.isArray(schema.oneOf)) return inner(schema.oneOf[pick(schema.oneOf.length)])
  if (Array.isArray(schema.prefixItems)) {
    const parts = schema.prefixItems.map(inner)
    return pick(4) === 0 ? parts.slice(1) : parts
  }
  if (Array.isArray(schema.enum)) return schema.enum[pick(schema.enum.length)]
  if ('const' in schema) return schema.const
  switch ([schema.type].flat()[pick([schema.type].flat().length)]) {
    case 'object':
      return objectOf(schema, inner, pick)
    case 'array': {
      const [least, most] = [Number(schema.minItems ?? 0), Number(schema.maxItems ?? 3)]
      const length = Math.max(0, least - 1 + pick(most - least + 3))
      return Array.from({ length }, () => inner(schema.items ?? true))
    }
    case 'string':
      return WORDS[pick(WORDS.length)]
    case 'integer':
      return pick(100) - 50
    case 'number':
      return (pick(1000) - 500) / 8
    case 'boolean':
      return pick(2) === 0
    default:
      return null
  }
}

function objectOf(
  { properties = {}, required = [], additionalProperties }: Exclude<JsonSchema, boolean>,
  inner: (part: unknown) => unknown,
  pick: (count: number) => number,
): object {
  const needed = [required].flat()
  const named = Object.entries(properties as object).filter(([name]) => pick(needed.includes(name) ? 10 : 2) > 0)
  const entries = named.map(([name, part]) => [name, inner(part)])
  if (pick(named.length === 0 ? 2 : 10) === 0) entries.push(['zz', inner(additionalProperties ?? true)])
  return Object.fromEntries(entries)
}
