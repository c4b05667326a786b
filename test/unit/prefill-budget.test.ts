import { expect, test } from 'vitest'
import { itlTargetOf, PrefillBudget } from '../../src/engine/prefill-budget.ts'

/** Steps of a device that takes so long for a step, for each answer and for each prompt token. */
function settle(
  budget: PrefillBudget,
  cost: { readonly step: number; readonly answer: number; readonly prompt: number },
  answers: number,
  waiting = Number.POSITIVE_INFINITY,
  steps = 40,
): number[] {
  return Array.from({ length: steps }, () => {
    const prompts = Math.min(waiting, budget.tokensBeside(answers))
    const ms = cost.step + answers * cost.answer + prompts * cost.prompt
    budget.learn(ms, answers, prompts)
    return ms
  })
}

const byTarget = (itlTargetMs: number, most = 4096) =>
  new PrefillBudget({ prefillChunk: null, itlTargetMs }, most)

test('steps come to last as long as the target, from below and from above', () => {
  const gpu = { step: 4, answer: 0.025, prompt: 0.022 }
  const cpu = { step: 60, answer: 1, prompt: 2 }
  expect(settle(byTarget(25), gpu, 320).at(-1)).toBeCloseTo(25, 0)
  const slow = settle(byTarget(200), cpu, 8)
  expect(slow[0]).toBeGreaterThan(500)
  expect(slow.at(-1)).toBeCloseTo(200, -1)
  // After a handful of steps, and with more answers as with fewer.
  expect(slow.slice(8).every((ms) => ms < 1.2 * 200)).toBe(true)
  const budget = byTarget(25)
  settle(budget, gpu, 32)
  expect(settle(budget, gpu, 500).at(-1)).toBeCloseTo(25, 0)
})

test('where answers alone take the target, prompts still go on', () => {
  const budget = byTarget(25)
  settle(budget, { step: 40, answer: 0.01, prompt: 0.02 }, 100)
  expect(budget.tokensBeside(100)).toBe(50)
  expect(budget.tokensBeside(10)).toBe(32)
})

test('one long step changes nothing, and steps that no prompt filled promise nothing', () => {
  const budget = byTarget(25)
  settle(budget, { step: 5, answer: 0.02, prompt: 0.02 }, 100)
  const before = budget.tokensBeside(100)
  budget.learn(400, 100, before)
  expect(budget.tokensBeside(100)).toBe(before)
  settle(budget, { step: 5, answer: 0.02, prompt: 0.001 }, 100, 20)
  expect(budget.tokensBeside(100)).toBe(before)
  // Nor do steps of prompts alone, or of answers alone.
  for (let i = 0; i < 5; i++) {
    budget.learn(400, 0, 4000)
    budget.learn(400, 100, 0)
  }
  expect(budget.tokensBeside(100)).toBe(before)
})

test('it never asks for more than a step holds', () => {
  const budget = byTarget(1000, 300)
  settle(budget, { step: 1, answer: 0, prompt: 0 }, 1)
  expect(budget.tokensBeside(1)).toBe(300)
})

test('a number that was asked for is kept, whatever steps take', () => {
  const budget = new PrefillBudget({ prefillChunk: 17, itlTargetMs: 1 }, 4096)
  settle(budget, { step: 100, answer: 1, prompt: 1 }, 500)
  expect(budget.tokensBeside(500)).toBe(17)
})

test('devices with steps on their way are held to less', () => {
  expect(itlTargetOf({ maxFlights: 2 })).toBeLessThan(itlTargetOf({ maxFlights: 1 }))
})
