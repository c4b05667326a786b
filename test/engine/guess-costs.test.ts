/**
 * What guesses are worth by the clock: engines over devices whose steps take as long as those of released models did
 * (docs/dev/measurements.md), with drafts that are right as often as said.
 */
import { describe, expect, test } from 'vitest'
import type { GuessCosts } from '../../src/backend/backend.ts'
import { Draft } from '../../src/engine/speculation/draft.ts'
import type { ProposerSource } from '../../src/engine/speculation/proposer.ts'
import type { BatchRow, Flight, RowResult } from '../../src/model/runner.ts'
import { FakeRunner } from '../helpers/fake-runner.ts'
import { type Script, scripted } from './guesses.ts'
import { Collected, drain, engineOver, promptOf, requestOf, V } from './kit.ts'

interface Clock {
  ms: number
}

/** Milliseconds of steps in which each row has one token, and of others, by tokens. */
interface Device {
  readonly plain: GuessCosts
  readonly several: GuessCosts
}

const msOf = (table: GuessCosts, tokens: number) => table.find(([most]) => tokens <= most)![1]

function timeOf({ plain, several }: Device, rows: readonly BatchRow[]): number {
  const tokens = rows.reduce((sum, row) => sum + row.tokens.length, 0)
  return msOf(tokens === rows.length ? plain : several, tokens)
}

/** Draws the other way so often. */
class Drafter extends FakeRunner {
  likely = 1
  #seed = 1

  override launch(rows: readonly BatchRow[]): Flight<RowResult[]> {
    const flight = super.launch(rows)
    for (const { drawn } of flight.result())
      for (const [i, one] of drawn.entries()) {
        this.#seed = (Math.imul(this.#seed, 1_664_525) + 1_013_904_223) >>> 0
        if (one.token < 0 || this.#seed / 2 ** 32 < this.likely) continue
        // The next launch feeds what stands there.
        const others = drawn as { token: number; logprob: null }[]
        others[i] = { token: (one.token + 1) % V, logprob: null }
      }
    return flight
  }
}

const KNOWN: GuessCosts = [
  [1, 1],
  [2, 1.27],
  [8, 1.85],
  [16, 2.2],
  [32, 2.25],
  [64, 2.4],
  [128, 2.7],
  [256, 3.4],
]

/** 7.2B and 1.5B in f16 and 7.2B in q4 on an H200, and a draft of 0.1B there. */
const DEVICES: Record<string, Device> = {
  '7.2b': {
    plain: [
      [1, 2.76],
      [2, 3.23],
      [4, 4.79],
      [8, 5.02],
      [16, 5.8],
      [32, 5.99],
    ],
    several: [
      [2, 3.66],
      [4, 4.99],
      [8, 5.28],
      [16, 6.28],
      [64, 6.8],
      [128, 7.74],
      [256, 9.66],
    ],
  },
  '7.2b q4': {
    plain: [
      [1, 1.93],
      [2, 2.52],
      [4, 2.66],
      [8, 2.77],
      [32, 4.67],
    ],
    several: [
      [4, 2.7],
      [8, 2.85],
      [16, 3.45],
      [64, 5.5],
      [128, 6.71],
      [256, 9.63],
    ],
  },
  '1.5b': {
    plain: [
      [1, 0.79],
      [2, 0.9],
      [8, 1.5],
      [32, 2.02],
    ],
    several: [
      [2, 1.15],
      [8, 1.6],
      [16, 1.95],
      [64, 2.5],
      [128, 2.95],
      [256, 4.5],
    ],
  },
}
const DRAFT: Device = {
  plain: [
    [1, 0.27],
    [4, 0.41],
    [32, 0.65],
  ],
  several: [
    [2, 0.35],
    [8, 0.5],
    [32, 0.7],
    [64, 0.8],
    [256, 1.2],
  ],
}
/** Of the host, in a step that waited for the one before. */
const WAIT_MS = 0.15
const NUM_TOKENS = 256
const CASES: readonly Guessing[] = ['right', 'wrong', 'mixed', 0, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1]

/** Who guesses: nobody, a script, or a draft that is so often right. */
type Guessing = 'off' | Script | number

function sourceOf(guessing: Guessing, clock: Clock): ProposerSource[] {
  if (typeof guessing === 'string') return guessing === 'off' ? [] : [scripted(guessing)]
  const drafter = new Drafter({ numSlots: 64, maxTokens: 256, vocabSize: V })
  drafter.likely = guessing
  drafter.onStep = (rows) => {
    clock.ms += timeOf(DRAFT, rows)
  }
  return [new Draft(drafter, () => clock.ms)]
}

/** Tokens a millisecond while all are answered, and the answers. */
function serve(device: Device, count: number, guessing: Guessing) {
  const clock: Clock = { ms: 0 }
  const most = 256
  const room = { maxSamples: most, maxLogits: most, numSpares: 32 }
  const runner = new FakeRunner({ numSlots: 32, maxTokens: 512, vocabSize: V, ...room })
  runner.guessCosts = KNOWN
  let isAlone = false
  runner.onStep = (rows) => {
    const hadNone = !isAlone
    isAlone = rows.some(({ guesses }) => guesses !== undefined)
    clock.ms += timeOf(device, rows) + (isAlone ? WAIT_MS : 0) + (hadNone ? 0 : WAIT_MS)
  }
  const limits = { proposers: sourceOf(guessing, clock), now: () => clock.ms }
  const engine = engineOver(runner, limits, null, 'plain')
  const stop = { strings: [], tokens: [], ignoreEos: true }
  const ids = Array.from({ length: count }, (_, i) => `r${i}`)
  for (const [i, id] of ids.entries())
    engine.submit(requestOf({ id, prompt: promptOf(4, i), maxTokens: NUM_TOKENS, stop }))
  const collected = new Collected()
  collected.add(engine.step())
  const begin = clock.ms
  while (engine.stats.running === count) collected.add(engine.step())
  const rate = (engine.stats.generatedTokens - count) / (clock.ms - begin)
  drain(engine, collected)
  engine.dispose()
  return { rate, answers: ids.map((id) => collected.answer(id)) }
}

describe.each(Object.keys(DEVICES))('%s', (name) => {
  test.each([1, 4, 32])('of %i answers none is slower for wrong guesses, and the same', (count) => {
    const off = serve(DEVICES[name]!, count, 'off')
    const ratios = CASES.map((guessing) => {
      const { rate, answers } = serve(DEVICES[name]!, count, guessing)
      expect(answers).toEqual(off.answers)
      return rate / off.rate
    })
    expect(Math.min(...ratios)).toBeGreaterThan(0.97)
    const [always, often] = [ratios[CASES.indexOf(1)]!, ratios[CASES.indexOf(0.9)]!]
    expect(always).toBeGreaterThan(1.3)
    expect(ratios[CASES.indexOf('right')]!).toBeGreaterThan(always)
    if (name !== '1.5b') expect(often).toBeGreaterThan(1.2)
  })
})
