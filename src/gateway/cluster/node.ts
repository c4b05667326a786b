/**
 * A node's part of a cluster: it trusts members' seals, takes sessions over from other nodes, and releases its own when
 * a node asks. Only members may call these routes.
 */
import { request as ask, type IncomingMessage } from 'node:http'
import { setTimeout as delay } from 'node:timers/promises'
import type { FastifyInstance, FastifyRequest } from 'fastify'
import type { ModelRegistry, ServedModel } from '../../api/models.ts'
import { CALLER_HEADER } from '../../cluster/member-seal.ts'
import { STATES_PATH, stateSocketOf } from '../../cluster/state-socket.ts'
import type { EngineClient } from '../../engine/client.ts'
import type { EngineCalls, SessionRef } from '../../engine/messages.ts'
import { isErrorCode, SkeinError } from '../../errors.ts'
import type { CallerSeal } from '../access/caller-seal.ts'
import { withTurnOrigin } from '../routing/turn-origin.ts'
import { changedModels, wrapClient } from '../routing/wrap-client.ts'
import { Forwarder, NotAnswered, shortBody } from './forward.ts'
import { CODE_HEADER } from './headers.ts'

const RELEASE_PATH = '/cluster/release'
/**
 * Timeout of a release. A node that does not answer is asked again, or has lost its lease, and its sessions, by then.
 */
const LET_GO_MS = 5000

interface ReleaseBody {
  readonly model: string
  readonly sessions: readonly SessionRef[]
}

interface ClusterNodeOptions {
  readonly seal: CallerSeal
  /** Engines of a model's workers here, including workers that are ending. */
  readonly enginesOf: (model: string) => readonly EngineClient[]
}

export class ClusterNode {
  readonly #options: ClusterNodeOptions
  readonly #forwarder = new Forwarder()

  constructor(options: ClusterNodeOptions) {
    this.#options = options
  }

  /** A client that called this node directly knows no other, so this node takes over the sessions it asks for. */
  modelsFor({ member }: FastifyRequest, models: ModelRegistry): ModelRegistry {
    const isTaking = member === null || member.mayTake
    const own = isTaking ? changedModels(models, (model) => taking(model, this.#letGo)) : models
    return member?.origin === undefined ? own : withTurnOrigin(own, member.origin)
  }

  mount(app: FastifyInstance): void {
    // Answers also while it drains, because its sessions must move away.
    app.post<{ Body: ReleaseBody }>(
      RELEASE_PATH,
      { config: { isForMembers: true } },
      async ({ body: { model, sessions } }) => {
        for (const session of sessions) await this.#release(model, session)
        return { released: sessions.length }
      },
    )
    app.get<{ Params: { worker: string; key: string } }>(
      `${STATES_PATH}/:worker/:key`,
      { config: { isForMembers: true }, exposeHeadRoute: false },
      async ({ params, headers }, reply) => {
        const offer = await offerOf(params, headers[CALLER_HEADER])
        reply.code(offer.statusCode ?? 502)
        const length = offer.headers['content-length']
        if (length !== undefined) reply.header('content-length', length)
        return reply.type('application/octet-stream').send(offer)
      },
    )
  }

  close(): void {
    this.#forwarder.close()
  }

  /** Releases at every worker, because the node's router may have forgotten which one has the session. */
  async #release(model: string, session: SessionRef): Promise<void> {
    const engines = this.#options.enginesOf(model)
    await Promise.all(engines.map((engine) => engine.call('sessions.release', session)))
  }

  readonly #letGo: LetGo = async (location, model, sessions) => {
    const { seal } = this.#options
    const body: ReleaseBody = { model, sessions }
    const signal = AbortSignal.timeout(LET_GO_MS)
    const outgoing = {
      method: 'POST',
      path: RELEASE_PATH,
      headers: { 'content-type': 'application/json', [CALLER_HEADER]: seal.seal({ principal: null, mayTake: false }) },
      body: Buffer.from(JSON.stringify(body)),
    }
    const [message, text] = await this.#forwarder
      .send(location, outgoing, signal)
      .then(async (message) => [message, String(await shortBody(message))] as const)
      .catch((error: unknown) => {
        const reason = error instanceof NotAnswered ? error.message : String(error)
        throw new SkeinError(
          'model_not_loaded',
          `the node at ${location} has the session and cannot be reached: ${reason}`,
        )
      })
    if ((message.statusCode ?? 500) < 300) return
    const code = message.headers[CODE_HEADER]
    throw new SkeinError(
      isErrorCode(code) ? code : 'model_not_loaded',
      `the node at ${location} has the session and does not let it go: ${text.slice(0, 500)}`,
    )
  }
}

