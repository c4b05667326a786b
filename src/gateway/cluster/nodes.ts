/**
 * The nodes of a cluster as one gateway sees them: the models they serve, their load, and which accept no new requests.
 * Reports of workers are seconds old, so requests that this gateway has sent since are added. It knows no HTTP and no
 * database.
 */
import type { WorkerFacts } from '../../cluster/lease.ts'
import type { Target } from './rendezvous.ts'

/** A worker's row of the database; unknown fields of a newer release are ignored. */
export interface ClusterMember extends Pick<WorkerFacts, 'id' | 'node' | 'url' | 'model' | 'slots'> {
  readonly inFlight: number
}

/** A node, for requests to one model. */
export interface ModelNode extends Target {
  readonly url: string
}

interface NodeUse {
  /** Requests from this gateway that have not ended. */
  numSent: number
  /** Those of them that were sent before the last report. */
  numSentThen: number
}

/** Time that a draining or unreachable node is skipped before it is tried again. */
const AVOID_MS = 10_000

export class Nodes {
  readonly #now: () => number
  readonly #uses = new Map<string, NodeUse>()
  /** Nodes that are skipped, and until when. Mostly empty, and checked for each request. */
  readonly #avoided = new Map<string, number>()
  #members: readonly ClusterMember[] = []
  #byModel = new Map<string, readonly ModelNode[]>()
  #urls = new Map<string, string>()

  constructor(now: () => number = () => performance.now()) {
    this.#now = now
  }

  get members(): readonly ClusterMember[] {
    return this.#members
  }

  get models(): readonly string[] {
    return [...this.#byModel.keys()].sort()
  }

  get urls(): ReadonlyMap<string, string> {
    return this.#urls
  }

  /** Takes new reports of all live workers. */
  update(members: readonly ClusterMember[]): void {
    this.#members = members
    this.#urls = new Map(members.map(({ node, url }) => [node, url]))
    for (const [node, use] of this.#uses) {
      use.numSentThen = use.numSent
      if (use.numSent === 0 && !this.#urls.has(node)) this.#uses.delete(node)
    }
    for (const node of this.#avoided.keys()) if (!this.isAvoided(node)) this.#avoided.delete(node)
    const models = [...new Set(members.map(({ model }) => model))]
    this.#byModel = new Map(models.map((model) => [model, this.#nodesOf(model)]))
  }

  /** Nodes that may get a request for a model. Tried and skipped nodes are left out if there are others. */
  serving(model: string, tried: ReadonlySet<string> = NONE): readonly ModelNode[] {
    const all = this.#byModel.get(model) ?? []
    const untried = tried.size === 0 ? all : all.filter(({ id }) => !tried.has(id))
    if (this.#avoided.size === 0) return untried
    const open = untried.filter(({ id }) => !this.isAvoided(id))
    return open.length > 0 ? open : untried
  }

  /** All nodes, whatever they serve; skipped ones come last. */
  any(): readonly Pick<ModelNode, 'id' | 'url'>[] {
    const all = [...this.#urls].map(([id, url]) => ({ id, url }))
    const isLate = ({ id }: { readonly id: string }) => this.isAvoided(id)
    return [...all.filter((node) => !isLate(node)), ...all.filter(isLate)]
  }

  isAlive(node: string): boolean {
    return this.#urls.has(node)
  }

  isAvoided(node: string): boolean {
    const until = this.#avoided.get(node)
    return until !== undefined && until > this.#now()
  }

  avoid(node: string): void {
    this.#avoided.set(node, this.#now() + AVOID_MS)
  }

  /** The node has answered, so it is no longer skipped. */
  welcome(node: string): void {
    this.#avoided.delete(node)
  }

  /** Counts a request sent to the node, until the returned function is called. */
  take(node: string): () => void {
    const use = this.#useOf(node)
    use.numSent++
    return () => {
      use.numSent--
    }
  }

  /** Groups workers by node: the node itself chooses its best worker. */
  #nodesOf(model: string): ModelNode[] {
    const nodes = new Map<string, { id: string; url: string; slots: number; reported: number }>()
    for (const { node: id, url, model: own, slots, inFlight } of this.#members) {
      if (own !== model) continue
      const node = nodes.get(id) ?? { id, url, slots: 0, reported: 0 }
      nodes.set(id, node)
      node.slots += slots
      node.reported += inFlight
    }
    return [...nodes.values()].map(({ id, url, slots, reported }) => {
      const use = this.#useOf(id)
      return {
        id,
        url,
        slots,
        get inFlight() {
          return Math.max(use.numSent, reported + use.numSent - use.numSentThen)
        },
      }
    })
  }

  #useOf(node: string): NodeUse {
    const known = this.#uses.get(node)
    if (known !== undefined) return known
    const use = { numSent: 0, numSentThen: 0 }
    this.#uses.set(node, use)
    return use
  }
}

const ALIVE_CHECK_MS = 1000

/**
 * Counts a request to a node until `end`. The signal also aborts when the node's lease expires: a machine that hangs never
 * answers.
 */
export function watchNode(nodes: () => Nodes, node: string, signal: AbortSignal) {
  const controller = new AbortController()
  const onAbort = () => controller.abort(signal.reason)
  if (signal.aborted) onAbort()
  else signal.addEventListener('abort', onAbort, { once: true })
  const timer = setInterval(() => {
    if (!nodes().isAlive(node)) controller.abort(new Error(`node ${node} is gone`))
  }, ALIVE_CHECK_MS)
  const leave = nodes().take(node)
  let hasEnded = false
  const end = () => {
    if (hasEnded) return
    hasEnded = true
    clearInterval(timer)
    signal.removeEventListener('abort', onAbort)
    leave()
  }
  return { signal: controller.signal, end }
}

const NONE: ReadonlySet<string> = new Set()

/** Builds the nodes of a list again whenever the list is replaced. */
export function nodesOf(list: () => readonly ClusterMember[]): () => Nodes {
  const nodes = new Nodes()
  let seen: readonly ClusterMember[] | null = null
  return () => {
    const now = list()
    if (now !== seen) nodes.update(now)
    seen = now
    return nodes
  }
}
