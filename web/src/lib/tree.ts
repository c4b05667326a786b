/**
 * Trees of turns, for sessions and conversations: how to walk and draw them. Each node has its number and its parent's;
 * 0 is the beginning, which is not a node.
 */

export interface TreeNode {
  readonly id: number
  /** 0: the beginning. */
  readonly parent: number
}

export function childrenOf<T extends TreeNode>(nodes: readonly T[], parent: number): T[] {
  return nodes.filter((node) => node.parent === parent).sort((a, b) => a.id - b.id)
}

/** The path from the beginning to the node. It starts after a missing (pruned) parent. */
export function pathTo<T extends TreeNode>(nodes: readonly T[], id: number): T[] {
  const byId = new Map(nodes.map((node) => [node.id, node]))
  const path: T[] = []
  for (let node = byId.get(id); node !== undefined; node = byId.get(node.parent)) {
    if (path.includes(node)) break
    path.unshift(node)
  }
  return path
}

/** The last node of the newest branch through a node. */
export function newestLeaf<T extends TreeNode>(nodes: readonly T[], id: number): number {
  const next = childrenOf(nodes, id).at(-1)
  return next === undefined ? id : newestLeaf(nodes, next.id)
}

/** A position in a drawing with one row per node and one lane per branch, like a commit graph. */
export interface Placed<T extends TreeNode> {
  readonly node: T
  readonly row: number
  readonly lane: number
  /** Null at the beginning, and if the parent is gone. */
  readonly from: { readonly row: number; readonly lane: number } | null
}

/** The oldest child continues its parent's lane; each further child takes the first lane that is free from there on. */
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
