/** Guesses from the text before, how many of them, and what an engine does with them. */
import { expect, test } from 'vitest'
import { TextLookup } from '../../src/engine/speculation/lookup.ts'
import { Pace } from '../../src/engine/speculation/pace.ts'

test('what followed the same tokens before is guessed', () => {
  const lookup = new TextLookup(Int32Array.of(1, 2, 3, 4, 5, 6, 7, 8, 9))
  expect(lookup.propose(4)).toEqual([])
  for (const token of [3, 4]) lookup.add(token)
  expect(lookup.propose(4)).toEqual([])
  lookup.add(5)
  expect(lookup.propose(4)).toEqual([6, 7, 8, 9])
  lookup.add(6)
  expect(lookup.propose(2)).toEqual([7, 8])
  lookup.add(1)
  expect(lookup.propose(2)).toEqual([])
})

test('of several places the one with most in common before it, then the latest', () => {
  const text = [9, 1, 2, 3, 50, 8, 1, 2, 3, 60, 7, 1, 2, 3, 70, 0, 0]
  const lookup = new TextLookup(Int32Array.from([...text, 8, 1, 2, 3]))
  expect(lookup.propose(1)).toEqual([60])
  const other = new TextLookup(Int32Array.from([...text, 5, 1, 2, 3]))
  expect(other.propose(1)).toEqual([70])
})

test('what repeats itself is guessed beyond its end', () => {
  const lookup = new TextLookup(Int32Array.of(5, 1, 2, 1, 2, 1, 2))
  expect(lookup.propose(5)).toEqual([1, 2, 1, 2, 1])
})

test('guesses grow while they are right, and pause for ever longer when all are wrong', () => {
  const pace = new Pace()
  expect(pace.next()).toBe(3)
  pace.learn(3, 3)
  expect(pace.next()).toBe(6)
  pace.learn(6, 2)
  expect(pace.next()).toBe(3)
  const pauses = [1, 2, 3].map(() => {
    pace.learn(3, 0)
    let rows = 0
    while (pace.next() === 0) rows++
    return rows
  })
  expect(pauses).toEqual([1, 2, 4])
  pace.learn(1, 1)
  pace.learn(2, 0)
  expect([pace.next(), pace.next() > 0]).toEqual([0, true])
})
