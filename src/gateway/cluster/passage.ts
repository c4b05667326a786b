/**
 * Forwards one request through a cluster's gateway: to a node, to the next one if that has no answer, and the answer
 * back.
 */
import type { IncomingMessage } from 'node:http'
import type { FastifyReply, FastifyRequest } from 'fastify'
import type { ModelRegistry } from '../../api/models.ts'
import type { Dialect, Route } from '../../api/route.ts'
import { CALLER_HEADER } from '../../cluster/member-seal.ts'
import { SkeinError } from '../../errors.ts'
import type { CallerSeal } from '../access/caller-seal.ts'
import type { ClusterInfo } from '../contract.ts'
import type { Drain } from '../http/drain.ts'
import { type Forwarder, headersToNode, NotAnswered, type Outgoing, shortBody } from './forward.ts'
import { bytesOf, callerOf, endCutStream, giveBack } from './give-back.ts'
import { CODE_HEADER, DRAINING_HEADER, OWNER_HEADER } from './headers.ts'
import { type Nodes, watchNode } from './nodes.ts'
import { type Failure, RequestRoute, type SessionOwners, type Step } from './route.ts'
import { type Asked, askedOf, modelNamed, wayOf } from './where.ts'

export interface FrontOptions {
  readonly nodes: () => Nodes
  readonly models: ModelRegistry
  readonly seal: CallerSeal
  readonly drain: Drain
  /** Headers of any dialect that may hold a key. */
  readonly keyHeaders: readonly string[]
  /** Looks up in the database which node has a session. */
  readonly ownerOf: (model: string, tenant: string, session: string) => Promise<string | null>
}

/** Counts of request outcomes; monotonic. */
export type FrontCounts = { -readonly [K in keyof ClusterInfo['requests']]: number }

/** Statuses that make the gateway try another node; the answer is returned if no node gives a better one. */
const PASSED_BY = [421, 429, 503]
/** The same for a start state or mixture that this gateway does not know, because another node may. */
const UNSURE = [...PASSED_BY, 404]

/** An answer to be returned if no other node has a better one. */
interface Refusal {
  readonly status: number
  readonly headers: IncomingMessage['headers']
  readonly body: Buffer
}

interface Exchange {
  readonly request: FastifyRequest
  readonly reply: FastifyReply
  readonly dialect: Dialect
  readonly signal: AbortSignal
}

type Asking = Pick<Step, 'mayTake'> & { readonly node: Pick<Step['node'], 'id' | 'url'> }

export class Passage {
  readonly #options: FrontOptions
  readonly #forwarder: Forwarder
  readonly #owners: SessionOwners
  readonly #counts: FrontCounts
  readonly #exchange: Exchange

  constructor(
    options: FrontOptions,
    forwarder: Forwarder,
    owners: SessionOwners,
    counts: FrontCounts,
    exchange: Exchange,
  ) {
    this.#options = options
    this.#forwarder = forwarder
    this.#owners = owners
    this.#counts = counts
    this.#exchange = exchange
  }

  async run(route: Route): Promise<unknown> {
    const { request } = this.#exchange
    // A route's path has only named parameters, which are strings.
    const params = request.params as Record<string, string>
    const query = request.query as Record<string, unknown>
    const asked = askedOf(request.body, params, query, route.path)
    const way = wayOf(route)
    if (way === 'operators') throw aboutOneNode(route)
    this.#counts.forwarded++
    if (way === 'every' && asked.session === null) return this.#askEvery()
    if (way === 'any') return this.#askAny()
    return this.#askOne(asked)
  }

