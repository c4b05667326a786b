/** The OpenAPI 3.1 page: the routes and schemas of the dialects, and the gateway's own routes. */

import { readFileSync } from 'node:fs'
import type { Dialect, Route } from '../../api/route.ts'
import { SSE, type StreamForm } from '../../api/stream-form.ts'
import { ERROR_STATUS } from '../../errors.ts'
import type { OwnRoute } from './own-routes.ts'

const CLIENT_ERRORS = [400, 401, 403, 404, 413, 429, 500, 503]

/** The description of each error reply: the codes of our error table by status. */
function describeStatus(status: number): string {
  const codes = Object.entries(ERROR_STATUS).filter(([, of]) => of === status)
  return codes.map(([code]) => code).join(', ')
}

/** Tag of the routes that belong to no dialect. */
const GATEWAY = { name: 'gateway', about: 'Health and load of the server' }

export function openApiPage(dialects: readonly Dialect[], own: readonly OwnRoute[], version: string): object {
  const paths: Record<string, Record<string, Operation>> = {}
  for (const dialect of dialects) {
    for (const route of dialect.routes) {
      const path = braced(route.path)
      const method = route.method.toLowerCase()
      const earlier = paths[path]?.[method]
      const entry = operation(dialect, route, path)
      paths[path] = { ...paths[path], [method]: earlier === undefined ? entry : merged(earlier, entry) }
    }
  }
  for (const { type = JSON_TYPE, dialect = GATEWAY, ...route } of own) {
    const path = braced(route.path.replace('*', ':path'))
    const content = { [type]: { schema: {} } }
    paths[path] = { get: operationOf({ ...route, path, method: 'GET' }, dialect.name, content) }
  }
  addExamples(paths)
  const used = new Set(Object.values(paths).flatMap((methods) => Object.values(methods).flatMap(({ tags }) => tags)))
  const owners = new Set([...dialects, ...own.map(({ dialect }) => dialect ?? GATEWAY)])
  const tags = [...owners].filter(({ name }) => used.has(name))
  return {
    openapi: '3.1.0',
    info: {
      title: 'Skein',
      version,
      description: 'An RWKV inference server.',
      license: { name: 'Apache-2.0', identifier: 'Apache-2.0' },
    },
    tags: tags.map(({ name, about }) => ({ name, description: about })),
    paths,
    security: [{ key: [] }],
    components: {
      securitySchemes: { key: { type: 'http', scheme: 'bearer' } },
      schemas: { Error: { type: 'object', properties: { error: {} }, required: ['error'] } },
    },
  }
}

const JSON_TYPE = 'application/json'
const BYTES_TYPE = 'application/octet-stream'

function braced(path: string): string {
  return path.replace(/:(\w+)/g, '{$1}')
}

/** One path of several dialects accepts the bodies of any of them. The texts of the first one are kept. */
function merged(first: Operation, second: Operation): Operation {
  const bodies = [first, second].flatMap(({ requestBody }) => {
    const schema = requestBody?.content[JSON_TYPE]?.schema
    return schema === undefined ? [] : ((schema as { anyOf?: object[] }).anyOf ?? [schema])
  })
  const tags = [...new Set([...first.tags, ...second.tags])]
  return { ...first, tags, requestBody: bodyOf({ anyOf: bodies }) }
}

interface Operation {
  readonly tags: readonly string[]
  readonly requestBody?: ReturnType<typeof bodyOf>
  readonly responses: Readonly<Record<number, Described>>
  readonly [rest: string]: unknown
}

interface Described {
  readonly description: string
  readonly content: Content
}
type Content = Readonly<Record<string, { readonly schema: object; examples?: object }>>

function bodyOf(schema: object, type = JSON_TYPE, required = true) {
  const content: Content = { [type]: { schema } }
  return { required, content }
}

