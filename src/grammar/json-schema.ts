/**
 * Checks which JSON Schemas answers can be constrained to. Keywords that the grammar engine would ignore are refused by
 * name, so that an invalid answer never counts as valid; limits keep hostile schemas small. It knows no grammar.
 */
import { SkeinError } from '../errors.ts'
import type { JsonSchema } from './constraint.ts'
import { checkPattern, wrong } from './pattern.ts'

const MAX_BYTES = 64 * 1024
const MAX_DEPTH = 48
const MAX_ENUM = 1000
/** Maximum of minLength, maxItems and the like. */
const MAX_COUNT = 2000

/** Keywords whose values are schemas, lists of schemas, or objects of schemas. */
const SCHEMAS: Readonly<Record<string, 'one' | 'many' | 'named'>> = {
  items: 'one',
  additionalProperties: 'one',
  prefixItems: 'many',
  anyOf: 'many',
  oneOf: 'many',
  allOf: 'many',
  properties: 'named',
  $defs: 'named',
  definitions: 'named',
}
/** Of integers. */
const BOUNDS = ['minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum']
/** Other supported keywords. */
const HONOURED = [
  ...['type', 'enum', 'const', 'required', '$ref', 'pattern', 'propertyNames'],
  ...['minLength', 'maxLength', 'minItems', 'maxItems', ...BOUNDS],
]
/** Annotations, which do not affect validity. `format` does not either, unless a validator is told so. */
const NOTES = [
  ...['$schema', '$id', '$comment', 'title', 'description', 'default', 'examples', 'deprecated'],
  ...['readOnly', 'writeOnly', 'format', 'contentEncoding', 'contentMediaType'],
]
const TYPES = ['object', 'array', 'string', 'number', 'integer', 'boolean', 'null']

/** Throws invalid_request for an unsupported schema; `param` is the field it came in. */
export function checkSchema(schema: unknown, param: string): JsonSchema {
  const json = JSON.stringify(schema) ?? ''
  if (json.length > MAX_BYTES)
    throw wrong(param, `the schema has ${json.length} characters; expected at most ${MAX_BYTES}`)
  visit(schema, param, schema, 0)
  return schema as JsonSchema // every part of it was looked at
}

function visit(schema: unknown, at: string, root: unknown, depth: number): void {
  if (depth > MAX_DEPTH) throw wrong(at, `schemas are nested more than ${MAX_DEPTH} deep`)
  if (typeof schema === 'boolean') {
    if (schema || depth > 0) return
    throw wrong(at, 'nothing is valid against the schema false')
  }
  if (typeof schema !== 'object' || schema === null || Array.isArray(schema))
    throw wrong(at, 'expected a JSON Schema: an object')
  checkTogether(schema as Record<string, unknown>, at)
  for (const [keyword, value] of Object.entries(schema)) {
    const place = `${at}.${keyword}`
    if (NOTES.includes(keyword)) continue
    const kind = Object.hasOwn(SCHEMAS, keyword) ? SCHEMAS[keyword]! : null
    if (kind !== null) visitAll(kind, keyword, value, place, root, depth)
    else if (HONOURED.includes(keyword)) checkValue(keyword, value, place, root)
    else throw refused(place, keyword)
  }
}

/** Keywords that the grammar engine handles only alone: it would ignore others beside them. */
const ALONE = ['$ref', 'anyOf', 'oneOf', 'allOf'] as const

function checkTogether(schema: Readonly<Record<string, unknown>>, at: string): void {
  const said = Object.keys(schema).filter(
    (keyword) => !NOTES.includes(keyword) && keyword !== '$defs' && keyword !== 'definitions',
  )
  const alone = ALONE.find((keyword) => said.includes(keyword))
  const beside = said.find((keyword) => keyword !== alone)
  if (alone !== undefined && beside !== undefined) throw refused(at, `${beside} beside ${alone}`)
  const values = 'const' in schema ? [schema.const] : schema.enum
  if (Array.isArray(values)) {
    const types = schema.type === undefined ? TYPES : [schema.type].flat()
    const odd = values.find((value) => !types.some((type) => isOfType(value, type)))
    if (odd !== undefined) throw wrong(at, `${JSON.stringify(odd)} is not of the type that it must be`)
    const more = said.find((keyword) => !['type', 'enum', 'const'].includes(keyword))
    if (more !== undefined) throw refused(at, `${more} beside enum or const`)
    if ('const' in schema && 'enum' in schema) throw refused(at, 'const beside enum')
  }
  const bound = said.find((keyword) => BOUNDS.includes(keyword))
  if (bound !== undefined && schema.type !== 'integer') throw refused(at, `${bound} of what is no integer`)
  const isLong = 'minLength' in schema || 'maxLength' in schema
  if ('pattern' in schema && isLong) throw refused(at, 'pattern beside a length')
  const places = Array.isArray(schema.prefixItems) ? schema.prefixItems.length : null
  const isLengthOdd = [schema.minItems, schema.maxItems].some((count) => count !== undefined && count !== places)
  if (places !== null && isLengthOdd) throw refused(at, 'prefixItems beside another minItems or maxItems')
  if (Array.isArray(schema.oneOf) && !areApart(schema.oneOf))
    throw refused(at, 'oneOf of schemas that no property with another const each tells apart')
  if (Array.isArray(schema.required)) {
    const properties = (schema.properties ?? {}) as object
    const unknown = schema.required.find((name) => !Object.hasOwn(properties, name))
    if (unknown !== undefined) throw wrong(`${at}.required`, `${JSON.stringify(unknown)} is none of the properties`)
  }
}

