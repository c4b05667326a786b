/**
 * States after prompts that other prompts may begin with, in memory, by namespace and tokens. All can be computed
 * again, so the least recently used ones are dropped when the cache is full.
 */
import type { StateData } from '../backend/state-shape.ts'
import { Lru } from './lru.ts'
import { RadixTree } from './radix-tree.ts'
import { bytesOf } from './snapshot.ts'

/** Shorter prefixes are not worth a copy of a state. */
export const MIN_PREFIX_TOKENS = 32

/** Bytes that a prefix takes besides its numbers: objects, tree nodes and their maps. */
const OVERHEAD_BYTES = 1024

export interface Prefix {
  readonly namespace: string
  /** Exactly what the state has consumed. */
  readonly tokens: Int32Array
  readonly state: StateData
  /** Requests that have begun with it, and may still read it. */
  numFound: number
  /** When other workers were told of it, or told this one; null: never. */
  toldAt: number | null
}

export class PrefixCache {
  readonly #trees = new Map<string, RadixTree<Prefix>>()
  readonly #used: Lru<Prefix>

  readonly #onDrop: (state: StateData) => void

  /** `onDrop` receives states that nobody has begun with and nobody will. */
  constructor(maxBytes: number, onDrop: (state: StateData) => void = () => {}) {
    this.#onDrop = onDrop
    this.#used = new Lru({ count: Number.POSITIVE_INFINITY, bytes: maxBytes })
  }

  get count(): number {
    return this.#used.count
  }

  get bytes(): number {
    return this.#used.bytes
  }

  /** The longest kept prefix of at most `maxLength` tokens. */
  find(namespace: string, tokens: Int32Array, maxLength: number): Prefix | null {
    const found = this.#trees.get(namespace)?.longest(tokens, maxLength)
    if (!found) return null
    this.#used.touch(found.value, sizeOf(found.value))
    found.value.numFound++
    return found.value
  }

  /** Length of that prefix, which this does not use; 0: there is none. */
  lengthOf(namespace: string, tokens: Int32Array, maxLength: number): number {
    return this.#trees.get(namespace)?.longest(tokens, maxLength)?.length ?? 0
  }

  /** How many tokens a prompt shares with one that was kept, whether or not there is a state at that point. */
  sharedLength(namespace: string, tokens: Int32Array): number {
    return this.#trees.get(namespace)?.sharedLength(tokens) ?? 0
  }

  has(namespace: string, tokens: Int32Array): boolean {
    return this.#trees.get(namespace)?.get(tokens) != null
  }

  /** A state that is complete and will not change any more. `tokens` may be a view; it is copied. */
  add(namespace: string, tokens: Int32Array, state: StateData): Prefix {
    const own = { tokens: tokens.slice(), numFound: 0, toldAt: null }
    const prefix: Prefix = { namespace, state, ...own }
    let tree = this.#trees.get(namespace)
    const earlier = tree?.get(tokens)
    if (earlier) this.#used.delete(earlier)
    if (tree === undefined) {
      tree = new RadixTree()
      this.#trees.set(namespace, tree)
    }
    tree.set(prefix.tokens, prefix)
    this.#used.touch(prefix, sizeOf(prefix))
    while (this.#used.isOver) this.delete(this.#used.oldest()!)
    return prefix
  }

  delete(prefix: Prefix): void {
    if (!this.#used.delete(prefix)) return
    const tree = this.#trees.get(prefix.namespace)!
    tree.delete(prefix.tokens)
    if (tree.size === 0) this.#trees.delete(prefix.namespace)
    if (prefix.numFound === 0) this.#onDrop(prefix.state)
  }
}

/** Its tokens are also in the tree, in parts. */
function sizeOf({ tokens, state }: Prefix): number {
  return 2 * tokens.byteLength + bytesOf(state) + OVERHEAD_BYTES
}
