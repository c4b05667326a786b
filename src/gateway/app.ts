/**
 * The gateway as a Fastify instance that does not listen: the gate that every request passes first (origin, key), the
 * dialects, the gateway's own routes, and how errors become replies. It owns no engine and no process.
 */
import { randomUUID } from 'node:crypto'
import type { IncomingMessage } from 'node:http'
import fastify, {
  type FastifyBaseLogger,
  type FastifyInstance,
  type FastifyReply,
  type FastifyRequest,
  LogController,
  type RouteOptions,
} from 'fastify'
import { ai00Dialect } from '../api/ai00/dialect.ts'
import { anthropicDialect } from '../api/anthropic/dialect.ts'
import { type BatchService, batchesDialect } from '../api/batches/dialect.ts'
import { inferDialect } from '../api/infer/dialect.ts'
import { lightningDialect } from '../api/lightning/dialect.ts'
import { LiveCalls } from '../api/live-calls.ts'
import { llamaDialect } from '../api/llama/dialect.ts'
import type { ModelAdmin, ModelRegistry } from '../api/models.ts'
import { ollamaDialect } from '../api/ollama/dialect.ts'
import { openAiDialect } from '../api/openai/dialect.ts'
import { responsesDialect } from '../api/responses/dialect.ts'
import type { Dialect } from '../api/route.ts'
import { runnerDialect } from '../api/runner/dialect.ts'
import { sessionsDialect } from '../api/sessions/dialect.ts'
import { translateDialect } from '../api/translate/dialect.ts'
import { CALLER_HEADER } from '../cluster/member-seal.ts'
import { SkeinError } from '../errors.ts'
import { type Auth, authorizationOf, checkRole, createAuth, type Principal } from './access/auth.ts'
import type { CallerSeal } from './access/caller-seal.ts'
import type { NamedKeys } from './access/key-index.ts'
import { RateLimits } from './access/rate-limits.ts'
import { describeInvalid, parseJsonBodies } from './body/body.ts'
import { BodyMemory, holdBodies } from './body/body-memory.ts'
import { CODE_HEADER, DRAINING_HEADER, OWNER_HEADER } from './cluster/headers.ts'
import { Metrics } from './figures/metrics.ts'
import { RecentRequests } from './figures/recent-requests.ts'
import { traceRequests, tracer } from './figures/tracing.ts'
import { type BatchOptions, batchRunnerOf } from './http/batch-rows.ts'
import { answerClientError, cutOffIfNotTaken, setUpConnections } from './http/connection.ts'
import { Drain } from './http/drain.ts'
import { failureOf, isWorthRetrying, publicError } from './http/errors.ts'
import { DEFAULT_LIMITS, type Limits } from './http/limits.ts'
import { type Front, mountDialects } from './http/mount.ts'
import { openApiPage } from './http/openapi.ts'
import { checkOneHost, createOriginPolicy, type OriginPolicy, preflightHeaders } from './http/origin.ts'
import { mountOwn, type OwnRoute } from './http/own-routes.ts'
import { newTally, onRequestEnd, type RequestEnd, type RequestTally } from './http/request-end.ts'
import { AJV_OPTIONS, compileAhead, sharedValidators } from './http/validators.ts'
import { managementDialect } from './management/dialect.ts'
import type { Management } from './management/management.ts'
import { Feeds, streamRoutes } from './management/streams.ts'
import { type KnownMixtures, Mixtures } from './models/mixtures.ts'
import { isForWeb, mountWeb, ownWebFiles, type WebFiles } from './pages/dashboard.ts'
import { keysDialect } from './pages/keys-api.ts'
import { meRoute } from './pages/me.ts'
import { LIVENESS_PATH, systemRoutes } from './pages/system.ts'
import { observedModels } from './routing/observed.ts'
import { continuedTurnHeader } from './routing/turn-origin.ts'

