/**
 * Mounts the routes of a dialect on HTTP: a request becomes a call, and its reply JSON or an event stream. The call is
 * cancelled in every phase if the client disconnects. Everything about sockets is here and in `sse.ts`, so that
 * dialects need not know it.
 */
import { randomUUID } from 'node:crypto'
import { Readable } from 'node:stream'
import type { FastifyInstance, FastifyReply, FastifyRequest, RouteOptions } from 'fastify'
import type { MixtureAdmin, ModelAdmin, ModelFetcher, ModelRegistry } from '../../api/models.ts'
import type { Access, Call, Dialect, Reply, Role, Route } from '../../api/route.ts'
import { SSE } from '../../api/stream-form.ts'
import { assert, SkeinError } from '../../errors.ts'
import { ANONYMOUS, type Auth, authorizationOf, checkRole, type Principal } from '../access/auth.ts'
import type { SealedCaller } from '../access/caller-seal.ts'
import type { RateLimits } from '../access/rate-limits.ts'
import { asks, urgentModels } from '../access/urgency.ts'
import { type Complaint, describeInvalid, parseForms } from '../body/body.ts'
import { readBody, withStatus } from '../body/body-memory.ts'
import { refuseIfFull } from '../routing/registry.ts'
import type { Drain } from './drain.ts'
import type { Limits } from './limits.ts'
import { onReplyClosed } from './request-end.ts'
import { EventStream } from './sse.ts'

/** A route with the dialect whose shapes it speaks. */
interface Entry {
  readonly dialect: Dialect
  readonly route: Route
}

declare module 'fastify' {
  interface FastifyContextConfig {
    /** The dialect whose errors the route uses until its body is known. */
    dialect?: Dialect
    /** Absent: the key is in the header, and without it the request is refused at once. */
    access?: Access
    /** The minimum role of callers. Absent: `user`, that is, any key. Checked before the handler. */
    role?: Role
    /** Only other members of the cluster may call the route. */
    isForMembers?: boolean
  }
  interface FastifyRequest {
    /** The caller of a request that another cluster member forwarded; null: a client sent it. */
    member: SealedCaller | null
    /** Null until the caller has shown a key, or needs none. */
    principal: Principal | null
    /** The dialect that answers at this path; null until the body has been read. */
    entry: Entry | null
  }
}

/** Answers requests in place of this app: a cluster's gateway forwards them to nodes. */
export interface Front {
  answersFor(route: Route): boolean
  answer(request: FastifyRequest, reply: FastifyReply, entry: Entry): Promise<unknown>
}

interface MountContext {
  readonly admin: (ModelAdmin & MixtureAdmin) | null
  /** For admins. */
  readonly fetcher: ModelFetcher | null
  readonly limits: Limits
  readonly drain: Drain
  readonly auth: Auth
  /** Whether routes with `access: 'translate'` need no key. */
  readonly isTranslateOpen: boolean
  /** Counts and logs an error, and returns what the client may see of it. */
  readonly report: (thrown: unknown, request: FastifyRequest) => SkeinError
  readonly rates: RateLimits
  readonly models: ModelRegistry
  /** Null: requests are answered here. */
  readonly front: Front | null
  /** The models as one request of this caller may use them. */
  readonly modelsFor: (request: FastifyRequest, principal: Principal, reply: FastifyReply) => ModelRegistry
}

/** Bytes of a form besides its file. */
const FORM_BYTES = 64 * 1024

export function mountDialects(app: FastifyInstance, dialects: readonly Dialect[], context: MountContext): void {
  for (const entries of byPath(dialects).values()) mountPath(app, entries, context)
}

/** Entries by method and path. Entries that claim bodies come before the one that takes all others. */
function byPath(dialects: readonly Dialect[]): Map<string, Entry[]> {
  const paths = new Map<string, Entry[]>()
  for (const dialect of dialects) {
    for (const route of dialect.routes) {
      const key = `${route.method} ${route.path}`
      const entries = paths.get(key) ?? []
      paths.set(key, entries)
      if (route.claims === undefined) entries.push({ dialect, route })
      else entries.unshift({ dialect, route })
    }
  }
  return paths
}

