/** Request bodies: JSON only, valid UTF-8, bounded depth, and complaints that name the field. Knows no dialect. */
import type { FastifyInstance, FastifySchemaValidationError } from 'fastify'
import { SkeinError } from '../errors.ts'
import type { Limits } from './limits.ts'

const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: false })

/**
 * Takes over all body parsing. Other content types are refused with 415: a form or a text post is what a foreign web
 * page can send without asking first.
 */
export function parseJsonBodies(app: FastifyInstance, { bodyBytes, jsonDepth }: Limits): void {
  const parseJson = app.getDefaultJsonParser('error', 'error')
  app.removeAllContentTypeParsers()
  app.addContentTypeParser(
    'application/json',
    { parseAs: 'buffer', bodyLimit: bodyBytes },
    (request, body, done) => {
      // Clients send the header with every request, also with those that have no body: a DELETE above all.
      if (body.length === 0) return done(null, undefined)
      const encoding = request.headers['content-encoding'] ?? 'identity'
      if (encoding !== 'identity') return done(wrongEncoding())
      let text: string
      try {
        text = decode(body as Buffer) // parseAs: 'buffer' above
        checkDepth(text, jsonDepth)
      } catch (error) {
        return done(SkeinError.from(error))
      }
      // It calls back before it returns; the promise of its type is for parsers that are async functions.
      void parseJson(request, text, (error, value) => {
        if (error === null) done(null, value)
        else
          done(new SkeinError('invalid_request', 'the body is not valid JSON; expected one object'))
      })
    },
  )
}

function wrongEncoding(): Error {
  const error = new SkeinError(
    'invalid_request',
    'compressed bodies are not accepted; send it plain',
  )
  return Object.assign(error, { statusCode: 415 })
}

function decode(body: Buffer): string {
  try {
    return utf8.decode(body)
  } catch {
    throw new SkeinError('invalid_request', 'the body is not valid UTF-8')
  }
}

const QUOTE = 0x22
const BACKSLASH = 0x5c

/** Counts brackets outside strings, before anything recursive sees the text. */
function checkDepth(text: string, maxDepth: number): void {
  let depth = 0
  let inString = false
  for (let i = 0; i < text.length; i++) {
    const code = text.charCodeAt(i)
    if (inString) {
      if (code === BACKSLASH) i++
      else if (code === QUOTE) inString = false
    } else if (code === QUOTE) inString = true
    else if (code === 0x7b || code === 0x5b) {
      if (++depth > maxDepth) {
        throw new SkeinError('invalid_request', `the body nests deeper than ${maxDepth} levels`)
      }
    } else if (code === 0x7d || code === 0x5d) depth--
  }
}

/** What the validator reports, with the schema at fault (its `verbose` option). */
export type Complaint = FastifySchemaValidationError & { parentSchema?: { description?: string } }

/** One complaint for the first field at fault. */
export function describeInvalid(complaints: readonly Complaint[]): SkeinError {
  const complaint = pick(complaints)
  const { missingProperty, additionalProperty } = complaint.params
  const name = missingProperty ?? additionalProperty
  const path = complaint.instancePath + (typeof name === 'string' ? `/${name}` : '')
  const param = fieldName(path)
  const problem = problemOf(complaint)
  if (param === '' && complaint.keyword === 'type')
    return new SkeinError(
      'invalid_request',
      'the body is missing or no object; expected {…} in JSON',
    )
  if (param === '') return new SkeinError('invalid_request', `the body ${problem}`)
  return new SkeinError('invalid_request', `${param}: ${problem}`, { param })
}

/**
 * A union complains once per form and then about itself. If the value has the type of one form and is wrong further in,
 * that is the news; otherwise the union's own description is.
 */
function pick(complaints: readonly Complaint[]): Complaint {
  const union = complaints.find(({ keyword }) => keyword === 'anyOf')
  if (union === undefined) return complaints[0]!
  const isInside = ({ keyword, instancePath }: Complaint) =>
    keyword !== 'anyOf' && (keyword !== 'type' || instancePath !== union.instancePath)
  const inside = complaints.filter(isInside)
  return inside.length === 1 ? inside[0]! : union
}

/** What `Matching`, `OneOf` and a record of named things say of themselves. */
const DESCRIBED = ['anyOf', 'pattern', 'additionalProperties']

function problemOf({ keyword, message, params, parentSchema }: Complaint): string {
  if (keyword === 'required') return 'missing; it is required'
  const description = parentSchema?.description
  if (DESCRIBED.includes(keyword) && description !== undefined) return `expected ${description}`
  if (keyword === 'additionalProperties') return 'no such field'
  if (keyword === 'enum') return `expected one of ${listOf(params.allowedValues)}`
  return (message ?? 'is not valid').replace(/^must be ([a-z]+),null$/, 'must be $1')
}

/** null means absent, and is no value that one would send. */
function listOf(allowed: unknown): string {
  const values = Array.isArray(allowed) ? allowed.filter((value) => value !== null) : []
  return values.map((value) => JSON.stringify(value)).join(', ')
}

/** "/messages/0/role" → "messages[0].role" */
function fieldName(path: string): string {
  const parts = path.split('/').slice(1)
  return parts
    .map((part, i) => (/^\d+$/.test(part) ? `[${part}]` : i === 0 ? part : `.${part}`))
    .join('')
    .slice(0, 200)
}
