import { expect, test } from 'vitest'
import { CopyBudget, SpareTime } from '../../src/engine/copy-budget.ts'

/** Time that passes only when it is told to. */
class Clock {
  #now = 0

  readonly now = () => this.#now

  pass(ms: number): void {
    this.#now += ms
  }
}

test('short copies are made as they come', () => {
  const clock = new Clock()
  const spare = new SpareTime(clock.now)
  for (let i = 0; i < 100; i++) {
    expect(spare.allows).toBe(true)
    spare.spend(() => clock.pass(0.3))
    clock.pass(3)
  }
})

test('after a long one its time has to pass ten times over, less a credit', () => {
  const clock = new Clock()
  const spare = new SpareTime(clock.now)
  spare.spend(() => clock.pass(45))
  clock.pass(199)
  expect(spare.allows).toBe(false)
  clock.pass(2)
  expect(spare.allows).toBe(true)
})

test('over any long time a tenth goes to copies', () => {
  const clock = new Clock()
  const spare = new SpareTime(clock.now)
  let copying = 0
  for (let step = 0; step < 10_000; step++) {
    clock.pass(7)
    if (!spare.allows) continue
    spare.spend(() => clock.pass(12))
    copying += 12
  }
  expect(copying / clock.now()).toBeGreaterThan(0.08)
  expect(copying / clock.now()).toBeLessThan(0.1)
})

test('time that passes without copies is not saved up', () => {
  const clock = new Clock()
  const spare = new SpareTime(clock.now)
  clock.pass(1e9)
  spare.spend(() => clock.pass(26))
  expect(spare.allows).toBe(false)
})

test('what would go beyond the limit is left to the next step, but for the first of a step', () => {
  const clock = new Clock()
  const budget = new CopyBudget(3, clock.now)
  budget.beginStep()
  budget.spend('slot', () => clock.pass(2))
  expect(budget.allows('slot')).toBe(false)
  expect(budget.allows('clear')).toBe(true)
  budget.spend('clear', () => clock.pass(2))
  expect(budget.allows('clear')).toBe(false)
  budget.beginStep()
  expect(budget.allows('slot')).toBe(true)
})

test('reading out of slots is not starved by what requests wait for', () => {
  const clock = new Clock()
  const budget = new CopyBudget(0, clock.now)
  let numRead = 0
  for (let step = 0; step < 50; step++) {
    budget.beginStep()
    budget.spend('write', () => clock.pass(0.01))
    budget.beginBackground()
    if (!budget.allows('read')) continue
    budget.spend('read', () => clock.pass(0.01))
    numRead++
  }
  expect(numRead).toBe(10)
})
