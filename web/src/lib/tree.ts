/**
 * Trees of turns, as sessions and conversations are: nodes with a number and their parent's, 0 being the beginning, which is
 * no node. Where to draw them, and how to walk them.
 */

export interface TreeNode {
  readonly id: number
  /** 0: the beginning. */
  readonly parent: number
}

export function childrenOf<T extends TreeNode>(nodes: readonly T[], parent: number): T[] {
  return nodes.filter((node) => node.parent === parent).sort((a, b) => a.id - b.id)
}

/** From the beginning to the node. A parent that is missing (pruned) begins the path. */
export function pathTo<T extends TreeNode>(nodes: readonly T[], id: number): T[] {
  const byId = new Map(nodes.map((node) => [node.id, node]))
  const path: T[] = []
  for (let node = byId.get(id); node !== undefined; node = byId.get(node.parent)) {
    if (path.includes(node)) break
    path.unshift(node)
  }
  return path
}

/** The end of the newest branch through a node. */
export function newestLeaf<T extends TreeNode>(nodes: readonly T[], id: number): number {
  const next = childrenOf(nodes, id).at(-1)
  return next === undefined ? id : newestLeaf(nodes, next.id)
}

/** A place in a drawing of rows (one a node, in order) and lanes (one a branch), as commits are drawn. */
export interface Placed<T extends TreeNode> {
  readonly node: T
  readonly row: number
  readonly lane: number
  /** Null at the beginning, and where the parent is not there any more. */
  readonly from: { readonly row: number; readonly lane: number } | null
}

/** The oldest child goes on in its parent's lane; each further one opens the first lane that is free from there on. */
export function layOut<T extends TreeNode>(nodes: readonly T[]): Placed<T>[] {
  const ordered = [...nodes].sort((a, b) => a.id - b.id)
  const ids = new Set(ordered.map(({ id }) => id))
  const placed = new Map<number, Placed<T>>()
  const continued = new Set<number>()
  let lanes = 0
  ordered.forEach((node, row) => {
    const parent = placed.get(node.parent)
    const root = ids.has(node.parent) ? node.parent : 0
    const lane = continued.has(root) ? lanes : (parent?.lane ?? lanes)
    continued.add(root)
    lanes = Math.max(lanes, lane + 1)
    const from = parent === undefined ? null : { row: parent.row, lane: parent.lane }
    placed.set(node.id, { node, row, lane, from })
  })
  return [...placed.values()]
}
