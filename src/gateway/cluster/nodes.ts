/**
 * The nodes of a cluster as one gateway sees them: which serve a model, what each has to do, which take nothing new. What
 * workers report is seconds old, so what this gateway has sent since is added. Knows no HTTP and no database.
 */
import type { Target } from './rendezvous.ts'

/** A worker as the database has it; fields that a newer release may add are not looked at. */
export interface ClusterMember {
  readonly id: string
  readonly node: string
  readonly url: string
  /** Name in the API. */
  readonly model: string
  readonly slots: number
  readonly inFlight: number
}

/** A node, for requests to one model. */
export interface ModelNode extends Target {
  readonly url: string
}

interface NodeUse {
  /** Sent by this gateway and not ended. */
  numSent: number
  /** Of these, those that had been sent when the figures came. */
  numSentThen: number
}

/** How long a node that drains, or cannot be reached, is left alone until it is asked again. */
const AVOID_MS = 10_000

export class Nodes {
  readonly #now: () => number
  readonly #uses = new Map<string, NodeUse>()
  /** Those that take nothing new, and until when. Mostly there are none, and each request asks. */
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

  /** Names of models in order. */
  get models(): readonly string[] {
    return [...this.#byModel.keys()].sort()
  }

  get urls(): ReadonlyMap<string, string> {
    return this.#urls
  }

  /** New figures of all workers that are alive. */
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

  /**
   * Those that may get a request to a model: without those that have been tried and those that take nothing new, where there
   * are others.
   */
  serving(model: string, tried: ReadonlySet<string> = NONE): readonly ModelNode[] {
    const all = this.#byModel.get(model) ?? []
    const untried = tried.size === 0 ? all : all.filter(({ id }) => !tried.has(id))
    if (this.#avoided.size === 0) return untried
    const open = untried.filter(({ id }) => !this.isAvoided(id))
    return open.length > 0 ? open : untried
  }

  /** All, whatever they serve; those that take nothing new come last. */
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

  /** It has answered. */
  welcome(node: string): void {
    this.#avoided.delete(node)
  }

  /** Counts a request that is sent there, until what is given back is called. */
  take(node: string): () => void {
    const use = this.#useOf(node)
    use.numSent++
    return () => {
      use.numSent--
    }
  }

  /** Nodes and not workers: which worker of its own is best a node knows best. */
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

const NONE: ReadonlySet<string> = new Set()

/** The nodes of a list that is another one whenever it has changed. */
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
