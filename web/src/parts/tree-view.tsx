/** A tree of turns drawn like a commit graph: a row per turn, a lane per branch. The rows are buttons. */
import type { ComponentChildren } from 'preact'
import { layOut, type TreeNode } from '../lib/tree.ts'

interface TreeViewProps<T extends TreeNode> {
  readonly label: string
  readonly nodes: readonly T[]
  /** The turn that the next one would follow. */
  readonly head: number
  readonly selected?: number | null
  readonly describe: (node: T) => ComponentChildren
  readonly onSelect: (node: T) => void
}

const ROW = 30
const LANE = 16
const DOT = 4

export function TreeView<T extends TreeNode>(props: TreeViewProps<T>) {
  const { label, nodes, head, selected = null, describe, onSelect } = props
  const placed = layOut(nodes)
  const lanes = Math.max(1, ...placed.map(({ lane }) => lane + 1))
  const [width, height] = [lanes * LANE + 4, placed.length * ROW]
  const x = (lane: number) => lane * LANE + LANE / 2
  const y = (row: number) => row * ROW + ROW / 2
  return (
    <div class="tree">
      <svg width={width} height={height} aria-hidden="true">
        {placed.map(({ node, row, lane, from }) =>
          from === null ? null : <path key={node.id} d={edge(x(from.lane), y(from.row), x(lane), y(row))} />,
        )}
        {placed.map(({ node, row, lane }) => (
          <circle
            key={node.id}
            class={node.id === head ? 'head' : ''}
            cx={x(lane)}
            cy={y(row)}
            r={node.id === head ? DOT + 1 : DOT}
          />
        ))}
      </svg>
      <ol aria-label={label}>
        {placed.map(({ node }) => (
          <li key={node.id}>
            <button
              type="button"
              class={node.id === selected ? 'selected' : ''}
              aria-current={node.id === head ? 'true' : undefined}
              onClick={() => onSelect(node)}
            >
              {describe(node)}
            </button>
          </li>
        ))}
      </ol>
    </div>
  )
}

/** A line down the lane, or to another lane with one bend just below the parent. */
function edge(x1: number, y1: number, x2: number, y2: number): string {
  if (x1 === x2) return `M${x1} ${y1}V${y2}`
  return `M${x1} ${y1}C${x1} ${y1 + ROW} ${x2} ${y1} ${x2} ${y1 + ROW}V${y2}`
}