function mountPath(app: FastifyInstance, entries: readonly Entry[], context: MountContext): void {
  const { dialect, route } = entries.at(-1)!
  const accesses = new Set(entries.map((entry) => entry.route.access))
  const roles = new Set(entries.map((entry) => entry.route.role))
  const rest = entries.filter((entry) => entry.route.claims === undefined)
  const isClear = accesses.size === 1 && roles.size === 1 && rest.length === 1
  assert(isClear, `clashing routes at ${route.path}`)
  const { access, role } = route
  const isShared = entries.length > 1
  const front = context.front?.answersFor(route) === true ? context.front : null
  const isAsked = front === null && entries.every((entry) => asks(entry.route))
  // Whoever answers validates the body: a node may run a later release.
  const isValidated = front === null
  const options: RouteOptions = {
    method: route.method,
    url: route.path,
    ...(route.body === null || isShared || !isValidated ? {} : { schema: { body: route.body } }),
    config: {
      dialect,
      fields: fieldsOf(entries),
      ...(access === undefined ? {} : { access }),
      ...(role === undefined ? {} : { role }),
    },
    onRequest: async (request, reply) => {
      if (request.principal !== null) countRequest(request.principal, reply, context)
      checkType(request, route)
      if (isAsked && request.principal !== null) refuseIfFull(context.models, request.principal.tenant)
    },
    preValidation: async (request, reply) => {
      if (route.mayLackBody === true) request.body ??= {}
      // The last entry takes bodies that no other claims.
      request.entry = entries.find(({ route }) => route.claims?.(request.body) ?? true)!
      authenticate(request, reply, context)
      if (isShared && isValidated) validate(request, request.entry.route)
    },
    handler: (request, reply) =>
      front === null ? new Exchange(context, request, reply).run() : front.answer(request, reply, entryOf(request)),
  }
  if (route.takesForm === true) {
    app.register(async (scope) => {
      parseForms(scope, context.limits, front !== null)
      scope.route({ ...options, bodyLimit: context.limits.fileBytes + FORM_BYTES })
    })
    return
  }
  if (route.takesBytes !== true) {
    app.route(options)
    return
  }
  // In a scope of its own, so that no other route accepts a binary body.
  app.register(async (scope) => {
    const { limits } = context
    scope.removeAllContentTypeParsers()
    scope.addContentTypeParser('application/octet-stream', (request: FastifyRequest, payload: Readable) =>
      readBody(request, payload, limits),
    )
    scope.route({ ...options, bodyLimit: limits.stateBytes })
  })
}

/** The fields that the schemas of a path name; null if one of them accepts unnamed fields. */
function fieldsOf(entries: readonly Entry[]): ReadonlySet<string> | null {
  const names = new Set<string>()
  for (const { route } of entries) {
    if (route.body === null) continue
    // Schemas of bodies are objects; any other kind names no fields.
    const { properties } = route.body as { properties?: object }
    if (properties === undefined) return null
    for (const name of Object.keys(properties)) names.add(name)
  }
  return names
}

/** Runs before the body is read, because Fastify's own refusal of another content type speaks of JSON. */
function checkType({ headers }: FastifyRequest, { takesBytes, takesForm }: Route): void {
  if (takesBytes !== true && takesForm !== true) return
  const [type, curl] =
    takesForm === true
      ? ['multipart/form-data', '-F purpose=batch -F file=@FILE']
      : ['application/octet-stream', '-H "Content-Type: application/octet-stream" --data-binary @FILE']
  const [sent = ''] = (headers['content-type'] ?? '').split(';', 1)
  if (sent.trim().toLowerCase() === type) return
  const message = `the body is a file: send the header Content-Type: ${type} (curl: ${curl})`
  throw withStatus(new SkeinError('invalid_request', message), 415)
}