/** Gets the state from the worker on this machine that offers it; a worker without it answers so itself. */
function offerOf(
  { worker, key }: { readonly worker: string; readonly key: string },
  caller: string | string[] | undefined,
): Promise<IncomingMessage> {
  return new Promise((resolve, reject) => {
    const socketPath = stateSocketOf(worker)
    const path = `/${encodeURIComponent(key)}`
    // Members identify themselves by one header.
    ask({ socketPath, path, headers: { [CALLER_HEADER]: String(caller) } })
      .once('response', resolve)
      .once('error', () => {
        reject(new SkeinError('not_found', `worker ${worker} offers no states here`))
      })
      .end()
  })
}

/** Asks the node at `location` to release sessions of a model. Rejects with conflict while one is in use. */
type LetGo = (location: string, model: string, sessions: readonly SessionRef[]) => Promise<void>

/** Longer than a lease: a node that does not answer has lost its sessions by then. */
const MAX_WAIT_MS = 15_000
/** Each try queries the database twice, so pauses grow: after a rack has failed, many requests wait for its leases. */
const MIN_PAUSE_MS = 50
const MAX_PAUSE_MS = 500
const PAUSE_SHARE = 0.2
/** Time after which a session that stays in use elsewhere is refused. */
const MAX_BUSY_MS = 60_000

/** Pause before the next try. */
export function pauseAfter(waitedMs: number): number {
  return Math.min(MAX_PAUSE_MS, Math.max(MIN_PAUSE_MS, PAUSE_SHARE * waitedMs))
}

/**
 * Takes sessions over from other nodes: if a request needs a session of another node, this node asks that one to
 * release it, and then owns it. Requests from gateways are told where the session is instead, unless they say that this
 * node should take it.
 */
function taking(model: ServedModel, letGo: LetGo): ServedModel {
  const { client, id } = model
  const generate: EngineClient['generate'] = (request, signal) => {
    const { session, tenant = '' } = request
    if (session === undefined) return client.generate(request, signal)
    const move = new Taking(id, letGo, [{ tenant, id: session.id }], signal, session.ifBusy)
    return (async function* () {
      for (;;) {
        let hasBegun = false
        try {
          for await (const event of client.generate(request, signal)) {
            hasBegun = true
            yield event
          }
          return
        } catch (thrown) {
          if (hasBegun) throw thrown
          await move.after(thrown)
        }
      }
    })()
  }
  const call: EngineClient['call'] = async (method, params) => {
    const move = new Taking(id, letGo, sessionsOf(params))
    for (;;) {
      try {
        return await client.call(method, params)
      } catch (thrown) {
        await move.after(thrown)
      }
    }
  }
  return wrapClient(model, { generate, call })
}

/** The sessions that a call is about; a fork has two. */
function sessionsOf(params: EngineCalls[keyof EngineCalls]['params']): SessionRef[] {
  const { tenant, id, newId } = params as Partial<SessionRef> & { readonly newId?: unknown }
  if (tenant === undefined || id === undefined) return []
  return [id, newId].flatMap((one) => (typeof one === 'string' ? [{ tenant, id: one }] : []))
}

/** The tries of one request to get its session here. */
class Taking {
  readonly #model: string
  readonly #letGo: LetGo
  readonly #sessions: readonly SessionRef[]
  readonly #signal: AbortSignal | undefined
  readonly #ifBusy: 'wait' | 'conflict'
  readonly #begun = performance.now()
  #numLetGo = 0

  constructor(
    model: string,
    letGo: LetGo,
    sessions: readonly SessionRef[],
    signal?: AbortSignal,
    ifBusy: 'wait' | 'conflict' = 'wait',
  ) {
    // "model@state" is the same model with another start state.
    this.#model = model.split('@')[0] ?? model
    this.#letGo = letGo
    this.#sessions = sessions
    this.#signal = signal
    this.#ifBusy = ifBusy
  }

  /** Resolves when the next try may succeed; rejects with the client's error. */
  async after(thrown: unknown): Promise<void> {
    const error = SkeinError.from(thrown)
    if (error.code !== 'misdirected' || error.location === undefined) throw thrown
    try {
      await this.#letGo(error.location, this.#model, this.#sessions)
    } catch (refusal) {
      const { code } = SkeinError.from(refusal)
      const isBusy = code === 'conflict'
      if (isBusy && this.#ifBusy === 'conflict') throw refusal
      // An unreachable node loses its lease, and with it the session.
      if (this.#waitedMs > (isBusy ? MAX_BUSY_MS : MAX_WAIT_MS)) throw refusal
      await this.#pause()
      return
    }
    if (this.#waitedMs > MAX_BUSY_MS) throw thrown
    // Another node took the session first.
    if (this.#numLetGo++ > 0) await this.#pause()
  }

  get #waitedMs(): number {
    return performance.now() - this.#begun
  }

  async #pause(): Promise<void> {
    const signal = this.#signal
    const ms = pauseAfter(this.#waitedMs)
    await delay(ms, undefined, signal === undefined ? {} : { signal }).catch(() => {})
    if (signal?.aborted === true) throw new SkeinError('aborted', 'the request was cancelled')
  }
}
