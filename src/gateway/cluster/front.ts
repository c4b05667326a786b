/**
 * Answers requests at a cluster's gateway through nodes: it finds the node, forwards the request and streams the answer
 * back. If a node has not begun to answer, it tries another. It keeps no state that other gateways would need.
 */
import type { FastifyReply, FastifyRequest } from 'fastify'
import type { Dialect, Route } from '../../api/route.ts'
import { CALLER_HEADER } from '../../cluster/member-seal.ts'
import { SkeinError } from '../../errors.ts'
import type { Front } from '../http/mount.ts'
import { onReplyClosed } from '../http/request-end.ts'
import { Forwarder, headersToNode } from './forward.ts'
import { bytesOf, callerOf, giveBack } from './give-back.ts'
import { type FrontCounts, type FrontOptions, Passage } from './passage.ts'
import { SessionOwners } from './route.ts'
import { wayOf } from './where.ts'

export class ClusterFront implements Front {
  readonly counts: FrontCounts = { forwarded: 0, retried: 0, misdirected: 0, lost: 0 }
  readonly #options: FrontOptions
  readonly #owners = new SessionOwners()
  readonly #forwarder = new Forwarder()

  constructor(options: FrontOptions) {
    this.#options = options
  }

  answersFor(route: Route): boolean {
    return wayOf(route) !== 'here'
  }

  async answer(
    request: FastifyRequest,
    reply: FastifyReply,
    { route, dialect }: { readonly route: Route; readonly dialect: Dialect },
  ): Promise<unknown> {
    const { drain } = this.#options
    drain.checkOpen()
    const controller = new AbortController()
    const leave = drain.enter(controller)
    const onClose = () => controller.abort(new SkeinError('aborted', 'the client went away'))
    onReplyClosed(reply, onClose)
    try {
      return await new Passage(this.#options, this.#forwarder, this.#owners, this.counts, {
        request,
        reply,
        dialect,
        signal: controller.signal,
      }).run(route)
    } catch (thrown) {
      throw controller.signal.aborted ? controller.signal.reason : thrown
    } finally {
      leave()
    }
  }

  /** Forwards a request unchanged to the named node. */
  async pass(node: string, path: string, request: FastifyRequest, reply: FastifyReply): Promise<unknown> {
    const url = this.#options.nodes().urls.get(node)
    if (url === undefined)
      throw new SkeinError('not_found', 'no node of that name is alive; GET /api/cluster lists them')
    const { seal, keyHeaders } = this.#options
    const caller = seal.seal({ principal: callerOf(request), mayTake: false })
    const headers = { ...headersToNode(request.headers, keyHeaders), [CALLER_HEADER]: caller }
    const controller = new AbortController()
    onReplyClosed(reply, () => controller.abort())
    const { method } = request
    const body = bytesOf(request)
    const sent = this.#forwarder.send(url, { method, path, headers, body }, controller.signal)
    const answer = await sent.catch(() => {
      throw new SkeinError('model_not_loaded', `node ${node} cannot be reached at ${url}`)
    })
    return giveBack(answer, node, reply)
  }

  close(): void {
    this.#forwarder.close()
  }
}
