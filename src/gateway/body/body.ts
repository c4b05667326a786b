/**
 * Parses request bodies: JSON only, valid UTF-8, limited in size after parsing. Errors name the field. It knows no
 * dialect.
 */
import type { Readable } from 'node:stream'
import type { FastifyInstance, FastifyRequest, FastifySchemaValidationError } from 'fastify'
import type { FormBody } from '../../api/route.ts'
import { invalid, SkeinError } from '../../errors.ts'
import { runTask, taskPlace } from '../../threads/pool.ts'
import { turns } from '../../threads/turns.ts'
import type { Auth } from '../access/auth.ts'
import { type BodyBounds, readBody, withStatus } from './body-memory.ts'
import { type JsonBounds, JsonScan } from './json-scan.ts'
import { type JsonText, readForm, readJson } from './read-body.ts'

declare module 'fastify' {
  interface FastifyContextConfig {
    /** Fields that the route may read; null or absent: all. */
    fields?: ReadonlySet<string> | null
  }
  interface FastifyRequest {
    /** The raw bytes of a JSON body that is forwarded; else null. */
    bodyBytes: Uint8Array | null
  }
}

/** Parsing text of so many bytes takes a tenth of a millisecond of the event loop, and so many objects, lists and strings two. */
const INLINE_BYTES = 64 * 1024
const INLINE_NODES = 4096
/** Memory of an object, a list or a string, without the bytes of its text. */
const NODE_BYTES = 64
const FORM = 'application/x-www-form-urlencoded'
const PAGE_HEADERS = ['origin', 'referer', 'cookie', 'sec-fetch-site', 'sec-fetch-mode']
/** Node's own fetch sends sec-fetch-mode, too. */
const BROWSER_HEADERS = PAGE_HEADERS.filter((name) => name !== 'sec-fetch-mode')
const READ_FORM = taskPlace(import.meta.url, './read-body.js', 'readFormTask')
const READ_JSON = taskPlace(import.meta.url, './read-body.js', 'readJsonTask')

/**
 * Takes over all body parsing. Other content types are refused with 415, because a foreign web page can send forms and
 * plain text without a preflight. curl labels its data a form but sends no header of a page, so that is read as JSON.
 */
export function parseJsonBodies(
  app: FastifyInstance,
  bounds: BodyBounds & JsonBounds,
  auth: Auth,
  keepsBytes = false,
): void {
  app.decorateRequest('bodyBytes', null)
  app.removeAllContentTypeParsers()
  app.addContentTypeParser(['application/json', FORM], async (request: FastifyRequest, payload: Readable) => {
    if (isFormOfPage(request)) throw wrongType()
    const scan = new JsonScan(bounds)
    const keyOf = () => {
      if (scan.password === null) throw noKeyYet(bounds)
      return auth.checkPassword(scan.password, undefined).tenant
    }
    const body = await readBody(request, payload, bounds, (bytes) => scan.write(bytes), keyOf)
    // Clients send the header with every request, even without a body, such as DELETE.
    if (body.length === 0) return undefined
    const encoding = request.headers['content-encoding'] ?? 'identity'
    if (encoding !== 'identity') throw wrongEncoding()
    request.heldBody?.become(NODE_BYTES * scan.nodes)
    const isShort = body.length <= INLINE_BYTES && scan.nodes <= INLINE_NODES
    // A thread takes ownership of the bytes.
    if (keepsBytes) request.bodyBytes = isShort ? body : body.slice()
    const { fields = null } = request.routeOptions.config
    const text: JsonText = { bytes: body, fields }
    if (isShort) return await turns.do(() => readJson(text))
    return await runTask(READ_JSON, text, [body.buffer])
  })
}

/** Parses forms for the routes of a scope; forms of foreign pages are refused. `keepsBytes`: keep the raw form. */
export function parseForms(scope: FastifyInstance, bounds: BodyBounds, keepsBytes: boolean): void {
  scope.removeAllContentTypeParsers()
  scope.addContentTypeParser(
    'multipart/form-data',
    async (request: FastifyRequest, payload: Readable): Promise<FormBody | Uint8Array> => {
      if (BROWSER_HEADERS.some((name) => request.headers[name] !== undefined)) throw wrongType()
      const bytes = await readBody(request, payload, bounds)
      if (keepsBytes) return bytes
      const form = { bytes, type: request.headers['content-type']! }
      if (bytes.length <= INLINE_BYTES) return await readForm(form)
      return await runTask(READ_FORM, form, [bytes.buffer])
    },
  )
}

