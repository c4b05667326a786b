/**
 * The routes of the management API that are no JSON: the event stream that the dashboard lives on, a worker's log as it
 * grows, and the way through to one worker. They take the raw request and reply.
 */
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import type { Dialect } from '../../api/route.ts'
import { SkeinError } from '../../errors.ts'
import { type Auth, isLetIn } from '../access/auth.ts'
import type { OwnRoute } from '../http/openapi.ts'
import type { StreamBounds } from '../http/sse.ts'
import { tailOf } from './dialect.ts'
import { Feed } from './feed.ts'
import type { Management } from './management.ts'

/** Who may open a feed. */
const ROLE = 'operator'
/** A feed has no end, and its key may: the key is looked at again this often. */
const RECHECK_MS = 1000

const EVENTS = 'text/event-stream'

export const STREAM_ROUTES: readonly OwnRoute[] = [
  { path: '/api/events', summary: 'Changes of workers and figures, as events', type: EVENTS },
  {
    path: '/api/workers/:id/logs/stream',
    summary: 'The log of a worker as it is written (query: tail)',
    type: EVENTS,
  },
  { path: '/api/workers/:id/proxy/:path', summary: 'Any method: one worker alone', type: '*/*' },
]

export function mountStreams(
  app: FastifyInstance,
  management: Management,
  dialect: Dialect,
  bounds: StreamBounds,
  auth: Auth,
): void {
  const feeds = new Set<Feed>()
  const open = ({ headers }: FastifyRequest, reply: FastifyReply): Feed => {
    reply.hijack()
    // All headers that hooks have set are strings.
    const feed = new Feed(reply.raw, reply.getHeaders() as Record<string, string>, bounds)
    feeds.add(feed)
    const recheck = setInterval(() => {
      if (!isLetIn(auth, headers.authorization, ROLE)) feed.end()
    }, RECHECK_MS)
    feed.onClose(() => {
      clearInterval(recheck)
      feeds.delete(feed)
    })
    return feed
  }
  // A server that closes would wait for them.
  app.addHook('preClose', async () => {
    for (const feed of feeds) feed.end()
  })
  app.addHook('onClose', async () => management.close())
  const config = { dialect, role: ROLE } as const

  app.get('/api/events', { config, exposeHeadRoute: false }, async (request, reply) => {
    const hello = await management.hello()
    follow(open(request, reply), hello, management)
    return reply
  })
  app.get<{ Params: { id: string }; Querystring: { tail?: string } }>(
    '/api/workers/:id/logs/stream',
    { config, exposeHeadRoute: false },
    async (request, reply) => {
      const { params, query } = request
      const { id, log } = management.fleet.find(params.id)
      const lines = log.tail(tailOf(query.tail))
      const feed = open(request, reply)
      const send = (line: string) => feed.send({ type: 'log', ...{ worker_id: id, line } })
      for (const line of lines) send(line)
      feed.onClose(log.listen(send))
      return reply
    },
  )
  mountProxy(app, management, dialect)
}

/** What was left out because the watcher was slow is told as it then is. */
function follow(feed: Feed, hello: { readonly type: string }, management: Management): void {
  feed.send(hello)
  const missed = new Set<string>()
  const tell = (id: string) => {
    const worker = management.fleet.workers.find((candidate) => candidate.id === id)
    const isTold = worker === undefined || feed.send(eventOf(management.record(worker)))
    if (isTold) missed.delete(id)
    else missed.add(id)
  }
  feed.onClose(management.fleet.listen(({ id }) => tell(id)))
  feed.onClose(
    management.sampler.listen((sample) => {
      for (const id of missed) tell(id)
      feed.send({ type: 'sample', ...{ sample } })
    }),
  )
}

function eventOf(worker: object): { readonly type: string } {
  return { type: 'worker', ...{ worker } }
}

/**
 * In a scope of its own: bodies are left unread for the worker's own gateway, which also looks at the caller's role: who
 * may use the server may use one worker of it.
 */
function mountProxy(app: FastifyInstance, management: Management, dialect: Dialect): void {
  app.register(async (scope) => {
    scope.removeAllContentTypeParsers()
    scope.addContentTypeParser('*', (_request, _payload, done) => done(null))
    scope.all<{ Params: { id: string } }>(
      '/api/workers/:id/proxy/*',
      { config: { dialect, isPassedOn: true } },
      (request, reply) => passOn(request, reply, management),
    )
  })
}

async function passOn(
  request: FastifyRequest<{ Params: { id: string } }>,
  reply: FastifyReply,
  management: Management,
): Promise<FastifyReply> {
  const worker = management.fleet.find(request.params.id)
  // The raw path, as the client spelt it: the part behind the fixed one.
  const path = /^\/api\/workers\/[^/]+\/proxy(\/.*)$/s.exec(request.raw.url ?? '')?.[1]
  if (path === undefined) throw new SkeinError('not_found', 'no such route')
  // A way to it would stay for good: nothing ends once more.
  if (worker.hasEnded)
    throw new SkeinError('model_not_loaded', 'the worker has ended; restart it, or ask another')
  // One request, one id, in both gateways' logs.
  request.raw.headers['x-request-id'] = request.id
  reply.hijack()
  await management.doors.pass(worker, path, request.raw, reply.raw)
  return reply
}
