import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { childrenOf, layOut, newestLeaf, pathTo } from '../../web/src/lib/tree.ts'

const nodes = (parents: readonly number[]) => parents.map((parent, i) => ({ id: i + 1, parent }))
const ids = (list: readonly { id: number }[]) => list.map(({ id }) => id)

/** 1 ─ 2 ─ 3, and 4 ─ 5 beside 2. */
const FORKED = nodes([0, 1, 2, 1, 4])

describe('a tree of turns', () => {
  test('paths, children, leaves', () => {
    expect(ids(pathTo(FORKED, 5))).toEqual([1, 4, 5])
    expect(ids(pathTo(FORKED, 0))).toEqual([])
    expect(ids(childrenOf(FORKED, 1))).toEqual([2, 4])
    expect(newestLeaf(FORKED, 1)).toBe(5)
    expect(newestLeaf(FORKED, 2)).toBe(3)
    expect(newestLeaf([], 0)).toBe(0)
  })

  test('a turn with a pruned parent starts its path', () => {
    expect(ids(pathTo(FORKED.slice(1), 3))).toEqual([2, 3])
  })

  test('is drawn with the first branch straight and others beside it', () => {
    const places = layOut(FORKED).map(({ row, lane, from }) => [row, lane, from?.row ?? null])
    expect(places).toEqual([
      [0, 0, null],
      [1, 0, 0],
      [2, 0, 1],
      [3, 1, 0],
      [4, 1, 3],
    ])
  })

  test('no two branches share a lane', () => {
    const trees = fc
      .array(fc.nat(), { minLength: 1, maxLength: 40 })
      .map((picks) => nodes(picks.map((pick, i) => pick % (i + 1))))
    fc.assert(
      fc.property(trees, (tree) => {
        const placed = layOut(tree)
        expect(placed.map(({ row }) => row)).toEqual(tree.map((_, i) => i))
        for (const lane of new Set(placed.map((one) => one.lane))) {
          const inLane = placed.filter((one) => one.lane === lane)
          // From the second on, each follows the one above.
          for (const [i, { node }] of inLane.entries()) {
            if (i > 0) expect(node.parent).toBe(inLane[i - 1]!.node.id)
          }
        }
      }),
    )
  })
})
