/**
 * Routes of the management API that are not JSON: the dashboard's event stream, a worker's log as it grows, and the
 * proxy to one worker. They take the raw request and reply.
 */

import type { ServerResponse } from 'node:http'
import type { FastifyReply, FastifyRequest } from 'fastify'
import type { Dialect } from '../../api/route.ts'
import { SSE } from '../../api/stream-form.ts'
import { SkeinError } from '../../errors.ts'
import { type Auth, isLetIn } from '../access/auth.ts'
import { type OwnRoute, paramOf, pathBehind } from '../http/own-routes.ts'
import { STREAM_HEADERS, type StreamBounds } from '../http/sse.ts'
import { tailOf } from './dialect.ts'
import type { Management } from './management.ts'

/** The role that a feed needs. */
const ROLE = 'operator'
/** A feed has no end but its key may expire, so the key is checked again at this interval. */
const RECHECK_MS = 1000

const EVENTS = 'text/event-stream'

export function streamRoutes(management: Management, dialect: Dialect, feeds: Feeds): readonly OwnRoute[] {
  const common = { dialect, role: ROLE, type: EVENTS } as const
  return [
    {
      ...common,
      path: '/api/events',
      summary: 'Changes of workers and figures, as events',
      handle: async (request, reply) => {
        const hello = await management.hello()
        follow(feeds.open(request, reply), hello, management)
        return reply
      },
    },
    {
      ...common,
      path: '/api/workers/:id/logs/stream',
      summary: 'The log of a worker as it is written (query: tail)',
      handle: (request, reply) => {
        const { id, log } = management.fleet.find(paramOf(request, 'id'))
        const lines = log.tail(tailOf((request.query as { tail?: string }).tail))
        const feed = feeds.open(request, reply)
        const send = (line: string) => feed.send({ type: 'log', ...{ worker_id: id, line } })
        for (const line of lines) send(line)
        feed.onClose(log.listen(send))
        return reply
      },
    },
    {
      path: '/api/workers/:id/proxy/*',
      summary: 'Any method: one worker alone',
      type: '*/*',
      dialect,
      // Left to the worker's own gateway, which checks the caller's role itself: whoever may use the server may use one
      // worker.
      anyMethod: 'unread',
      handle: (request, reply) => passOn(request, reply, management),
    },
  ]
}

/** The open event streams. Closing the server would wait for them. */
export class Feeds {
  readonly #open = new Set<Feed>()
  readonly #auth: Auth
  readonly #bounds: StreamBounds

  constructor(auth: Auth, bounds: StreamBounds) {
    this.#auth = auth
    this.#bounds = bounds
  }

  open({ headers, member }: Pick<FastifyRequest, 'headers' | 'member'>, reply: FastifyReply): Feed {
    reply.hijack()
    // All headers that hooks have set are strings.
    const feed = new Feed(reply.raw, reply.getHeaders() as Record<string, string>, this.#bounds)
    this.#open.add(feed)
    const recheck = setInterval(() => {
      if (!isLetIn(this.#auth, headers.authorization, member?.principal ?? null, ROLE)) feed.end()
    }, RECHECK_MS)
    feed.onClose(() => {
      clearInterval(recheck)
      this.#open.delete(feed)
    })
    return feed
  }

  end(): void {
    for (const feed of this.#open) feed.end()
  }
}

/** If events were skipped because the watcher was slow, the current state is sent instead. */
function follow(feed: Feed, hello: { readonly type: string }, management: Management): void {
  feed.send(hello)
  const missed = new Set<string>()
  const tell = (id: string) => {
    const worker = management.fleet.workers.find((candidate) => candidate.id === id)
    const isTold = worker === undefined || feed.send({ type: 'worker', ...{ worker: management.record(worker) } })
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

async function passOn(request: FastifyRequest, reply: FastifyReply, management: Management): Promise<FastifyReply> {
  const worker = management.fleet.find(paramOf(request, 'id'))
  const path = pathBehind(request)
  // A gateway opened now would never be closed, because the worker does not end again.
  if (worker.hasEnded) throw new SkeinError('model_not_loaded', 'the worker has ended; restart it, or ask another')
  // The request has the same id in the logs of both gateways.
  request.raw.headers['x-request-id'] = request.id
  reply.hijack()
  await management.workerGateways.pass(worker, path, request.raw, reply.raw)
  return reply
}

const HEADERS = { ...STREAM_HEADERS, 'content-type': SSE.type }

const BEAT_MS = 15_000

/**
 * A stream of server-sent events to one watcher. A slow watcher misses events that may be missed; one that does not
 * read at all is cut off. The buffer for it is bounded.
 */
export class Feed {
  readonly #response: ServerResponse
  readonly #bounds: StreamBounds
  readonly #beat: NodeJS.Timeout
  #isFullSince: number | null = null

  constructor(response: ServerResponse, headers: Readonly<Record<string, string>>, bounds: StreamBounds) {
    this.#response = response
    this.#bounds = bounds
    response.writeHead(200, { ...headers, ...HEADERS })
    this.#beat = setInterval(() => this.#write(': \n\n'), BEAT_MS)
    response.once('close', () => clearInterval(this.#beat))
  }

  get isOver(): boolean {
    return this.#response.destroyed || this.#response.writableEnded
  }

  /** Returns false if the watcher is too far behind and the event was dropped. */
  send(event: { readonly type: string }): boolean {
    const { type, ...rest } = event
    return this.#write(`event: ${type}\ndata: ${JSON.stringify(rest)}\n\n`)
  }

  onClose(listener: () => void): void {
    this.#response.once('close', listener)
  }

  end(): void {
    if (!this.isOver) this.#response.end()
  }

  #write(text: string): boolean {
    if (this.isOver) return false
    if (this.#response.writableLength <= this.#bounds.streamBufferBytes) {
      this.#isFullSince = null
      this.#response.write(text)
      return true
    }
    this.#isFullSince ??= performance.now()
    const isStuck = performance.now() - this.#isFullSince > this.#bounds.streamStallMs
    if (isStuck) this.#response.destroy()
    return false
  }
}
