/** The OpenAPI 3.1 page, from the same routes and schemas that are served: it cannot say anything else. */
import type { Dialect, Route } from '../api/route.ts'
import { ERROR_STATUS } from '../errors.ts'

const CLIENT_ERRORS = [400, 401, 403, 404, 413, 429, 500, 503]

/** Codes of our error table by status: the description of each error reply. */
function describeStatus(status: number): string {
  const codes = Object.entries(ERROR_STATUS).filter(([, of]) => of === status)
  return codes.map(([code]) => code).join(', ')
}

export function openApiPage(dialects: readonly Dialect[], version: string): object {
  const paths: Record<string, Record<string, Operation>> = {}
  for (const dialect of dialects) {
    for (const route of dialect.routes) {
      const path = route.path.replace(/:(\w+)/g, '{$1}')
      const method = route.method.toLowerCase()
      const earlier = paths[path]?.[method]
      const entry = operation(dialect, route, path)
      paths[path] = {
        ...paths[path],
        [method]: earlier === undefined ? entry : merged(earlier, entry),
      }
    }
  }
  return {
    openapi: '3.1.0',
    info: {
      title: 'Skein',
      version,
      description: 'An RWKV inference server.',
      license: { name: 'Apache-2.0', identifier: 'Apache-2.0' },
    },
    paths,
    security: [{ key: [] }],
    components: {
      securitySchemes: { key: { type: 'http', scheme: 'bearer' } },
      schemas: { Error: { type: 'object', properties: { error: {} }, required: ['error'] } },
    },
  }
}

/** One path of several dialects: any of their bodies will do. The first one's words stay. */
function merged(first: Operation, second: Operation): Operation {
  const bodies = [first, second].flatMap(({ requestBody }) => {
    const schema = requestBody?.content['application/json'].schema
    return schema === undefined ? [] : ((schema as { anyOf?: object[] }).anyOf ?? [schema])
  })
  const tags = [...new Set([...first.tags, ...second.tags])]
  return { ...first, tags, requestBody: jsonBody({ anyOf: bodies }) }
}

interface Operation {
  readonly tags: readonly string[]
  readonly requestBody?: ReturnType<typeof jsonBody>
  readonly [rest: string]: unknown
}

function jsonBody(schema: object, required = true) {
  return { required, content: { 'application/json': { schema } } }
}

function operation(dialect: Dialect, route: Route, path: string): Operation {
  const parameters = [...path.matchAll(/\{(\w+)\}/g)].map(([, name]) => ({
    name,
    in: 'path',
    required: true,
    schema: { type: 'string' },
  }))
  const words = path.split(/[^A-Za-z0-9]+/).filter((word) => word !== '')
  return {
    operationId: [route.method.toLowerCase(), ...words].join('_'),
    summary: route.summary,
    tags: [dialect.name],
    ...(parameters.length === 0 ? {} : { parameters }),
    ...(route.body === null
      ? {}
      : { requestBody: jsonBody(route.body, route.mayLackBody !== true) }),
    responses: { 200: successOf(route), ...errorResponses() },
  }
}

function successOf(route: Route): object {
  const content: Record<string, object> = { 'application/json': { schema: { type: 'object' } } }
  const properties = (route.body as { properties?: Record<string, unknown> } | null)?.properties
  if (properties?.stream !== undefined) {
    content['text/event-stream'] = { schema: { type: 'string' } }
  }
  return { description: 'The reply', content }
}

function errorResponses(): Record<number, object> {
  const content = { 'application/json': { schema: { $ref: '#/components/schemas/Error' } } }
  const entries = CLIENT_ERRORS.map((status) => [
    status,
    { description: describeStatus(status), content },
  ])
  return Object.fromEntries(entries)
}
