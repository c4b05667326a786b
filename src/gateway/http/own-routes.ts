/**
 * Routes of no dialect: they take the raw request, are not counted against a key's limits, and answer while the server drains.
 * A row is all there is of one: the OpenAPI page follows from it, too.
 */
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import type { Dialect, Role } from '../../api/route.ts'
import { SkeinError } from '../../errors.ts'

export interface OwnRoute {
  /** With `:name` for parameters; `*` at its end takes the rest. */
  readonly path: string
  readonly summary: string
  /** Media type of the reply. Absent: JSON. */
  readonly type?: string
  /** The least role that may call it. Absent: any key. */
  readonly role?: Role
  /** Whose errors and tag it has. Absent: the server's own. */
  readonly dialect?: Dialect
  /** Every method, with a body of any type, which stays on the connection or is a Buffer. Absent: GET. */
  readonly anyMethod?: 'unread' | 'buffer'
  handle(request: FastifyRequest, reply: FastifyReply): unknown
}

export function mountOwn(app: FastifyInstance, routes: readonly OwnRoute[]): void {
  for (const { path: url, type, role, dialect, anyMethod, handle } of routes) {
    const config = { ...(role && { role }), ...(dialect && { dialect }) }
    const handler = async (request: FastifyRequest, reply: FastifyReply) => handle(request, reply)
    if (anyMethod === undefined) {
      // The head of a stream would never end.
      app.get(url, { config, exposeHeadRoute: type !== 'text/event-stream' }, handler)
      continue
    }
    // In a scope of its own: nowhere else is a body of any type accepted.
    app.register(async (scope) => {
      scope.removeAllContentTypeParsers()
      if (anyMethod === 'unread') scope.addContentTypeParser('*', (_request, _payload, done) => done(null))
      else scope.addContentTypeParser('*', { parseAs: 'buffer' }, (_, body, done) => done(null, body))
      scope.all(url, { config: { ...config, isPassedOn: anyMethod === 'unread' } }, handler)
    })
  }
}

/** A parameter that the route's path names. */
export function paramOf({ params }: FastifyRequest, name: string): string {
  // The parameters of a path are strings.
  return (params as Record<string, string>)[name]!
}

/** What a route's `*` stands for, with the slash before it, as the client spelt it. */
export function pathBehind({ raw, routeOptions: { url = '' } }: FastifyRequest): string {
  const depth = url.split('/').length - 1
  const behind = (raw.url ?? '').split('/').slice(depth)
  if (behind.length === 0) throw new SkeinError('not_found', 'no such route')
  return `/${behind.join('/')}`
}
