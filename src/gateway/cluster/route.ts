/**
 * The way of one request through a cluster, as decisions: where it goes first, and where next when a node has no answer.
 * `front.ts` carries them out over HTTP, the simulator over virtual time.
 */

import type { ModelNode, Nodes } from './nodes.ts'
import { chooseNode, hashOf } from './rendezvous.ts'

/** Where sessions are, as far as this gateway has seen. What is not true any more costs one refusal. */
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
  /** Names the session in the whole cluster; null without one. */
  readonly session: string | null
  /** Whose prompt it is and how that begins. */
  readonly prefix: string
}

export interface Step {
  readonly node: ModelNode
  /** The node shall take the session from whoever has it. */
  readonly mayTake: boolean
}

/** What became of a step without an answer. */
export type Failure =
  /** The session is elsewhere: id of the node that has it, null where that is none this gateway knows. */
  | { readonly kind: 'misdirected'; readonly owner: string | null }
  /** No connection, or the node drains: nothing of the request was begun there, and nothing will be for a while. */
  | { readonly kind: 'unavailable' }
  /** Its queue is full, or it has no worker just now. */
  | { readonly kind: 'refused' }

/** Nodes that one request may be sent to. */
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

  /** `storedOwner`: what the database says where this gateway knows nothing. */
  constructor(nodes: Nodes, owners: SessionOwners, routed: Routed, storedOwner: string | null) {
    this.#nodes = nodes
    this.#owners = owners
    this.#routed = routed
    const { session } = routed
    this.#owner = session === null ? null : (owners.get(session) ?? storedOwner)
  }

  /** Null: there is nobody left to ask. */
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
      // It goes where it is told to, once; then the session is on the move, and whoever is asked next takes it.
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
