/**
 * Decides the route of one request through a cluster: its first node, and the next one if a node has no answer.
 * `front.ts` carries it out over HTTP, the simulator over virtual time.
 */

import type { ModelNode, Nodes } from './nodes.ts'
import { chooseNode, hashOf } from './rendezvous.ts'

/** Last known nodes of sessions. An outdated entry costs one refusal. */
export class SessionOwners {
  readonly #nodes = new Map<string, string>()
  readonly #most: number

  constructor(most = 500_000) {
    this.#most = most
  }

  get size(): number {
    return this.#nodes.size
  }

  get(session: string): string | null {
    return this.#nodes.get(session) ?? null
  }

  set(session: string, node: string): void {
    this.#nodes.delete(session)
    this.#nodes.set(session, node)
    if (this.#nodes.size <= this.#most) return
    const [oldest] = this.#nodes.keys()
    if (oldest !== undefined) this.#nodes.delete(oldest)
  }
}

interface Routed {
  readonly model: string
  /** Identifies the session in the whole cluster; null without one. */
  readonly session: string | null
  /** Tenant, model and start of the prompt. */
  readonly prefix: string
}

export interface Step {
  readonly node: ModelNode
  /** The node should take the session over from its owner. */
  readonly mayTake: boolean
}

/** Why a step got no answer. */
export type Failure =
  /** The session is on another node: its id, or null if this gateway does not know it. */
  | { readonly kind: 'misdirected'; readonly owner: string | null }
  /** No connection, or the node drains. It did not begin the request and accepts none for a while. */
  | { readonly kind: 'unavailable' }
  /** Its queue is full, or it has no ready worker. */
  | { readonly kind: 'refused' }

/** Maximum nodes tried for one request. */
const MAX_STEPS = 8

export class RequestRoute {
  readonly #nodes: Nodes
  readonly #owners: SessionOwners
  readonly #routed: Routed
  readonly #tried = new Set<string>()
  #numSteps = 0
  #numMisdirected = 0
  #mayTake = false
  #owner: string | null

  /** `storedOwner`: the owner in the database, used if this gateway knows none. */
  constructor(nodes: Nodes, owners: SessionOwners, routed: Routed, storedOwner: string | null) {
    this.#nodes = nodes
    this.#owners = owners
    this.#routed = routed
    const { session } = routed
    this.#owner = session === null ? null : (owners.get(session) ?? storedOwner)
  }

  /** Null: no node is left to try. */
  next(): Step | null {
    if (this.#numSteps >= MAX_STEPS) return null
    const { model, session, prefix } = this.#routed
    const targets = this.#nodes.serving(model, this.#tried)
    const kept = targets.find(({ id }) => id === this.#owner) ?? null
    const node = chooseNode(hashOf(session ?? prefix), targets, kept)
    if (node === null) return null
    this.#numSteps++
    const isElsewhere = session !== null && this.#owner !== null && node.id !== this.#owner
    return { node, mayTake: session !== null && (this.#mayTake || isElsewhere) }
  }

  failed({ node }: Step, failure: Failure): void {
    if (failure.kind === 'misdirected') {
      this.#numMisdirected++
      // The request follows one redirection. After a second one the session is moving, so the next node takes it over.
      this.#mayTake = this.#numMisdirected > 1 || failure.owner === null
      this.#owner = failure.owner
      return
    }
    if (failure.kind === 'unavailable') this.#nodes.avoid(node.id)
    this.#tried.add(node.id)
  }

  answered({ node }: Step): void {
    if (this.#routed.session !== null) this.#owners.set(this.#routed.session, node.id)
  }
}
