/**
 * Puts the routes of a dialect on HTTP: one call in, its reply out as JSON or as an event stream, cancelled in every
 * phase when the client goes. Everything a dialect does not know about sockets is here and in `sse.ts`.
 */
import { randomUUID } from 'node:crypto'
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import type { ModelRegistry } from '../api/models.ts'
import type { Call, Dialect, Reply, Route } from '../api/route.ts'
import { SkeinError } from '../errors.ts'
import type { Drain } from './drain.ts'
import type { Limits } from './limits.ts'
import { EventStream } from './sse.ts'

declare module 'fastify' {
  interface FastifyContextConfig {
    /** Whose error shape a route has; routes of the gateway itself have the first dialect's. */
    dialect?: Dialect
  }
}

export interface MountContext {
  readonly models: ModelRegistry
  readonly limits: Limits
  readonly drain: Drain
  /** Counts and logs an error, and gives what the client may see of it. */
  readonly report: (thrown: unknown, request: FastifyRequest) => SkeinError
}

export function mountDialect(app: FastifyInstance, dialect: Dialect, context: MountContext): void {
  for (const route of dialect.routes) {
    app.route({
      method: route.method,
      url: route.path,
      ...(route.body === null ? {} : { schema: { body: route.body } }),
      config: { dialect },
      handler: (request, reply) => new Exchange(dialect, route, context, request, reply).run(),
    })
  }
}

const KEEP_ALIVE_EVERY_MS = 15_000

/** One request and its response. */
class Exchange {
  readonly #dialect: Dialect
  readonly #route: Route
  readonly #context: MountContext
  readonly #request: FastifyRequest
  readonly #reply: FastifyReply

  constructor(
    dialect: Dialect,
    route: Route,
    context: MountContext,
    request: FastifyRequest,
    reply: FastifyReply,
  ) {
    this.#dialect = dialect
    this.#route = route
    this.#context = context
    this.#request = request
    this.#reply = reply
  }

  async run(): Promise<unknown> {
    const { drain } = this.#context
    drain.checkOpen()
    const controller = new AbortController()
    const leave = drain.enter(controller)
    // Not request.signal: Fastify aborts it when the body has been read, or never after hijack().
    const onClose = () => controller.abort(new SkeinError('aborted', 'the client went away'))
    this.#reply.raw.once('close', onClose)
    try {
      return await this.#answer(this.#callOf(controller.signal))
    } finally {
      leave()
    }
  }

  async #answer(call: Call): Promise<unknown> {
    let reply: Reply
    try {
      reply = await this.#alive(
        this.#route.handle(call),
        () => this.#startJson(),
        () => this.#reply.raw.write(' '),
      )
    } catch (error) {
      if (!this.#reply.sent) throw error
      return this.#endJson(this.#renderError(error))
    }
    if (reply.kind === 'events') return this.#stream(reply.events)
    if (this.#reply.sent) return this.#endJson(reply.body)
    return this.#reply.send(reply.body)
  }

  async #stream(source: AsyncIterable<object>): Promise<unknown> {
    const events = source[Symbol.asyncIterator]()
    const { raw } = this.#reply
    const stream = new EventStream(raw, this.#headers(), this.#context.limits)
    const open = () => {
      this.#reply.hijack()
      stream.open()
    }
    try {
      // What fails before the first event (a full queue above all) still becomes a proper HTTP error.
      const first = await this.#alive(events.next(), open, () => stream.keepAlive())
      this.#reply.hijack()
      await stream.write(first.done ? null : first.value, events)
    } catch (error) {
      if (!this.#reply.sent) throw error
      stream.fail(this.#renderError(error))
    }
    return this.#reply
  }

  /** Waits for `work`; if that takes long, `begin` commits the response and `beat` shows life until it is there. */
  async #alive<T>(work: Promise<T>, begin: () => void, beat: () => void): Promise<T> {
    const timer = setTimeout(() => {
      begin()
      beat()
      beating = setInterval(beat, KEEP_ALIVE_EVERY_MS)
    }, this.#context.limits.keepAliveAfterMs)
    let beating: NodeJS.Timeout | undefined
    try {
      return await work
    } finally {
      clearTimeout(timer)
      clearInterval(beating)
    }
  }

  /** JSON may begin with white space, so a long silence need not end in a client's timeout. */
  #startJson(): void {
    this.#reply.hijack()
    const headers = { ...this.#headers(), 'content-type': 'application/json; charset=utf-8' }
    this.#reply.raw.writeHead(200, headers)
  }

  #endJson(body: object): unknown {
    this.#reply.raw.end(JSON.stringify(body))
    return this.#reply
  }

  #renderError(thrown: unknown): object {
    return this.#dialect.renderError(this.#context.report(thrown, this.#request))
  }

  /** What hooks have set on the reply, which hijacking would lose. All of them are set as strings. */
  #headers(): Readonly<Record<string, string>> {
    return this.#reply.getHeaders() as Record<string, string>
  }

  #callOf(signal: AbortSignal): Call {
    const { models, limits } = this.#context
    return {
      // Never the request id, which clients may choose: ids name live requests of the engine.
      id: randomUUID().replaceAll('-', ''),
      body: this.#request.body,
      // A route's path has only named parameters, and those are strings.
      params: this.#request.params as Record<string, string>,
      models,
      limits,
      signal,
      now: Math.floor(Date.now() / 1000),
    }
  }
}