/** Finds the caller. The gate has accepted the header, or left the decision to the key in the body. */
function authenticate(request: FastifyRequest, reply: FastifyReply, context: MountContext): void {
  const { auth, isTranslateOpen } = context
  if (request.principal !== null) return
  const { access, role } = request.routeOptions.config
  // The body may be anything, because it has not been validated yet.
  const password = (request.body as { password?: unknown } | null)?.password
  const isOpen = access === 'translate' && isTranslateOpen
  const shown = authorizationOf(request.headers, request.routeOptions.config.dialect?.keyHeaders)
  request.principal = isOpen ? ANONYMOUS : auth.checkPassword(password, shown)
  checkRole(request.principal, role)
  request.heldBody?.belongsTo(request.principal.tenant)
  countRequest(request.principal, reply, context)
}

function countRequest(principal: Principal, reply: FastifyReply, { rates }: MountContext): void {
  rates.takeRequest(principal, (headers) => reply.headers(headers))
}

function validate(request: FastifyRequest, { body }: Route): void {
  if (body === null) return
  const isValid = request.compileValidationSchema(body, 'body')
  // The validator's errors are Ajv's, as in Fastify's own validation.
  if (!isValid(request.body)) throw describeInvalid((isValid.errors ?? []) as Complaint[])
}

const KEEP_ALIVE_EVERY_MS = 15_000
/** Maximum characters of the header `warnings`. */
const MAX_WARNINGS = 2000

function entryOf({ entry }: FastifyRequest): Entry {
  assert(entry !== null, 'a handler ran before its route was chosen')
  return entry
}

class Exchange {
  readonly #entry: Entry
  readonly #context: MountContext
  readonly #request: FastifyRequest
  readonly #reply: FastifyReply
  readonly #controller = new AbortController()
  readonly #warnings: string[] = []

  constructor(context: MountContext, request: FastifyRequest, reply: FastifyReply) {
    this.#entry = entryOf(request)
    this.#context = context
    this.#request = request
    this.#reply = reply
  }

