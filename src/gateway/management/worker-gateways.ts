/**
 * Gateways to single workers. Each speaks every dialect and has its worker as the only model. It is reached through the
 * management API, which hands raw requests over so that streams stay streams, and, if the worker was given a port,
 * through a listener. Both end with the worker.
 */
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { FastifyInstance } from 'fastify'
import type { FleetWorker } from '../fleet/fleet-worker.ts'
import { listenError, urlOf } from '../http/connection.ts'

/** Makes a gateway to one worker, for requests to an address. */
export type OpenGateway = (worker: FleetWorker, host: string) => FastifyInstance

interface Listening {
  readonly app: FastifyInstance
  /** Where it listens; null if it does not. */
  readonly url: string | null
}

export class WorkerGateways {
  readonly #open: OpenGateway
  /** Address of the server itself. */
  readonly #host: string
  readonly #handedOver = new Map<string, Promise<FastifyInstance>>()
  readonly #listening = new Map<string, Listening>()
  readonly #closing = new Map<string, Promise<void>>()

  constructor(open: OpenGateway, host: string) {
    this.#open = open
    this.#host = host
  }

  /** URL of a worker's own port; null without one. */
  urlOf(worker: FleetWorker): string | null {
    return this.#listening.get(worker.id)?.url ?? null
  }

  /** Lets the worker's gateway answer a request for `url`. The body must be unread. */
  async pass(worker: FleetWorker, url: string, request: IncomingMessage, response: ServerResponse): Promise<void> {
    const app = await this.#handOver(worker)
    request.url = url
    app.routing(request, response)
  }

  /** Listens if the worker was given a port. Throws conflict if it is in use. */
  async listen(worker: FleetWorker): Promise<void> {
    const { host, port } = worker.launch.spec
    if (port === null || this.#listening.has(worker.id)) return
    const app = this.#open(worker, host)
    try {
      await app.listen({ host, port })
    } catch (thrown) {
      await app.close()
      throw listenError(thrown, host, port)
    }
    this.#listening.set(worker.id, { app, url: urlOf(app, host) })
  }

  /** Resolves when the worker's port is free again. */
  close(workerId: string): Promise<void> {
    const closing = this.#closing.get(workerId) ?? this.#close(workerId)
    this.#closing.set(workerId, closing)
    return closing.finally(() => this.#closing.delete(workerId))
  }

  async #close(workerId: string): Promise<void> {
    const listening = this.#listening.get(workerId)
    const handedOver = this.#handedOver.get(workerId)
    this.#listening.delete(workerId)
    this.#handedOver.delete(workerId)
    await Promise.all([listening && shut(listening.app), handedOver?.then((app) => app.close())])
  }

  async closeAll(): Promise<void> {
    const ids = new Set([...this.#listening.keys(), ...this.#handedOver.keys()])
    await Promise.all([...ids].map((id) => this.close(id)))
  }

  #handOver(worker: FleetWorker): Promise<FastifyInstance> {
    const known = this.#handedOver.get(worker.id)
    if (known !== undefined) return known
    const opening = (async () => {
      const app = this.#open(worker, this.#host)
      await app.ready()
      return app
    })()
    this.#handedOver.set(worker.id, opening)
    return opening
  }
}

/** The worker has ended, so open responses get no further data. */
async function shut(app: FastifyInstance): Promise<void> {
  const closed = app.close()
  app.server.closeIdleConnections()
  const timer = setTimeout(() => app.server.closeAllConnections(), 2000)
  await closed
  clearTimeout(timer)
}