/** Browsers send headers that tell where such a request comes from. */
function isFormOfPage({ headers }: FastifyRequest): boolean {
  const isForm = headers['content-type']?.startsWith(FORM) === true
  return isForm && PAGE_HEADERS.some((name) => headers[name] !== undefined)
}

function wrongType(): Error {
  const message = 'expected the header Content-Type: application/json'
  return withStatus(new SkeinError('invalid_request', message), 415)
}

function noKeyYet({ strangerBodyBytes }: BodyBounds): Error {
  const message = `a body of more than ${strangerBodyBytes / 1024} KiB needs an API key before it: send the header Authorization: Bearer <key>, or password as the first field`
  return withStatus(new SkeinError('unauthorized', message))
}

function wrongEncoding(): Error {
  return withStatus(
    new SkeinError('invalid_request', 'compressed bodies are not accepted; send the body uncompressed'),
    415,
  )
}

/** A validation error with its schema (Ajv's `verbose` option). */
export type Complaint = FastifySchemaValidationError & { parentSchema?: { description?: string } }

/** One error, for the first wrong field. */
export function describeInvalid(complaints: readonly Complaint[]): SkeinError {
  const complaint = pick(complaints)
  const { missingProperty, additionalProperty } = complaint.params
  const name = missingProperty ?? additionalProperty
  const path = complaint.instancePath + (typeof name === 'string' ? `/${name}` : '')
  const param = fieldName(path)
  const problem = problemOf(complaint)
  if (param === '' && complaint.keyword === 'type')
    return new SkeinError('invalid_request', 'the body is missing or not an object; expected {…} in JSON')
  if (param === '') return new SkeinError('invalid_request', `the body ${problem}`)
  return invalid(param, problem)
}

/**
 * A union reports one error per form, and then one of its own. If the value has the type of one form and is wrong
 * further in, that error is the useful one; otherwise the union's own description is.
 */
function pick(complaints: readonly Complaint[]): Complaint {
  const union = complaints.find(({ keyword }) => keyword === 'anyOf')
  if (union === undefined) return complaints[0]!
  const isInside = ({ keyword, instancePath }: Complaint) =>
    keyword !== 'anyOf' && (keyword !== 'type' || instancePath !== union.instancePath)
  const inside = complaints.filter(isInside)
  return inside.length === 1 ? inside[0]! : union
}

/** Keywords whose schemas carry their own error message: `Matching`, `OneOf` and records. */
const DESCRIBED = ['anyOf', 'pattern', 'additionalProperties']

function problemOf({ keyword, message, params, parentSchema }: Complaint): string {
  if (keyword === 'required') return 'missing; it is required'
  const description = parentSchema?.description
  if (DESCRIBED.includes(keyword) && description !== undefined) return `expected ${description}`
  if (keyword === 'additionalProperties') return 'no such field'
  if (keyword === 'enum') return `expected one of ${listOf(params.allowedValues)}`
  return (message ?? 'is not valid').replace(TYPE, withArticle).replace(SIZE, sizeOf)
}

/** As Ajv says it: "must be array", "must be integer,null". */
const TYPE = /^must be ([a-z]+)(?:,null)?$/

function withArticle(_: string, type: string): string {
  return `must be ${/^[aio]/.test(type) ? 'an' : 'a'} ${type}`
}

/** As Ajv says it: "must NOT have fewer than 1 items". */
const SIZE = /^must NOT have (fewer|more) than (\d+) (character|item)s$/

function sizeOf(_: string, which: string, count: string, what: string): string {
  return `must have at ${which === 'fewer' ? 'least' : 'most'} ${count} ${what}${count === '1' ? '' : 's'}`
}

/** Leaves out null, which means absent and is not worth suggesting. */
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