  async run(): Promise<unknown> {
    const { drain } = this.#context
    drain.checkOpen()
    const { signal } = this.#controller
    const leave = drain.enter(this.#controller)
    // request.signal does not help: Fastify aborts it when the body has been read, or never after hijack().
    const onClose = () => this.#controller.abort(new SkeinError('aborted', 'the client went away'))
    onReplyClosed(this.#reply, onClose)
    try {
      return await this.#answer(this.#callOf(signal))
    } catch (thrown) {
      throw this.#causeOf(thrown)
    } finally {
      leave()
    }
  }

  async #answer(call: Call): Promise<unknown> {
    let reply: Reply
    try {
      reply = await this.#alive(
        this.#entry.route.handle(call),
        () => this.#startJson(),
        () => this.#reply.raw.write(' '),
      )
    } catch (error) {
      if (!this.#reply.sent) throw error
      return this.#endJson(this.#renderError(error))
    }
    // The stream is prepared, and its call with the body is no longer needed.
    if (reply.kind === 'events') this.#request.heldBody?.release()
    if (reply.kind === 'events') return this.#stream(reply.events)
    if (reply.kind === 'bytes') return this.#sendBytes(reply.bytes)
    if (reply.kind === 'json-bytes') return this.#sendJson(reply.chunks)
    if (this.#reply.sent) return this.#endJson(reply.body)
    const { body, status = 200 } = reply
    this.#reply.code(status)
    if (typeof body === 'object') return this.#reply.send(body)
    return this.#reply.type('application/json; charset=utf-8').send(JSON.stringify(body))
  }

  #sendJson(chunks: readonly Uint8Array[]): unknown {
    const length = chunks.reduce((sum, chunk) => sum + chunk.length, 0)
    const json = Readable.from(chunks, { objectMode: false })
    if (!this.#reply.sent)
      return this.#reply.type('application/json; charset=utf-8').header('content-length', length).send(json)
    json.pipe(this.#reply.raw)
    return this.#reply
  }

  #sendBytes(content: Uint8Array): unknown {
    // If the reply has begun as JSON it is too late for a file, but reading a state takes a fraction of that time.
    if (this.#reply.sent) throw new SkeinError('timeout', 'the file took too long to read')
    const buffer = Buffer.from(content.buffer, content.byteOffset, content.byteLength)
    return this.#reply.type('application/octet-stream').send(buffer)
  }

  async #stream(source: AsyncIterable<object>): Promise<unknown> {
    const events = source[Symbol.asyncIterator]()
    const { raw } = this.#reply
    const form = this.#entry.dialect.stream ?? SSE
    const stream = new EventStream(raw, () => this.#headers(), form, this.#context.limits)
    const open = () => {
      this.#reply.hijack()
      stream.open()
    }
    try {
      // A failure before the first event, such as a full queue, still becomes a proper HTTP error.
      const first = await this.#alive(events.next(), open, () => stream.keepAlive())
      this.#reply.hijack()
      await stream.write(first.done ? null : first.value, events)
    } catch (error) {
      if (!this.#reply.sent) throw error
      stream.fail(this.#renderError(error))
    }
    return this.#reply
  }

  /** Waits for `work`. If that takes long, `begin` commits the response and `beat` keeps it alive until the end. */
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

  /** JSON may begin with white space, so a long wait need not end in a client's timeout. */
  #startJson(): void {
    this.#reply.hijack()
    const headers = { ...this.#headers(), 'content-type': 'application/json; charset=utf-8' }
    this.#reply.raw.writeHead(200, headers)
  }

  #endJson(body: object | string): unknown {
    this.#reply.raw.end(JSON.stringify(body))
    return this.#reply
  }

  #renderError(thrown: unknown): object {
    const error = this.#context.report(this.#causeOf(thrown), this.#request)
    return this.#entry.dialect.renderError(error)
  }

  /** The engine only knows that a call was cancelled; the canceller knows why. */
  #causeOf(thrown: unknown): unknown {
    const { aborted, reason } = this.#controller.signal
    const isCancelled = thrown instanceof SkeinError && thrown.code === 'aborted'
    return aborted && isCancelled ? reason : thrown
  }

  #warn(message: string): void {
    this.#warnings.push(message)
    const text = this.#warnings.join('. ').replace(/[^ -~]/g, '?')
    this.#reply.header('warnings', text.slice(0, MAX_WARNINGS))
  }

  /** Headers that hooks have set, which hijacking would lose. All are set as strings. */
  #headers(): Readonly<Record<string, string>> {
    return this.#reply.getHeaders() as Record<string, string>
  }

  #callOf(signal: AbortSignal): Call {
    const { modelsFor, admin, fetcher, limits } = this.#context
    const { principal, body, params } = this.#request
    assert(principal !== null, 'a handler ran before its caller was known')
    // The body is released when its handler has used it, not at the end of the answer.
    this.#request.body = undefined
    const own = modelsFor(this.#request, principal, this.#reply)
    return {
      // Not the request id, which clients may choose: ids name live requests of the engine.
      id: randomUUID().replaceAll('-', ''),
      body,
      // A route's path has only named parameters, which are strings.
      params: params as Record<string, string>,
      query: lastOf(this.#request.query),
      tenant: principal.tenant,
      report: (thrown) => this.#context.report(thrown, this.#request),
      warn: (message) => this.#warn(message),
      models: urgentModels(own, this.#entry.route, body, principal.limits),
      admin,
      fetcher: principal.role === 'admin' ? fetcher : null,
      limits,
      signal,
      now: Math.floor(Date.now() / 1000),
    }
  }
}

/** Fastify's query has a list for a name that is given several times; the last one counts. */
function lastOf(query: unknown): Record<string, string> {
  const entries = Object.entries((query ?? {}) as Record<string, string | string[]>)
  return Object.fromEntries(entries.map(([name, value]) => [name, Array.isArray(value) ? value.at(-1)! : value]))
}