export interface AppOptions extends BatchOptions {
  readonly models: ModelRegistry
  /** Absent: the models are fixed. */
  readonly admin?: ModelAdmin
  /** Absent: workers are not managed over HTTP. */
  readonly management?: Management
  /** Several apps may share it. Absent: the app has its own. */
  readonly metrics?: Metrics
  readonly rates?: RateLimits
  readonly shared?: Shared
  /** Empty: the server is open. `resolveAuth` decides. */
  readonly keys: readonly string[]
  /** Named keys, which may change at any time. */
  readonly keyRing?: NamedKeys | null
  /** Translation needs no key, for browser extensions that cannot send one. */
  readonly openTranslate?: boolean
  /** The address that will be listened on; loopback accepts loopback Host headers only. */
  readonly host: string
  readonly version: string
  readonly limits?: Partial<Limits>
  readonly allowedOrigins?: readonly string[]
  readonly allowedHosts?: readonly string[]
  /** Pass one to shut down gracefully with it. */
  readonly drain?: Drain
  /** Absent: silent. */
  readonly logger?: FastifyBaseLogger
  /** Called for every route as it is mounted, to check what must hold for all of them. */
  readonly onRoute?: (route: RouteOptions) => void
  /** Spans are created; `startTracing` decides where they go. */
  readonly isTraced?: boolean
  /** Opens the sealed caller that cluster members send. Absent: no member is trusted. */
  readonly seal?: CallerSeal
  /** Answers most requests in place of this app, by a cluster's nodes. */
  readonly front?: Front
  /** The models as one request may use them. Absent: the same for all. */
  readonly modelsFor?: (request: FastifyRequest, models: ModelRegistry) => ModelRegistry
  /** Routes besides the server's own. */
  readonly own?: readonly OwnRoute[]
  /** Mounts routes that are not in the OpenAPI page. */
  readonly mount?: (app: FastifyInstance) => void
}

/**
 * State that several apps in front of the same workers share: calls, which may be ended at another app, mixtures, and
 * memory for bodies.
 */
interface Shared {
  readonly live: LiveCalls
  readonly mixtures: KnownMixtures
  readonly bodies: BodyMemory
  readonly requests: RecentRequests
}

export function createShared(): Shared {
  const [live, bodies, requests] = [new LiveCalls(), new BodyMemory(), new RecentRequests()]
  return { live, mixtures: new Map(), bodies, requests }
}

export function buildApp(options: AppOptions): FastifyInstance {
  const { drain = new Drain(), version, host } = options
  const limits: Limits = { ...DEFAULT_LIMITS, ...options.limits }
  const metrics = options.metrics ?? new Metrics(options.models)
  const { shared = createShared() } = options
  const mixtures = new Mixtures(options.models, shared.mixtures)
  const { isTraced = false } = options
  const observersOf = (tally: RequestTally | null) => [metrics.observer(tally), ...(isTraced ? [tracer] : [])]
  const models = observedModels(mixtures.registry, observersOf(null))
  const { keyRing = null } = options
  const { management } = options
  const auth = createAuth(options.keys, keyRing)
  const ofWorkers = management === undefined ? null : managementDialect(management, shared.requests)
  const { logger } = options
  const rows = { models, limits, live: shared.live, logger }
  const batches = batchRunnerOf(options, rows)
  const dialects = [
    ...allDialects(limits, shared.live, batches),
    ...(keyRing === null ? [] : [keysDialect(keyRing, auth.isOpen)]),
    ...(ofWorkers === null ? [] : [ofWorkers]),
  ]
  const web = ownWebFiles()
  const { seal = null, front = null } = options
  const { allowedOrigins = [], allowedHosts = [] } = options
  const origins = createOriginPolicy({ host, allowedOrigins, allowedHosts })
  const gate = createGate(auth, origins, web, seal)
  const respond = createResponder(dialects[0]!, metrics, limits, drain)

  const app = openApp(options, limits, shared, gate, respond)
  if (options.metrics === undefined) app.addHook('onClose', async () => metrics.dispose())
  parseJsonBodies(app, limits, auth, front !== null)
  const { report } = respond
  const isTranslateOpen = options.openTranslate === true
  const admin = options.admin === undefined ? null : mixtures.admin(options.admin)
  const { rates = new RateLimits() } = options
  const modelsFor = (request: FastifyRequest, principal: Principal, reply: FastifyReply) => {
    const reached = options.modelsFor?.(request, mixtures.registry) ?? mixtures.registry
    const observers = [...rates.observers(principal), ...observersOf(request.tally)]
    return observedModels(reached, [...observers, continuedTurnHeader(reply)])
  }
  const context = {
    ...{ modelsFor, admin, limits, drain, auth, isTranslateOpen, report, rates, front, models: options.models },
    fetcher: management?.fetcher ?? null,
  }
  mountDialects(app, dialects, context)
  const openApi = () => openApiPage(dialects, own, version)
  const own: OwnRoute[] = [
    ...systemRoutes({ models, metrics, drain, version, openApi }),
    meRoute({ models, rates }),
    ...(options.own ?? []),
  ]
  if (management !== undefined && ofWorkers !== null) {
    const feeds = new Feeds(auth, limits)
    own.push(...streamRoutes(management, ofWorkers, feeds))
    app.addHook('preClose', async () => feeds.end())
    app.addHook('onClose', async () => management.close())
  }
  mountOwn(app, own)
  mountWeb(app, web)
  options.mount?.(app)
  if (batches !== null) {
    app.addHook('onReady', async () => batches.start())
    app.addHook('preClose', () => batches.stop())
  }
  return app
}

