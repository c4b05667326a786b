import fc from 'fast-check'
import { expect, test } from 'vitest'
import { RadixTree } from '../../../src/state/prefix-cache.ts'
import { trials } from '../../helpers/slow.ts'

const tokens = fc.array(fc.nat(1), { maxLength: 6 }).map((ids) => Int32Array.from(ids))
const action = fc.record({ type: fc.constantFrom('set', 'set', 'delete', 'longest'), tokens })

test('random operations agree with a map of all sequences', () => {
  const seen = { hits: 0, deletes: 0 }
  fc.assert(
    fc.property(fc.array(action, { minLength: 20, maxLength: 60 }), fc.nat(9), (actions, maxLength) => {
      const tree = new RadixTree<number>()
      const map = new Map<string, number>()
      for (const [i, { type, tokens: given }] of actions.entries()) {
        const key = given.join(',')
        if (type === 'set') {
          tree.set(given, i)
          map.set(key, i)
        } else if (type === 'delete') {
          const had = map.delete(key)
          expect(tree.delete(given)).toBe(had)
          if (had) seen.deletes++
        } else {
          const limit = Math.min(maxLength, given.length)
          let expected: { length: number; value: number } | null = null
          for (let length = 0; length <= limit; length++) {
            const value = map.get(given.slice(0, length).join(','))
            if (value !== undefined) expected = { length, value }
          }
          expect(tree.longest(given, maxLength)).toEqual(expected)
          if (expected !== null) seen.hits++
        }
        const keys = [...map.keys()].map((text) => (text === '' ? [] : text.split(',').map(Number)))
        const common = keys.map((ids) => {
          const parting = ids.findIndex((token, at) => token !== given[at])
          return parting === -1 ? ids.length : parting
        })
        expect(tree.sharedLength(given)).toBe(Math.max(0, ...common))
        expect(tree.size).toBe(map.size)
        expect(tree.get(given)).toBe(map.get(key) ?? null)
      }
    }),
    { numRuns: trials(700, 2000), seed: 3 },
  )
  expect(Math.min(seen.hits, seen.deletes)).toBeGreaterThan(500)
})

test('deleting a value removes its nodes', () => {
  const tree = new RadixTree<string>()
  const long = Int32Array.from({ length: 1000 }, (_, i) => i)
  tree.set(long, 'long')
  for (let length = 1; length < 1000; length++) tree.set(long.slice(0, length), 'short')
  for (let length = 1; length < 1000; length++) tree.delete(long.slice(0, length))
  expect(tree.longest(long)).toEqual({ length: 1000, value: 'long' })
  expect(tree.longest(long, 999)).toBeNull()
  tree.delete(long)
  expect([tree.size, tree.longest(long)]).toEqual([0, null])
})
