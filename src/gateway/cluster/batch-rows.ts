/**
 * Runs requests of batches in a cluster. Each goes to a node with room, perhaps this one, as a member's request for the
 * tenant. The server that runs a batch needs no model. A request that a node did not answer is sent again, to any node
 * with room.
 */
import { randomUUID } from 'node:crypto'
import type { IncomingMessage } from 'node:http'
import { text } from 'node:stream/consumers'
import type { AskedRow, RowOutcome, RowRunner } from '../../api/batches/runner.ts'
import { PRIORITIES } from '../../api/schema.ts'
import { CALLER_HEADER } from '../../cluster/member-seal.ts'
import { ERROR_STATUS, isErrorCode, SkeinError } from '../../errors.ts'
import { NO_LIMITS } from '../access/keys.ts'
import { sparedSlots } from '../http/batch-rows.ts'
import { isWorthRetrying } from '../http/errors.ts'
import { Forwarder } from './forward.ts'
import { CODE_HEADER } from './headers.ts'
import { type ModelNode, watchNode } from './nodes.ts'
import type { FrontOptions } from './passage.ts'
import { modelNamed, type NamedModel } from './where.ts'

type ClusterRowOptions = Pick<FrontOptions, 'nodes' | 'models' | 'seal'>

export class ClusterRows implements RowRunner {
  readonly #options: ClusterRowOptions
  readonly #forwarder = new Forwarder()

  constructor(options: ClusterRowOptions) {
    this.#options = options
  }

  hasRoom(body: object): boolean {
    return this.#nodesFor(body).length > 0
  }

  async run(row: AskedRow, signal: AbortSignal): Promise<RowOutcome> {
    const requestId = randomUUID().replaceAll('-', '')
    let outcome: RowOutcome | null = null
    for (const node of this.#nodesFor(row.body)) {
      outcome = outcomeOf(await this.#send(node, { ...row, requestId }, signal), requestId)
      if (outcome.status !== 404) break
    }
    if (outcome === null) throw new SkeinError('queue_full', 'no node has room for it just now')
    return outcome
  }

  close(): void {
    this.#forwarder.close()
  }

  async #send({ id, url }: Asked, row: AskedRow & { readonly requestId: string }, signal: AbortSignal) {
    const { seal, nodes } = this.#options
    const watched = watchNode(nodes, id, signal)
    try {
      const message = await this.#forwarder.send(
        url,
        {
          method: 'POST',
          path: row.endpoint,
          headers: {
            'content-type': 'application/json',
            'x-request-id': row.requestId,
            [CALLER_HEADER]: seal.seal({ principal: principalOf(row), mayTake: true, origin: row.id }),
          },
          body: Buffer.from(JSON.stringify(row.body)),
        },
        watched.signal,
      )
      return { message, text: await text(message) }
    } catch (error) {
      nodes().avoid(id)
      throw new SkeinError('model_not_loaded', `node ${id} did not answer`, { cause: error })
    } finally {
      watched.end()
    }
  }

  /**
   * Nodes of the request's model with room beyond the slots reserved for other requests, the one with most room first.
   * For an unknown model any node, whose answer reports that. Names that only some nodes know are asked of all of them;
   * otherwise the first node is enough.
   */
  #nodesFor(body: object): readonly Asked[] {
    const { model } = body as { readonly model?: unknown }
    const { models } = this.#options
    const nodes = this.#options.nodes()
    let named: NamedModel
    try {
      named = modelNamed(models, typeof model === 'string' ? model : null)
    } catch (error) {
      const isAway = SkeinError.from(error).code === 'model_not_loaded'
      return isAway ? [] : nodes.any().slice(0, 1)
    }
    const room = ({ slots, inFlight }: ModelNode) => slots - sparedSlots(slots) - inFlight
    const free = nodes.serving(named.id).filter((node) => !nodes.isAvoided(node.id) && room(node) > 0)
    const sorted = free.toSorted((a, b) => room(b) - room(a))
    return named.isSure ? sorted.slice(0, 1) : sorted
  }
}

type Asked = Pick<ModelNode, 'id' | 'url'>

interface Answer {
  readonly message: IncomingMessage
  readonly text: string
}

/** The limits of a key do not apply. A row's own priority holds; without one it gets the lowest. */
function principalOf({ tenant, body }: { readonly tenant: string; readonly body: object }) {
  const { priority } = body as { readonly priority?: unknown }
  const own = typeof priority === 'number' ? priority : PRIORITIES[0]
  const limits = { ...NO_LIMITS, priority: own }
  return { tenant, name: 'batch', role: 'user', limits, expiresAt: null } as const
}

/** Throws if a retry may help. */
function outcomeOf({ message, text }: Answer, requestId: string): RowOutcome {
  const { headers, statusCode = 502 } = message
  // The session is moving, or a closing server refuses before its routes are called.
  if (statusCode === 421 || statusCode === 503) throw passing()
  const body = JSON.parse(text) as { readonly error?: { readonly code?: unknown } | null }
  // A slow answer had already begun with status 200.
  const isLate = statusCode === 200 && body.error != null && !('object' in body)
  const code = isLate ? body.error?.code : headers[CODE_HEADER]
  const known = isErrorCode(code) ? code : null
  if (known !== null && isWorthRetrying(new SkeinError(known, ''))) throw passing()
  const status = isLate ? ERROR_STATUS[known ?? 'internal'] : statusCode
  const warnings = headers.warnings
  return { status, requestId, body, warnings: typeof warnings === 'string' ? warnings : null }
}

function passing(): SkeinError {
  return new SkeinError('model_not_loaded', 'the node does not accept the request now')
}