type Responder = ReturnType<typeof createResponder>

/** The app before its routes: what happens to every connection and request. */
function openApp(options: AppOptions, limits: Limits, { bodies, requests }: Shared, gate: Gate, respond: Responder) {
  const app = createFastify(options, limits, (error, request, reply) => {
    // A path that cannot be routed has not run any hook yet.
    try {
      if (!gate(request, reply)) respond.send(error, request, reply)
    } catch (denied) {
      respond.send(denied, request, reply)
    }
  })
  if (options.isTraced === true) traceRequests(app)
  if (options.onRoute !== undefined) app.addHook('onRoute', options.onRoute)
  for (const name of ['principal', 'member', 'entry', 'tally']) app.decorateRequest(name, null)
  setUpConnections(app)
  app.addHook('onRequest', async (request, reply) => {
    request.tally = newTally()
    if (gate(request, reply)) return reply
    return undefined
  })
  app.addHook('onSend', async (_request, { raw }) => cutOffIfNotTaken(raw, limits.streamStallMs))
  onRequestEnd(app, (request, reply, end) => {
    logEnd(request, reply, end)
    requests.add(request, reply, end)
  })
  holdBodies(app, bodies, limits)
  app.addHook('onListen', (done) => {
    compileAhead()
    done()
  })
  app.setErrorHandler((thrown, request, reply) => respond.send(thrown, request, reply))
  app.setNotFoundHandler(({ method, url }) => {
    throw new SkeinError('not_found', noRoute(app, method, url.replace(/\?.*/, '')))
  })
  app.setSchemaErrorFormatter((complaints) => describeInvalid(complaints))
  return app
}

/** Replies that belong to no dialect have the shapes of the first one. */
export function allDialects(
  limits: Limits,
  live = new LiveCalls(),
  batches: BatchService | null = null,
): readonly Dialect[] {
  // All dialects share their live calls, so that any route can end a call.
  return [
    openAiDialect(limits, live),
    sessionsDialect(),
    lightningDialect(limits, live),
    translateDialect(limits),
    inferDialect(limits, live),
    runnerDialect(),
    ollamaDialect(limits, live),
    anthropicDialect(limits, live),
    responsesDialect(limits, live),
    llamaDialect(limits),
    ai00Dialect(limits, live),
    batchesDialect(limits, batches),
  ]
}

type Respond = (thrown: unknown, request: FastifyRequest, reply: FastifyReply) => void

function createFastify({ logger }: AppOptions, limits: Limits, onBadPath: Respond): FastifyInstance {
  return fastify({
    ...(logger === undefined ? {} : { loggerInstance: logger }),
    logController: new LogController({ disableRequestLogging: true }),
    genReqId: requestId,
    bodyLimit: limits.bodyBytes,
    routerOptions: { maxParamLength: limits.paramLength },
    requestTimeout: limits.bodyTimeoutMs,
    http: {
      maxHeaderSize: limits.headerBytes,
      // A socket reports room only after it has reported being full, so its threshold is that of the streams.
      highWaterMark: limits.streamBufferBytes,
      headersTimeout: limits.headersTimeoutMs,
      connectionsCheckingInterval: 1000,
    },
    clientErrorHandler: answerClientError,
    frameworkErrors: onBadPath,
    schemaController: { compilersFactory: { buildValidator: sharedValidators } },
    ajv: AJV_OPTIONS,
  })
}

/** What the router takes as it is: it reads others as patterns, throws for some of them, and takes long for long ones. */
const PLAIN_PATH = /^[\w./-]{1,200}$/

/** Why there is no route: another method, an end or a "/v1" too many, or a plural. */
function noRoute(app: FastifyInstance, method: string, path: string): string {
  const methodsOf = (url: string) =>
    PLAIN_PATH.test(url) ? ['GET', 'POST', 'DELETE'].filter((any) => app.hasRoute({ method: any, url })) : []
  const others = methodsOf(path)
  if (others.length > 0)
    return `no such route for ${method}; this path takes ${others.join(' and ')}; GET /openapi.json lists them`
  const near = [path.replace(/\/$/, ''), path.replace(/^\/v1(?=\/v1\/)/, ''), `${path}s`]
  const meant = near.find((other) => methodsOf(other).length > 0)
  return `no such route; ${meant === undefined ? '' : `did you mean ${meant}? `}GET /openapi.json lists them`
}

/** The client's own id if it is safe to log and echo, else 128 random bits. */
function requestId(request: IncomingMessage): string {
  const own = request.headers['x-request-id']
  if (typeof own === 'string' && /^[A-Za-z0-9._-]{1,128}$/.test(own)) return own
  return randomUUID()
}