function operation({ name, stream }: Dialect, route: Route, path: string): Operation {
  const { body, takesBytes, takesForm, mayLackBody } = route
  const described = operationOf({ ...route, path }, name, contentOf(route, stream))
  if (takesBytes === true) return { ...described, requestBody: bodyOf({}, BYTES_TYPE) }
  if (takesForm === true) return { ...described, requestBody: bodyOf({}, 'multipart/form-data') }
  if (body === null) return described
  return { ...described, requestBody: bodyOf(body, JSON_TYPE, mayLackBody !== true) }
}

function operationOf(
  { method, path, summary, role }: Pick<Route, 'method' | 'path' | 'summary' | 'role'>,
  tag: string,
  content: Content,
): Operation {
  const parameters = [...path.matchAll(/\{(\w+)\}/g)].map(([, name]) => ({
    name,
    in: 'path',
    required: true,
    schema: { type: 'string' },
  }))
  const words = path.split(/[^A-Za-z0-9]+/).filter((word) => word !== '')
  return {
    operationId: [method.toLowerCase(), ...words].join('_'),
    summary,
    tags: [tag],
    // OpenAPI's way to name a role.
    ...(role === undefined ? {} : { security: [{ key: [role] }] }),
    ...(parameters.length === 0 ? {} : { parameters }),
    responses: { 200: { description: 'The reply', content }, ...errorResponses() },
  }
}

function contentOf({ body, givesBytes }: Route, { type }: StreamForm = SSE): Content {
  if (givesBytes === true) return { [BYTES_TYPE]: { schema: {} } }
  const content = { [JSON_TYPE]: { schema: { type: 'object' } } }
  const properties = (body as { properties?: Record<string, unknown> } | null)?.properties
  if (properties?.stream === undefined) return content
  return { ...content, [type.split(';')[0]!]: { schema: { type: 'string' } } }
}

function errorResponses(): Record<number, Described> {
  const content = { [JSON_TYPE]: { schema: { $ref: '#/components/schemas/Error' } } }
  const entries = CLIENT_ERRORS.map((status) => [status, { description: describeStatus(status), content }])
  return Object.fromEntries(entries)
}

/**
 * A request and its reply for each route, for the OpenAPI page. They come from a server with the demo model; `npx
 * vitest run test/e2e/reference -u` regenerates them.
 */
export interface ApiExample {
  /** "POST /v1/sessions/{id}/fork" */
  readonly route: string
  readonly title: string
  /** Path and query of the request. */
  readonly url: string
  /** JSON; absent if there was no body, or a file. */
  readonly request?: object
  readonly sendsFile?: true
  /** The text of the form's file. */
  readonly form?: string
  readonly status: number
  /** JSON, the text of a stream, or a description of a file. */
  readonly reply: unknown
}

/** Adds the examples to the routes of an OpenAPI page, by path and method. */
function addExamples(paths: Readonly<Record<string, Readonly<Record<string, Operation>>>>): void {
  const byRoute = new Map<string, ApiExample[]>()
  // The build copies it beside the compiled module. The test that writes it ensures its type.
  for (const example of JSON.parse(readFileSync(new URL('./examples.json', import.meta.url), 'utf8')) as ApiExample[]) {
    byRoute.set(example.route, [...(byRoute.get(example.route) ?? []), example])
  }
  for (const [route, examples] of byRoute) {
    const [method, path] = route.split(' ') as [string, string]
    const { requestBody, responses } = paths[path]?.[method.toLowerCase()] ?? {}
    put(requestBody?.content[JSON_TYPE], examples, ({ request }) => request)
    const replies = examples.filter(({ status }) => status < 300)
    for (const [type, content] of Object.entries(responses?.[200]?.content ?? {})) {
      const isText = type !== JSON_TYPE
      put(content, replies, ({ reply }) => ((typeof reply === 'string') === isText ? reply : undefined))
    }
  }
}

/** OpenAPI's form of several examples, by title. */
function put(
  content: Content[string] | undefined,
  examples: readonly ApiExample[],
  pick: (example: ApiExample) => unknown,
): void {
  const entries = examples
    .map((example) => [example.title, { value: pick(example) }] as const)
    .filter(([, { value }]) => value !== undefined)
  if (content !== undefined && entries.length > 0) content.examples = Object.fromEntries(entries)
}
