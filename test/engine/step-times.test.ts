/** What is learned of the durations of steps: at random against the definition, which sorts all that is remembered. */
import { expect, test } from 'vitest'
import type { GuessCosts } from '../../src/backend/backend.ts'
import { StepTimes } from '../../src/engine/speculation/step-times.ts'
import { randomOf } from '../helpers/random.ts'

const KNOWN: GuessCosts = [
  [1, 1],
  [2, 1.3],
  [4, 1.4],
  [8, 1.6],
  [16, 2.2],
  [64, 2.6],
]

interface Learned {
  readonly answers: number
  /** −1: of steps with more tokens than are known of; −2: of those without guesses. */
  readonly entry: number
  readonly ms: number
  readonly step: number
}

const entryOf = (tokens: number) => KNOWN.findIndex(([most]) => tokens <= most)

/** Of the last twelve of a kind that are no older than 1,024 steps. */
function remembered(all: readonly Learned[], step: number, answers: number, entry: number): number[] {
  const own = all.filter((one) => one.answers === answers && one.entry === entry).slice(-12)
  return own.filter((one) => step - one.step <= 1024).map(({ ms }) => ms)
}

/** Of the numbers of answers that are asked for, none of which counts as another. */
const ANSWERS = [1, 3, 8]
const plainCost = (answers: number) => KNOWN[entryOf(answers)]![1]

/** Where no step of so many answers is remembered, the nearest that are say what one takes. */
function plainMs(all: readonly Learned[], step: number, answers: number): number {
  const away = (other: number) => Math.abs(Math.log(other / answers))
  for (const other of ANSWERS.toSorted((a, b) => away(a) - away(b))) {
    const own = quartile(remembered(all, step, other, -2))
    if (own > 0) return (own * plainCost(answers)) / plainCost(other)
  }
  return 0
}

const quartile = (numbers: readonly number[]) => [...numbers].sort((a, b) => a - b)[(numbers.length - 1) >> 2] ?? 0

function expectedCost(all: readonly Learned[], step: number, answers: number, tokens: number): number {
  if (tokens <= answers) return 1
  const at = entryOf(tokens)
  if (at === -1) return Number.POSITIVE_INFINITY
  const ratioOf = (entry: number) => KNOWN[entry]![1] / KNOWN[entryOf(answers)]![1]
  const plain = plainMs(all, step, answers)
  if (plain === 0 || !all.some((one) => one.answers === answers && one.entry >= -1)) return ratioOf(at)
  const typical = (entry: number, expected: number) => {
    const own = remembered(all, step, answers, entry)
    return own.length < 8 ? Math.min(...own, expected) : quartile(own)
  }
  const others = KNOWN.map((_, i) => i).filter((i) => i !== at && remembered(all, step, answers, i).length > 0)
  const nearest = others.sort((a, b) => Math.abs(a - at) - Math.abs(b - at))[0]
  const own = ratioOf(at) * plain
  if (nearest === undefined) return typical(at, own) / plain
  const other = ratioOf(nearest) * plain
  return typical(at, own * Math.sqrt(typical(nearest, other) / other)) / plain
}

test.each([1, 2, 3, 4])('costs come from the lower quartiles of what is remembered, seed %i', (seed) => {
  const random = randomOf(seed)
  const times = new StepTimes(KNOWN)
  const learned: Learned[] = []
  for (let step = 1; step <= 3000; step++) {
    // Long stretches of one number of answers, in which what is known of others grows old.
    const answers = ANSWERS[random(8) === 0 ? random(3) : Math.floor(step / 1300)]!
    const hasGuesses = random(4) > 0
    const tokens = hasGuesses ? answers + 1 + random(70) : answers
    const ms = 1 + random(12)
    times.learn(answers, tokens, hasGuesses, ms)
    learned.push({ answers, entry: hasGuesses ? entryOf(tokens) : -2, ms, step })
    if (step % 7 > 0) continue
    const costOf = times.costsOf(answers)
    for (const asked of [1, answers + 1, 9, 16, 40, 64, 65])
      expect(costOf(asked)).toBeCloseTo(expectedCost(learned, step, answers, asked), 9)
  }
})

test('where answers end one after the other, few steps go without guesses to know what one takes', () => {
  const times = new StepTimes(KNOWN)
  let numPlain = 0
  const step = (answers: number) => {
    const isPlain = times.needsPlain(answers)
    if (isPlain) numPlain++
    times.learn(answers, isPlain ? answers : 3 * answers, !isPlain, 1)
  }
  for (let answers = 16; answers > 0; answers--) for (let i = 0; i < 3; i++) step(answers)
  expect(numPlain).toBeLessThan(4)
  // Of a number that stays one is known soon, and not again for a while.
  numPlain = 0
  for (let i = 0; i < 60; i++) step(5)
  expect(numPlain).toBe(1)
})

test('numbers of answers whose steps take about as long share what is known', () => {
  const times = new StepTimes(KNOWN)
  times.learn(7, 7, false, 2)
  for (let i = 0; i < 8; i++) times.learn(7 + (i % 2), 14, true, 5)
  expect(times.costsOf(8)(15)).toBe(2.5)
  expect(times.costsOf(6)(15)).toBe(2.2 / 1.6)
  // Half as many take as long as is known of the device, beside these.
  expect(times.plainMs(4)).toBeCloseTo((2 * 1.4) / 1.6)
})

test('a few steps that took long, such as those that make graphs, do not count', () => {
  const times = new StepTimes(KNOWN)
  times.learn(1, 1, false, 1)
  for (const ms of [9, 30, 9, 30]) times.learn(1, 8, true, ms)
  expect(times.costsOf(1)(8)).toBe(1.6)
  for (const ms of [2, 2, 2, 2]) times.learn(1, 8, true, ms)
  expect(times.costsOf(1)(8)).toBe(2)
})
