/**
 * A node's part of a cluster: it trusts members' seals, takes sessions over from other nodes, and releases its own when
 * a node asks. Only members may call these routes.
 */
import { request as ask, type IncomingMessage } from 'node:http'
import type { FastifyInstance, FastifyRequest } from 'fastify'
import type { ModelRegistry } from '../../api/models.ts'
import { CALLER_HEADER } from '../../cluster/member-seal.ts'
import { STATES_PATH, stateSocketOf } from '../../cluster/state-socket.ts'
import type { EngineClient } from '../../engine/client.ts'
import type { SessionRef } from '../../engine/messages.ts'
import { isErrorCode, SkeinError } from '../../errors.ts'
import type { CallerSeal } from '../access/caller-seal.ts'
import { withTurnOrigin } from '../routing/turn-origin.ts'
import { Forwarder, NotAnswered, shortBody } from './forward.ts'
import { CODE_HEADER } from './headers.ts'
import { type LetGo, takingModels } from './taking.ts'

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
    const taking = member === null || member.mayTake ? takingModels(models, this.#letGo) : models
    return member?.origin === undefined ? taking : withTurnOrigin(taking, member.origin)
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
      headers: {
        'content-type': 'application/json',
        [CALLER_HEADER]: seal.seal({ principal: null, mayTake: false }),
      },
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
