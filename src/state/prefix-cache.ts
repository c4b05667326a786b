/**
 * States after prompts that other prompts may begin with, in memory, by namespace and tokens. All can be computed
 * again, so the least recently used ones are dropped when the cache is full.
 */
import type { StateData } from '../backend/state-shape.ts'
import { Lru } from './lru.ts'
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

interface Node<T> {
  /** Tokens from the parent to here; empty only at the root. */
  edge: Int32Array
  readonly children: Map<number, Node<T>>
  value: T | null
}

/**
 * A compressed trie from token sequences to values. It compares the tokens themselves, so two sequences are never
 * confused.
 */
export class RadixTree<T> {
  readonly #root: Node<T> = createNode(new Int32Array(0))
  #size = 0

  get size(): number {
    return this.#size
  }

  /** The value of the longest prefix of `tokens` that has a value and is no longer than `maxLength`. */
  longest(tokens: Int32Array, maxLength = tokens.length): { length: number; value: T } | null {
    let found: { length: number; value: T } | null = null
    let node = this.#root
    for (let at = 0; ; ) {
      if (node.value !== null) found = { length: at, value: node.value }
      const child = at < maxLength ? node.children.get(tokens[at]!) : undefined
      if (child === undefined) return found
      const end = at + child.edge.length
      if (end > maxLength || commonLength(child.edge, tokens, at) < child.edge.length) return found
      node = child
      at = end
    }
  }

  /** How many leading tokens are also the beginning of a sequence here. */
  sharedLength(tokens: Int32Array): number {
    let node = this.#root
    for (let at = 0; ; ) {
      const child = at < tokens.length ? node.children.get(tokens[at]!) : undefined
      if (child === undefined) return at
      const common = commonLength(child.edge, tokens, at)
      at += common
      if (common < child.edge.length) return at
      node = child
    }
  }

  get(tokens: Int32Array): T | null {
    const found = this.longest(tokens)
    return found?.length === tokens.length ? found.value : null
  }

  /** Keeps copies: a view would keep a whole array for a single token. */
  set(tokens: Int32Array, value: T): void {
    let node = this.#root
    for (let at = 0; at < tokens.length; at += node.edge.length) {
      const child = node.children.get(tokens[at]!)
      if (child === undefined) {
        const leaf = createNode<T>(tokens.slice(at))
        node.children.set(tokens[at]!, leaf)
        node = leaf
        continue
      }
      const common = commonLength(child.edge, tokens, at)
      node = common < child.edge.length ? split(node, child, common) : child
    }
    if (node.value === null) this.#size++
    node.value = value
  }

  /** False when there was none. */
  delete(tokens: Int32Array): boolean {
    const path = [this.#root]
    for (let at = 0; at < tokens.length; ) {
      const child = path.at(-1)!.children.get(tokens[at]!)
      if (child === undefined || commonLength(child.edge, tokens, at) < child.edge.length) return false
      path.push(child)
      at += child.edge.length
    }
    const node = path.at(-1)!
    if (node.value === null) return false
    node.value = null
    this.#size--
    tidy(path)
    return true
  }
}

function createNode<T>(edge: Int32Array): Node<T> {
  return { edge, children: new Map(), value: null }
}

/** How many tokens of `edge` are also in `tokens` from `at` on. */
function commonLength(edge: Int32Array, tokens: Int32Array, at: number): number {
  const limit = Math.min(edge.length, tokens.length - at)
  let length = 0
  while (length < limit && edge[length] === tokens[at + length]) length++
  return length
}

/** Puts a node into the middle of a child's edge. */
function split<T>(parent: Node<T>, child: Node<T>, length: number): Node<T> {
  const middle = createNode<T>(child.edge.slice(0, length))
  parent.children.set(middle.edge[0]!, middle)
  child.edge = child.edge.slice(length)
  middle.children.set(child.edge[0]!, child)
  return middle
}

/** Removes the nodes at the end of a path that no longer separate sequences. */
function tidy<T>(path: readonly Node<T>[]): void {
  for (let depth = path.length - 1; depth > 0; depth--) {
    const node = path[depth]!
    if (node.value !== null || node.children.size > 1) return
    const parent = path[depth - 1]!
    const [only] = node.children.values()
    if (only === undefined) {
      parent.children.delete(node.edge[0]!)
      continue
    }
    const edge = new Int32Array(node.edge.length + only.edge.length)
    edge.set(node.edge)
    edge.set(only.edge, node.edge.length)
    only.edge = edge
    parent.children.set(edge[0]!, only)
    return
  }
}