  async #askOne(asked: Asked): Promise<unknown> {
    const { nodes, ownerOf } = this.#options
    const { tenant } = callerOf(this.#exchange.request)
    const { id: model, isSure } = modelNamed(this.#options.models, asked.model)
    const session = asked.session === null ? null : `${model}\0${tenant}\0${asked.session}`
    const isKnown = session === null || this.#owners.get(session) !== null
    // Without the database this is a guess; a node that lacks the session says where it is.
    const stored = isKnown ? null : await ownerOf(model, tenant, asked.session!).catch(() => null)
    const prefix = `${tenant}\0${model}\0${asked.beginning}`
    const route = new RequestRoute(nodes(), this.#owners, { model, session, prefix }, stored)
    let last: Refusal | null = null
    for (let step = route.next(); step !== null; step = route.next()) {
      const answer = await this.#try(step, session !== null, isSure ? PASSED_BY : UNSURE)
      if (!('failure' in answer)) {
        route.answered(step)
        return this.#giveBack(answer.message, step)
      }
      route.failed(step, answer.failure)
      last = answer.refusal ?? last
      if (answer.failure.kind === 'misdirected') this.#counts.misdirected++
      else this.#counts.retried++
    }
    return this.#sendRefusal(last, model)
  }

  /** `isInSession`: a lost request may have been carried out. */
  async #try(
    step: Asking,
    isInSession: boolean,
    passedBy: readonly number[] = PASSED_BY,
  ): Promise<{ readonly message: IncomingMessage } | { readonly failure: Failure; readonly refusal: Refusal | null }> {
    const nodes = this.#options.nodes()
    const { request } = this.#exchange
    const { id, url } = step.node
    let message: IncomingMessage
    const watched = watchNode(this.#options.nodes, id, this.#exchange.signal)
    try {
      message = await this.#forwarder.send(
        url,
        { ...this.#outgoing(step), isAlone: !this.#mayRepeat(isInSession) },
        watched.signal,
      )
    } catch (thrown) {
      watched.end()
      const { signal } = this.#exchange
      if (signal.aborted) throw signal.reason
      const isUnseen = thrown instanceof NotAnswered && thrown.isUnseen
      if (!isUnseen && !this.#mayRepeat(isInSession)) throw lost(id, request)
      return { failure: { kind: 'unavailable' }, refusal: null }
    }
    // The node is watched until its answer is complete.
    message.once('close', () => watched.end())
    const isRefusal = passedBy.includes(message.statusCode ?? 0)
    if (!isRefusal || message.headers[CODE_HEADER] === 'rate_limited') {
      nodes.welcome(id)
      return { message }
    }
    const refusal = await refusalOf(message)
    return { failure: failureOf(refusal, nodes), refusal }
  }

  /**
   * Whether a lost request may be sent again. Its turn may have been saved, and repeating it would duplicate the turn.
   * A stream begins before its turn ends, so if none has begun, no turn has ended.
   */
  #mayRepeat(isInSession: boolean): boolean {
    const body = this.#exchange.request.body as { readonly stream?: unknown } | null | undefined
    return !isInSession || body?.stream === true
  }

  #outgoing({ mayTake }: Pick<Step, 'mayTake'>): Outgoing {
    const { request } = this.#exchange
    const { raw, id, headers } = request
    const { seal, keyHeaders } = this.#options
    const principal = callerOf(request)
    // The gateway counts requests; nodes count tokens and rows.
    const limits = { ...principal.limits, requestsPerMinute: null }
    return {
      method: request.method,
      path: raw.url ?? '/',
      headers: {
        ...headersToNode(headers, keyHeaders),
        'x-request-id': id,
        [CALLER_HEADER]: seal.seal({ principal: { ...principal, limits }, mayTake }),
      },
      body: bytesOf(request),
    }
  }

  async #giveBack(message: IncomingMessage, { node }: Asking): Promise<unknown> {
    const { reply, signal, dialect } = this.#exchange
    try {
      return await giveBack(message, node.id, reply)
    } catch {
      if (signal.aborted || reply.raw.destroyed) return reply
      this.#counts.lost++
      endCutStream(reply, dialect, node.id, message.headers['content-type'])
      return reply
    }
  }

  /** For requests that any node can answer: the first node that accepts. */
  async #askAny(): Promise<unknown> {
    const isChange = this.#exchange.request.method !== 'GET'
    let last: Refusal | null = null
    for (const node of this.#options.nodes().any()) {
      const step = { node, mayTake: false }
      const answer = await this.#try(step, isChange)
      if (!('failure' in answer)) return this.#giveBack(answer.message, step)
      if (answer.failure.kind === 'unavailable') this.#options.nodes().avoid(node.id)
      last = answer.refusal ?? last
      this.#counts.retried++
    }
    return this.#sendRefusal(last, null)
  }

  /** For something that only one node knows, with no telling which: the first node that knows it answers. */
  async #askEvery(): Promise<unknown> {
    const { nodes } = this.#options
    let last: Refusal | null = null
    for (const [id, url] of nodes().urls) {
      const sent = this.#forwarder.send(url, this.#outgoing({ mayTake: false }), this.#exchange.signal)
      const message = await sent.catch(() => null)
      if (message === null) continue
      const { statusCode = 500 } = message
      if (statusCode < 400) return giveBack(message, id, this.#exchange.reply)
      last = await refusalOf(message)
    }
    return this.#sendRefusal(last, null)
  }

  /** The last one, where there is one. `model`: what was asked of the nodes. */
  #sendRefusal(last: Refusal | null, model: string | null): unknown {
    if (last === null) throw nobody(model)
    const { status, headers, body } = last
    const { reply } = this.#exchange
    for (const name of ['content-type', 'retry-after'])
      if (headers[name] !== undefined) reply.header(name, headers[name])
    // A client knows only one address, so it cannot follow the redirection.
    return reply.code(status === 421 ? 503 : status).send(body)
  }
}

function failureOf({ status, headers }: Refusal, nodes: Nodes): Failure {
  if (status === 421) {
    const owner = headers[OWNER_HEADER]
    const found = [...nodes.urls].find(([, url]) => url === owner)
    return { kind: 'misdirected', owner: found?.[0] ?? null }
  }
  // A closing server refuses before its own routes are called.
  const isLeaving = headers[CODE_HEADER] === undefined || headers[DRAINING_HEADER] !== undefined
  return { kind: isLeaving ? 'unavailable' : 'refused' }
}

async function refusalOf(message: IncomingMessage): Promise<Refusal> {
  const body = await shortBody(message)
  return { status: message.statusCode ?? 502, headers: message.headers, body }
}

function nobody(model: string | null): SkeinError {
  const what = model === null ? 'a request' : `model ${model}`
  return new SkeinError('model_not_loaded', `no node of the cluster takes ${what} just now; retry`)
}

/** What was lost, by the start of its path; else a session. */
function lost(node: string, { url }: FastifyRequest): SkeinError {
  const where = /^\/v1\/(?:files|batches)/.exec(url)?.[0] ?? '/v1/sessions/ID'
  const message = `node ${node} ended before it answered, and may have done it: look at GET ${where} before you send it again`
  return new SkeinError('model_not_loaded', message)
}

function aboutOneNode({ path }: Route): SkeinError {
  const message = `this changes one node: send it to /api/cluster/nodes/NODE/proxy${path}; GET /api/cluster lists the nodes`
  return new SkeinError('unsupported_parameter', message)
}