/** Throws for a refused request. Returns true if the request has been answered here (a preflight). */
type Gate = (request: FastifyRequest, reply: FastifyReply) => boolean

/**
 * Denies by default. It looks only at headers and the raw path, so no spelling of a path gets around it. The one
 * exception is a route that takes its key from the body: `mount.ts` checks it once the body is there.
 */
function createGate(auth: Auth, origins: OriginPolicy, web: WebFiles, seal: CallerSeal | null): Gate {
  return (request, reply) => {
    const { id, raw, headers, method } = request
    reply.header('x-request-id', id)
    checkOneHost(raw)
    const isForFile = isForWeb(web, method, raw.url)
    origins.check(headers, isForFile)
    reply.headers(origins.corsHeaders(headers))
    const isPreflight = method === 'OPTIONS' && headers['access-control-request-method']
    if (isPreflight && headers.origin !== undefined) {
      reply.headers(preflightHeaders(headers)).code(204).send()
      return true
    }
    const isLiveness = raw.url === LIVENESS_PATH && (method === 'GET' || method === 'HEAD')
    if (isLiveness || isForFile) return false
    const { access, role, dialect, isForMembers } = request.routeOptions.config ?? {}
    const sealed = headers[CALLER_HEADER]
    // A path that cannot be routed arrives here with nothing set.
    request.member = seal !== null && typeof sealed === 'string' ? seal.open(sealed) : null
    if (isForMembers === true) {
      // No user's key opens it, whatever its role, not even one that a member forwards.
      if (request.member?.principal === null) return false
      throw new SkeinError('forbidden', 'this is for members of the cluster only')
    }
    if (request.member !== null && request.member.principal !== null) {
      request.principal = request.member.principal
      checkRole(request.principal, role)
      return false
    }
    try {
      request.principal = auth.check(authorizationOf(headers, dialect?.keyHeaders))
    } catch (denied) {
      if (access === undefined) throw denied
      return false
    }
    checkRole(request.principal, role)
    return false
  }
}

function createResponder(fallback: Dialect, metrics: Metrics, limits: Limits, drain: Drain) {
  const report = (thrown: unknown, request: FastifyRequest): SkeinError => {
    const { error } = failureOf(thrown, request.routeOptions.bodyLimit)
    metrics.countError(error.code)
    // A path that cannot be routed has run no hook, so it has no tally.
    if (request.tally) request.tally.errorCode = error.code
    // Callers who may load a model see why it could not be loaded.
    const isOperators = request.routeOptions.config?.role !== undefined
    const shown = publicError(error, request.id, isOperators)
    const isOurs = error.status >= 500 && error.code !== 'model_not_loaded'
    if (isOurs || shown !== error) request.log.error({ err: error }, 'request failed')
    else request.log.info({ code: error.code, param: error.param }, 'request refused')
    return shown
  }
  const send: Respond = (thrown, request, reply) => {
    const shown = report(thrown, request)
    const { retryAfterSeconds = limits.retryAfterSeconds } = shown
    if (isWorthRetrying(shown)) reply.header('retry-after', String(retryAfterSeconds))
    // OpenAI's clients retry every 409 and 5xx, even for calls that were cancelled or too late.
    if (shown.code === 'conflict' || shown.code === 'deadline_exceeded') reply.header('x-should-retry', 'false')
    if (shown.code === 'unauthorized') reply.header('www-authenticate', 'Bearer')
    const dialect = request.entry?.dialect ?? request.routeOptions.config?.dialect ?? fallback
    const { error, status } = failureOf(thrown, request.routeOptions.bodyLimit)
    if (request.member) reply.headers(headersForMember(error, drain))
    const wireStatus = error.code === 'misdirected' ? status : dialect.statusOf?.(error)
    reply.code(wireStatus ?? status).send(dialect.renderError(shown))
  }
  return { report, send }
}

/** What a front gateway needs to know of an error, in any dialect. */
function headersForMember({ code, location }: SkeinError, drain: Drain): Record<string, string> {
  return {
    [CODE_HEADER]: code,
    ...(location === undefined ? {} : { [OWNER_HEADER]: location }),
    ...(drain.isDraining ? { [DRAINING_HEADER]: '1' } : {}),
  }
}

/**
 * Logs the route's pattern, not the path: a log line holds nothing that a client wrote, except a checked request id.
 */
function logEnd(request: FastifyRequest, reply: FastifyReply, end: RequestEnd): void {
  request.log.info(
    {
      method: request.method,
      route: request.routeOptions.url ?? null,
      status: end.status,
      key: request.principal?.name ?? null,
      ms: Math.round(reply.elapsedTime),
      ...(end.isCutOff ? { cutOff: true } : {}),
    },
    'request',
  )
}
