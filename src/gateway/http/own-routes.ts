/**
 * Routes that belong to no dialect. They take the raw request, do not count against a key's limits, and answer while
 * the server drains. A row defines a route completely, including its entry in the OpenAPI page.
 */
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import type { Dialect, Role } from '../../api/route.ts'
import { SkeinError } from '../../errors.ts'

export interface OwnRoute {
  /** With `:name` for parameters; a final `*` takes the rest. */
  readonly path: string
  readonly summary: string
  /** Media type of the reply. Absent: JSON. */
  readonly type?: string
  /** The minimum role of callers. Absent: any key. */
  readonly role?: Role
  /** The dialect whose errors and tag the route uses. Absent: the server's own. */
  readonly dialect?: Dialect
  /** Accepts every method and a body of any type, which stays unread or becomes a Buffer. Absent: GET only. */
  readonly anyMethod?: 'unread' | 'buffer'
  handle(request: FastifyRequest, reply: FastifyReply): unknown
}

export function mountOwn(app: FastifyInstance, routes: readonly OwnRoute[]): void {
  for (const { path: url, type, role, dialect, anyMethod, handle } of routes) {
    const config = { ...(role && { role }), ...(dialect && { dialect }) }
    const handler = async (request: FastifyRequest, reply: FastifyReply) => handle(request, reply)
    if (anyMethod === undefined) {
      // A HEAD request for a stream would never end.
      app.get(url, { config, exposeHeadRoute: type !== 'text/event-stream' }, handler)
      continue
    }
    // In a scope of its own, so that no other route accepts bodies of any type.
    app.register(async (scope) => {
      scope.removeAllContentTypeParsers()
      if (anyMethod === 'unread') scope.addContentTypeParser('*', (_request, _payload, done) => done(null))
      else scope.addContentTypeParser('*', { parseAs: 'buffer' }, (_, body, done) => done(null, body))
      scope.all(url, { config: { ...config, isPassedOn: anyMethod === 'unread' } }, handler)
    })
  }
}

export function paramOf({ params }: FastifyRequest, name: string): string {
  // Parameters of a path are strings.
  return (params as Record<string, string>)[name]!
}

/** The part of the URL that matched the route's `*`, with the slash before it, as the client wrote it. */
export function pathBehind({ raw, routeOptions: { url = '' } }: FastifyRequest): string {
  const depth = url.split('/').length - 1
  const behind = (raw.url ?? '').split('/').slice(depth)
  if (behind.length === 0) throw new SkeinError('not_found', 'no such route')
  return `/${behind.join('/')}`
}