/** Whether nothing is valid against two of them, because all require one property, with another constant each. */
function areApart(schemas: readonly unknown[]): boolean {
  const constants = schemas.map((schema) => {
    const { type, properties, required } = (schema ?? {}) as Record<string, unknown> // visit() has the last word
    if (type !== 'object' || !Array.isArray(required)) return new Map<string, string>()
    const named = Object.entries((properties ?? {}) as Record<string, { const?: unknown } | null>)
    const told = named.filter(([name, one]) => required.includes(name) && one?.const !== undefined)
    return new Map(told.map(([name, one]) => [name, JSON.stringify(one!.const)]))
  })
  const [first] = constants
  return [...(first?.keys() ?? [])].some((name) => {
    const values = constants.map((one) => one.get(name))
    return !values.includes(undefined) && new Set(values).size === values.length
  })
}

function isOfType(value: unknown, type: unknown): boolean {
  if (value === null) return type === 'null'
  if (Array.isArray(value)) return type === 'array'
  if (typeof value === 'number') return type === 'number' || (type === 'integer' && Number.isInteger(value))
  return typeof value === type
}

/**
 * The same schema, or a narrower one, that the grammar engine handles correctly. Next to named properties, unnamed ones
 * are excluded, because the engine would let them take the names. A format is dropped next to another condition on a
 * text.
 */
export function narrowed(schema: JsonSchema): JsonSchema {
  if (typeof schema === 'boolean') return schema
  const { format, minimum, maximum, exclusiveMinimum, exclusiveMaximum, oneOf, ...rest } = mapped(schema, narrowed)
  // The branches of oneOf exclude each other.
  if (oneOf !== undefined) rest.anyOf = oneOf
  // As many as there are places.
  if ('prefixItems' in rest) for (const count of ['minItems', 'maxItems']) delete rest[count]
  delete rest.propertyNames
  Object.assign(rest, boundsOf(schema))
  const hasNames = Object.keys((schema.properties ?? {}) as object).length > 0
  if (hasNames) rest.additionalProperties = false
  const isSaid = ['pattern', 'minLength', 'maxLength'].some((keyword) => keyword in schema)
  return isSaid || format === undefined ? rest : { ...rest, format }
}

/** The same schema without the conditions on numbers that no answer can be held to. What is no schema throws anything. */
export function loosened(schema: JsonSchema): JsonSchema {
  if (typeof schema === 'boolean') return schema
  const { multipleOf, ...rest } = mapped(schema, loosened)
  if (schema.type !== 'integer') for (const bound of BOUNDS) delete rest[bound]
  return rest
}

/** A copy with other schemas inside. */
function mapped(schema: object, change: (inside: JsonSchema) => JsonSchema): Record<string, unknown> {
  const inner = Object.entries(schema).map(([keyword, value]) => {
    // The caller has checked their types, or takes what comes of others.
    if (!Object.hasOwn(SCHEMAS, keyword)) return [keyword, value] as const
    if (SCHEMAS[keyword] === 'one') return [keyword, change(value as JsonSchema)] as const
    if (SCHEMAS[keyword] === 'many') return [keyword, (value as JsonSchema[]).map(change)] as const
    const named = Object.entries(value as Record<string, JsonSchema>)
    return [keyword, Object.fromEntries(named.map(([name, one]) => [name, change(one)]))] as const
  })
  return Object.fromEntries(inner)
}

