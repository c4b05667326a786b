/**
 * A node's part of a cluster: it believes what members seal, takes sessions from other nodes, and lets its own go when one of
 * them asks. The routes are for members alone.
 */
import type { FastifyInstance, FastifyRequest } from 'fastify'
import type { ModelRegistry } from '../../api/models.ts'
import type { EngineClient } from '../../engine/client.ts'
import type { SessionRef } from '../../engine/messages.ts'
import { ERROR_STATUS, type ErrorCode, SkeinError } from '../../errors.ts'
import { CALLER_HEADER, type CallerSeal } from '../access/caller-seal.ts'
import { Forwarder, NotAnswered, shortBody } from './forward.ts'
import { CODE_HEADER } from './headers.ts'
import { type LetGo, takingModels } from './taking.ts'

const RELEASE_PATH = '/cluster/release'

interface ReleaseBody {
  readonly model: string
  readonly sessions: readonly SessionRef[]
}

export interface ClusterNodeOptions {
  readonly seal: CallerSeal
  /** Engines of a model's workers here, also of those that are ending. */
  readonly enginesOf: (model: string) => readonly EngineClient[]
}

export class ClusterNode {
  readonly #options: ClusterNodeOptions
  readonly #forwarder = new Forwarder()

  constructor(options: ClusterNodeOptions) {
    this.#options = options
  }

  /** A client that came here by itself knows no other node, so this one takes what it asks for. */
  modelsFor({ member }: FastifyRequest, models: ModelRegistry): ModelRegistry {
    return member === null || member.mayTake ? takingModels(models, this.#letGo) : models
  }

  mount(app: FastifyInstance): void {
    // Also while it drains: its sessions are to go.
    app.post<{ Body: ReleaseBody }>(
      RELEASE_PATH,
      { config: { isForMembers: true } },
      async ({ body: { model, sessions } }) => {
        for (const session of sessions) await this.#release(model, session)
        return { released: sessions.length }
      },
    )
  }

  close(): void {
    this.#forwarder.close()
  }

  /** At every worker: which one has it the node's own router may have forgotten, and the others have nothing to let go. */
  async #release(model: string, session: SessionRef): Promise<void> {
    const engines = this.#options.enginesOf(model)
    await Promise.all(engines.map((engine) => engine.call('sessions.release', session)))
  }

  readonly #letGo: LetGo = async (location, model, sessions) => {
    const { seal } = this.#options
    const body: ReleaseBody = { model, sessions }
    const message = await this.#forwarder
      .send(location, {
        method: 'POST',
        path: RELEASE_PATH,
        headers: {
          'content-type': 'application/json',
          [CALLER_HEADER]: seal.seal({ principal: null, mayTake: false }),
        },
        body: Buffer.from(JSON.stringify(body)),
      })
      .catch((error: unknown) => {
        const reason = error instanceof NotAnswered ? error.message : String(error)
        throw new SkeinError(
          'model_not_loaded',
          `the node at ${location} has the session and cannot be reached: ${reason}`,
        )
      })
    const text = (await shortBody(message)).toString()
    if ((message.statusCode ?? 500) < 300) return
    const code = message.headers[CODE_HEADER]
    throw new SkeinError(
      isCode(code) ? code : 'model_not_loaded',
      `the node at ${location} has the session and does not let it go: ${text.slice(0, 500)}`,
    )
  }
}

function isCode(code: unknown): code is ErrorCode {
  return typeof code === 'string' && code in ERROR_STATUS
}
