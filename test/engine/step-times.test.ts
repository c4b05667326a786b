/** What is learned of the durations of steps: at random against the definition, which sorts all that is remembered. */
import { expect, test } from 'vitest'
import type { GuessCosts } from '../../src/backend/backend.ts'
import { StepTimes } from '../../src/engine/speculation/step-times.ts'

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

const quartile = (numbers: readonly number[]) => [...numbers].sort((a, b) => a - b)[(numbers.length - 1) >> 2] ?? 0

function expectedCost(all: readonly Learned[], step: number, answers: number, tokens: number): number {
  if (tokens <= answers) return 1
  const at = entryOf(tokens)
  if (at === -1) return Number.POSITIVE_INFINITY
  const ratioOf = (entry: number) => KNOWN[entry]![1] / KNOWN[entryOf(answers)]![1]
  const plain = quartile(remembered(all, step, answers, -2))
  if (plain === 0 || !all.some((one) => one.answers === answers && one.entry >= -1)) return ratioOf(at)
  const typical = (entry: number, expected: number) => {
    const own = remembered(all, step, answers, entry)
    return quartile(own.length < 3 ? [...own, expected] : own)
  }
  const others = KNOWN.map((_, i) => i).filter((i) => i !== at && remembered(all, step, answers, i).length > 0)
  const nearest = others.sort((a, b) => Math.abs(a - at) - Math.abs(b - at))[0]
  const own = ratioOf(at) * plain
  if (nearest === undefined) return typical(at, own) / plain
  const other = ratioOf(nearest) * plain
  return typical(at, own * Math.sqrt(typical(nearest, other) / other)) / plain
}

test.each([1, 2, 3, 4])('costs come from the lower quartiles of what is remembered, seed %i', (seed) => {
  let state = seed
  const random = (below: number) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
    return Math.floor((state / 2 ** 32) * below)
  }
  const times = new StepTimes(KNOWN)
  const learned: Learned[] = []
  for (let step = 1; step <= 3000; step++) {
    // Long stretches of one number of answers, in which what is known of others grows old.
    const answers = [1, 3, 8][random(8) === 0 ? random(3) : Math.floor(step / 1300)]!
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
