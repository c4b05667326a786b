import { expect, test } from 'vitest'
import { itlTargetOf, PrefillBudget } from '../../src/engine/prefill-budget.ts'

/** Steps of a device with a given time per step, per answer and per prompt token. */
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

const DEVICE = itlTargetOf({ maxFlights: 2 })
const HOST = itlTargetOf({ maxFlights: 1 })

const byTarget = (itlTargetMs: number, most = 4096) =>
  new PrefillBudget({ prefillChunk: null, itlTargetMs }, DEVICE, most)

const unasked = (suits: typeof HOST) => new PrefillBudget({ prefillChunk: null, itlTargetMs: null }, suits, 512)

test('step times approach the target, from below and from above', () => {
  const gpu = { step: 4, answer: 0.025, prompt: 0.022 }
  const cpu = { step: 60, answer: 1, prompt: 2 }
  expect(settle(byTarget(25), gpu, 320).at(-1)).toBeCloseTo(25, 0)
  const slow = settle(byTarget(200), cpu, 8)
  expect(slow[0]).toBeGreaterThan(500)
  expect(slow.at(-1)).toBeCloseTo(200, -1)
  // After a few steps, with more answers and with fewer.
  expect(slow.slice(8).every((ms) => ms < 1.2 * 200)).toBe(true)
  const budget = byTarget(25)
  settle(budget, gpu, 32)
  expect(settle(budget, gpu, 500).at(-1)).toBeCloseTo(25, 0)
})

test('if answers alone take the target time, prompts still continue', () => {
  const budget = byTarget(25)
  settle(budget, { step: 40, answer: 0.01, prompt: 0.02 }, 100)
  expect(budget.tokensBeside(100)).toBe(50)
  expect(budget.tokensBeside(10)).toBe(32)
})

test('a single long step changes nothing, and steps without a full prompt are no evidence', () => {
  const budget = byTarget(25)
  settle(budget, { step: 5, answer: 0.02, prompt: 0.02 }, 100)
  const before = budget.tokensBeside(100)
  budget.learn(400, 100, before)
  expect(budget.tokensBeside(100)).toBe(before)
  settle(budget, { step: 5, answer: 0.02, prompt: 0.001 }, 100, 20)
  expect(budget.tokensBeside(100)).toBe(before)
  // Nor do steps with only prompts, or only answers.
  for (let i = 0; i < 5; i++) {
    budget.learn(400, 0, 4000)
    budget.learn(400, 100, 0)
  }
  expect(budget.tokensBeside(100)).toBe(before)
})

test('the budget never exceeds the size of a step', () => {
  const budget = byTarget(1000, 300)
  settle(budget, { step: 1, answer: 0, prompt: 0 }, 1)
  expect(budget.tokensBeside(1)).toBe(300)
})

test('a fixed number is kept, however long steps take', () => {
  const budget = new PrefillBudget({ prefillChunk: 17, itlTargetMs: 1 }, DEVICE, 4096)
  settle(budget, { step: 100, answer: 1, prompt: 1 }, 500)
  expect(budget.tokensBeside(500)).toBe(17)
})

test('on a CPU answers wait at most twice as long as alone', () => {
  // A model of 0.1B on two cores: answers alone take 15 ms.
  const cost = { step: 14, answer: 1, prompt: 1 }
  const budget = unasked(HOST)
  for (let i = 0; i < 3; i++) budget.learn(cost.step + cost.answer, 1, 0)
  const steps = settle(budget, cost, 1)
  expect(Math.max(...steps.slice(4))).toBeLessThan(1.1 * 30)
  expect(steps.at(-1)).toBeGreaterThan(0.9 * 30)
})

test('on a CPU very short steps are extended to what nobody notices, and very long ones take a few tokens', () => {
  const fast = unasked(HOST)
  for (let i = 0; i < 3; i++) fast.learn(0.5, 1, 0)
  expect(settle(fast, { step: 0.4, answer: 0.1, prompt: 0.13 }, 1).at(-1)).toBeCloseTo(5, 0)
  const slow = unasked(HOST)
  for (let i = 0; i < 3; i++) slow.learn(400, 1, 0)
  const steps = settle(slow, { step: 380, answer: 20, prompt: 20 }, 1)
  expect(slow.tokensBeside(1)).toBe(8)
  expect(steps[0]).toBeLessThan(1100)
})

test.each([
  ['short ones', 6, 18],
  ['those that would exceed 21 ms', 8, 21],
  ['longer ones', 20, 40],
])(
  'on a CPU steps of answers may take three times as long with prompts up to 21 ms, twice beyond: %s',
  (_, alone, most) => {
    const budget = unasked(HOST)
    for (let i = 0; i < 3; i++) budget.learn(alone, 64, 0)
    const cost = { step: alone / 2, answer: alone / 128, prompt: 0.05 }
    const steps = settle(budget, cost, 64, Number.POSITIVE_INFINITY, 100)
    expect(steps.at(-1)).toBeCloseTo(most, -0.5)
    // One that is short by chance lets it grow by an eighth of what would have fitted.
    for (let i = 0; i < 2; i++) budget.learn(alone, 64, 0)
    const before = budget.tokensBeside(64)
    budget.learn(most / 2, 64, before)
    expect(budget.tokensBeside(64)).toBeGreaterThan(1.1 * before)
    expect(budget.tokensBeside(64)).toBeLessThan(1.14 * before)
  },
)

test('one long step of answers alone does not let prompts take longer', () => {
  const cost = { step: 14, answer: 1, prompt: 1 }
  const budget = unasked(HOST)
  for (const ms of [15, 15, 400]) budget.learn(ms, 1, 0)
  expect(settle(budget, cost, 1).at(-1)).toBeLessThan(1.1 * 30)
})

test('the time of answers alone is measured again while prompts never end', () => {
  const cost = { step: 14, answer: 1, prompt: 1 }
  const budget = unasked(HOST)
  // The first steps of a server, which load kernels.
  for (const ms of [280, 200]) budget.learn(ms, 1, 0)
  const steps = settle(budget, cost, 1, Number.POSITIVE_INFINITY, 100)
  expect(steps[30]).toBeGreaterThan(100)
  expect(Math.max(...steps.slice(50))).toBeLessThan(1.1 * 30)
  expect(steps.filter((ms) => ms === 15).length).toBeLessThan(5)
})

test('devices with steps in flight have a target of their own', () => {
  const budget = unasked(DEVICE)
  for (let i = 0; i < 3; i++) budget.learn(100, 32, 0)
  expect(settle(budget, { step: 4, answer: 0.025, prompt: 0.1 }, 32).at(-1)).toBeCloseTo(25, 0)
})

test('scored tokens take no longer than a step may, judged by the shorter of the last two steps', () => {
  const pace = { prefillChunk: null, itlTargetMs: 10 }
  const budget = new PrefillBudget(pace, DEVICE, 4096, 50_000)
  // Without a measurement: 7.5 ms for a row of 50,000 values, as before the code is compiled.
  expect(budget.scoredBeside).toBe(1)
  budget.learnScoring(8, 8)
  expect(budget.scoredBeside).toBe(10)
  budget.learnScoring(8, 4)
  expect(budget.scoredBeside).toBe(10)
  budget.learnScoring(9, 3)
  expect(budget.scoredBeside).toBe(5)
  budget.learnScoring(1, 10)
  expect(budget.scoredBeside).toBe(100)
  for (let i = 0; i < 2; i++) budget.learnScoring(500, 1)
  expect(budget.scoredBeside).toBe(1)
})
