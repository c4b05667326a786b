/**
 * How many tokens are guessed, by a clock: engines over devices whose steps take a known time, and guesses of which a known
 * share is right. The measure is the best fixed number of guesses, which knows both.
 */
import { describe, expect, test } from 'vitest'
import type { GuessCosts } from '../../src/backend/backend.ts'
import { HOST_GUESSING } from '../../src/backend/host-guessing.ts'
import type { ProposerSource } from '../../src/engine/speculation/proposer.ts'
import { answerOf, FakeRunner } from '../helpers/fake-runner.ts'
import { Collected, drain, engineOver, promptOf, requestOf, specOf, V } from './kit.ts'

/** What a step takes by its tokens, what is known of it beforehand, and what waiting for guesses costs. */
interface Device {
  readonly known: GuessCosts
  readonly costs: GuessCosts
  readonly gap: number
  /** The longest row that keeps its states. */
  readonly keptRow?: number
}

const STAIRS: GuessCosts = [
  [1, 1],
  [2, 1.27],
  [8, 1.85],
  [16, 2.2],
  [32, 2.25],
  [64, 2.4],
  [128, 2.7],
  [256, 3.4],
]
const DEVICES: Record<string, Device> = {
  'a CPU with cheap tokens': { known: HOST_GUESSING.costs, costs: HOST_GUESSING.costs, gap: 0 },
  'a CPU whose second token takes half as long again': {
    known: HOST_GUESSING.costs,
    costs: [1, 1.5, 1.65, 1.8, 1.95, 2.1, 2.25, 2.4].map((cost, i) => [i + 1, cost]),
    gap: 0,
  },
  'a GPU': { known: STAIRS, costs: STAIRS, gap: 0.07, keptRow: 31 },
  'a GPU that feeds again what was right': { known: STAIRS, costs: STAIRS, gap: 0.07 },
  'a GPU of other steps': {
    keptRow: 31,
    known: STAIRS,
    costs: STAIRS.map(([tokens, cost]) => [tokens, tokens === 1 ? 1 : 0.9 + cost / 2]),
    gap: 0.07,
  },
}

const costOf = (costs: GuessCosts, tokens: number) => costs.find(([most]) => tokens <= most)?.[1] ?? Number.NaN

function randomly(seed: number): () => number {
  let state = seed
  return () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
    return state / 2 ** 32
  }
}

/** Tokens in the time of a step of one token, where each answer always has so many guesses. */
function fixedRate(
  { costs, gap, keptRow = 0 }: Device,
  answers: number,
  likely: number,
  making: number,
  guesses: number,
): number {
  const random = randomly(5)
  const extra = Array.from({ length: answers }, () => 0)
  let [tokens, time] = [0, 0]
  for (let step = 0; step < 8000 / answers; step++) {
    const most = costs.at(-1)![0]
    const fed = extra.reduce((sum, one) => sum + one + 1, 0)
    const own = Math.min(guesses, Math.floor((most - fed) / answers))
    const every = fed + own * answers <= 8 ? 1 : 3
    time += costOf(costs, fed + own * answers) + (own > 0 ? gap + own * making : 0)
    for (let i = 0; i < answers; i++) {
      let right = 0
      while (right < own && random() < likely) right++
      tokens += right + 1
      const isKept = right === own || extra[i]! + own + 1 <= keptRow
      if (!isKept) extra[i] = extra[i]! + right + 1
      else extra[i] = right === own ? 0 : right % every
    }
  }
  return tokens / time
}

const isSlow = process.env.SKEIN_SLOW === '1'
const LENGTHS = [0, 1, 2, 3, 4, 5, 6, 7, 15, 31, 63]

interface Clock {
  ms: number
  /** Guesses of an answer in the step being planned. */
  longest: number
}

/** Guesses that take so long to make, of which so many are right at the time. */
function source(likely: () => number, making: number, clock: Clock): ProposerSource {
  const random = randomly(3)
  return {
    name: 'draft',
    isAlike: true,
    guessMs: making === 0 ? undefined : making,
    open: (prompt, request, choice) => {
      const drawn = answerOf(prompt, specOf(request, choice, request.sampling.seed ?? 0n), request.maxTokens, V)
      let numKnown = 0
      return {
        isPromising: true,
        add: () => {
          numKnown++
        },
        propose: (most) => {
          // Guesses of all answers are made together.
          clock.ms += making * Math.max(0, most - clock.longest)
          clock.longest = Math.max(most, clock.longest)
          return Array.from({ length: most }, (_, i) => {
            const token = drawn[numKnown + i] ?? 1
            return random() < likely() ? token : (token + 1) % V
          })
        },
      }
    },
  }
}

