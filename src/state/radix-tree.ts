/**
 * A compressed trie from token sequences to values. It compares the tokens themselves, so two sequences are never
 * confused.
 */

interface Node<T> {
  /** Tokens from the parent to here; empty only at the root. */
  edge: Int32Array
  readonly children: Map<number, Node<T>>
  value: T | null
}

export class RadixTree<T> {
  readonly #root: Node<T> = createNode(new Int32Array(0))
  #size = 0

  /** Values held. */
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
      if (child === undefined || commonLength(child.edge, tokens, at) < child.edge.length) {
        return false
      }
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