/**
 * Both bounds of an integer that has any: with a single bound, the grammar engine accepts values outside of it. The
 * missing bound becomes the largest number of digits that every JSON reader keeps.
 */
function boundsOf(schema: Readonly<Record<string, unknown>>): object {
  const given = (keyword: string, inside: (bound: number) => number): number[] =>
    // checkSchema has checked that bounds are numbers.
    keyword in schema ? [inside(schema[keyword] as number)] : []
  const least = [...given('minimum', Math.ceil), ...given('exclusiveMinimum', (bound) => Math.floor(bound) + 1)]
  const most = [...given('maximum', Math.floor), ...given('exclusiveMaximum', (bound) => Math.ceil(bound) - 1)]
  if (least.length + most.length === 0) return {}
  return { minimum: Math.max(-FARTHEST, ...least), maximum: Math.min(FARTHEST, ...most) }
}

const FARTHEST = 999_999_999_999_999

function visitAll(
  kind: 'one' | 'many' | 'named',
  keyword: string,
  value: unknown,
  at: string,
  root: unknown,
  depth: number,
): void {
  if (kind === 'one') {
    visit(value, at, root, depth + 1)
    return
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value) !== (kind === 'many'))
    throw wrong(at, kind === 'many' ? 'expected a list of schemas' : 'expected an object of schemas')
  const parts = Object.entries(value)
  if (kind === 'many' && parts.length === 0) throw wrong(at, 'expected at least one schema')
  // The grammar engine would ignore all but one.
  if (keyword === 'allOf' && parts.length > 1) throw refused(at, 'allOf of several schemas')
  for (const [name, part] of parts) visit(part, `${at}.${name}`, root, depth + 1)
}

function checkValue(keyword: string, value: unknown, at: string, root: unknown): void {
  switch (keyword) {
    case 'type': {
      const types: unknown[] = Array.isArray(value) ? value : [value]
      const known = types.length > 0 && types.every((type) => TYPES.includes(type as string))
      if (!known) throw wrong(at, `expected one or more of ${TYPES.join(', ')}`)
      return
    }
    case 'enum':
      if (Array.isArray(value) && value.length >= 1 && value.length <= MAX_ENUM) return
      throw wrong(at, `expected a list of 1 to ${MAX_ENUM} values`)
    case 'const':
      return
    case 'required':
      if (Array.isArray(value) && value.every((name) => typeof name === 'string')) return
      throw wrong(at, 'expected a list of names')
    case '$ref':
      if (typeof value === 'string' && isKnown(value, root)) return
      throw wrong(at, `${JSON.stringify(value)?.slice(0, 80)} is no schema of this one's; expected "#/$defs/…"`)
    case 'propertyNames':
      // Names are always text.
      if (JSON.stringify(value) === '{"type":"string"}') return
      throw refused(at, 'propertyNames')
    case 'pattern':
      if (typeof value !== 'string') throw wrong(at, 'expected a regular expression')
      checkPattern(value, at)
      return
    case 'minimum':
    case 'maximum':
    case 'exclusiveMinimum':
    case 'exclusiveMaximum':
      // Beyond all integers of an answer it says nothing (zod's are ±2^53).
      if (typeof value === 'number' && (keyword.endsWith('inimum') ? value : -value) <= 1e15) return
      throw wrong(at, 'expected a number that integers of 15 digits reach')
    default:
      if (Number.isInteger(value) && (value as number) >= 0 && (value as number) <= MAX_COUNT) return
      throw wrong(at, `expected an integer from 0 to ${MAX_COUNT}`)
  }
}

/** Whether a reference points into the same document. */
function isKnown(ref: string, root: unknown): boolean {
  if (ref !== '#' && !ref.startsWith('#/')) return false
  let at: unknown = root
  for (const escaped of ref.split('/').slice(1)) {
    const name = decoded(escaped)?.replaceAll('~1', '/').replaceAll('~0', '~')
    if (name === undefined || typeof at !== 'object' || at === null || !Object.hasOwn(at, name)) return false
    at = (at as Record<string, unknown>)[name]
  }
  return typeof at === 'object' || typeof at === 'boolean'
}

/** Undefined where a "%" is followed by what no address has there. */
function decoded(part: string): string | undefined {
  try {
    return decodeURIComponent(part)
  } catch {
    return undefined
  }
}

function refused(at: string, keyword: string): SkeinError {
  const message = `${at}: answers cannot be held to ${JSON.stringify(keyword)}; leave it out of the schema`
  return new SkeinError('unsupported_parameter', message, { param: at.split('.')[0]! })
}