/** Answers one after the other, and their tokens: fewer where more are made at once. */
const LENGTH = { 1: [8, 256], 4: [4, 128], 32: [2, 100] }

/** Tokens in the time of a step of one token, from the engine's first step on. */
function rateOf(
  device: Device,
  answers: number,
  likely: number,
  making: number | null,
  likelyLate = likely,
): readonly [all: number, late: number] {
  const clock: Clock = { ms: 1, longest: 0 }
  const { keptRow = 0 } = device
  const sizes = { numSpares: 32, numKept: keptRow > 0 ? 192 : 0, keptRow, maxSamples: 320, maxLogits: 320 }
  const runner = new FakeRunner({ numSlots: 32, maxTokens: 1024, vocabSize: V, ...sizes })
  runner.guessCosts = device.known
  const noise = randomly(9)
  runner.onStep = (rows) => {
    const tokens = rows.reduce((sum, row) => sum + row.tokens.length, 0)
    const gap = rows.some(({ guesses }) => guesses !== undefined) ? device.gap : 0
    const isPrompt = rows.some(({ tokens, guesses }) => guesses === undefined && tokens.length === 9)
    clock.longest = 0
    // One step of twenty is held up.
    const late = noise() < 0.05 ? noise() : 0
    if (!isPrompt) clock.ms += (costOf(device.costs, tokens) + gap) * (0.98 + 0.04 * noise()) + late
  }
  let isLate = false
  const proposers = making === null ? [] : [source(() => (isLate ? likelyLate : likely), making, clock)]
  const loop = device.gap > 0 ? 'overlapped' : 'plain'
  const engine = engineOver(runner, { proposers, now: () => clock.ms }, null, loop)
  const [rounds, maxTokens] = LENGTH[answers as 1 | 4 | 32] as [number, number]
  const [all, late] = [
    { tokens: 0, time: 0 },
    { tokens: 0, time: 0 },
  ]
  for (let round = 0; round < rounds; round++) {
    isLate = round >= rounds / 2
    const collected = new Collected()
    for (let i = 0; i < answers; i++) {
      const stop = { strings: [], tokens: [], ignoreEos: true }
      engine.submit(requestOf({ id: `${round} ${i}`, prompt: promptOf(9, i), maxTokens, stop }))
    }
    collected.add(engine.step())
    const [begin, before] = [clock.ms, engine.stats.generatedTokens]
    while (engine.stats.running === answers) collected.add(engine.step())
    for (const sum of isLate ? [all, late] : [all]) {
      sum.tokens += engine.stats.generatedTokens - before
      sum.time += clock.ms - begin
    }
    drain(engine, collected)
  }
  engine.dispose()
  return [all.tokens / all.time, late.tokens / late.time] as const
}

describe.each(Object.entries(DEVICES))('%s', (_, device) => {
  test.each([1, 4, 32].filter((answers) => answers < device.known.at(-1)![0]))('%i answers', (answers) => {
    const missed: string[] = []
    const [plain] = rateOf(device, answers, 0, null)
    for (const making of isSlow ? [0, 0.1, 0.35] : [0, 0.35]) {
      for (let tenths = 0; tenths < 10; tenths += isSlow ? 1 : 3) {
        const likely = tenths / 10
        const fixed = LENGTHS.map((length) => fixedRate(device, answers, likely, making, length))
        const best = Math.max(...fixed) / fixed[0]!
        const [all, late] = rateOf(device, answers, likely, making).map((rate) => rate / plain) as [number, number]
        const cell = `${likely} right, ${making} to make: ${all.toFixed(3)}, then ${late.toFixed(3)} of ${best.toFixed(3)}`
        if (all < 0.97) missed.push(`${cell}: slower than without`)
        if (late < 0.92 * best && best > 1.2) missed.push(`${cell}: less than what can be had`)
      }
    }
    expect(missed).toEqual([])
  })
})

test.each([0, 0.1])('guesses that were wrong and then are right are made again, %d to make', (making) => {
  const device = DEVICES['a GPU']!
  const [plain] = rateOf(device, 1, 0, null)
  const [, late] = rateOf(device, 1, 0, making, 0.9)
  expect(late / plain).toBeGreaterThan(1.2)
})
