/** Guesses from the prediction of a request: what is guessed, and the effect on the answer. */
import { expect, test } from 'vitest'
import { Engine } from '../../src/engine/engine.ts'
import { PREDICTION } from '../../src/engine/speculation/lookup.ts'
import type { BatchRow } from '../../src/model/runner.ts'
import { DeferredRunner } from '../helpers/deferred-runner.ts'
import { FakeRunner } from '../helpers/fake-runner.ts'
import { drain, engineOver, LOOPS, promptOf, requestOf, soloAnswer, specOf, tokenBytes, V } from './kit.ts'

function predicted(...tokens: number[]) {
  const request = requestOf({ id: 'p', prompt: promptOf(3), prediction: Int32Array.from(tokens) })
  return PREDICTION.open(request.prompt, request, 0, specOf(request, 0, 1n), null)!
}

test('a prediction is followed from its start, until the answer differs', () => {
  const text = predicted(1, 2, 3, 4, 5)
  expect(text.propose(3)).toEqual([1, 2, 3])
  for (const token of [1, 2]) text.add(token)
  expect(text.propose(9)).toEqual([3, 4, 5])
  text.add(9)
  expect(text.isPromising).toBe(false)
  expect(text.propose(9)).toEqual([])
})

test('it continues at the next place that has the last two tokens, or else the last one', () => {
  const text = predicted(1, 2, 3, 1, 2, 4, 7, 8, 9, 1, 2, 5)
  // Something else, then the start of a passage: the first place is nearest.
  for (const token of [50, 51, 1, 2]) text.add(token)
  expect(text.propose(1)).toEqual([3])
  for (const token of [6, 1, 2]) text.add(token)
  expect(text.propose(1)).toEqual([4])
  for (const token of [4, 7, 8, 9]) text.add(token)
  for (const token of [60, 7, 8]) text.add(token)
  expect(text.propose(4)).toEqual([9, 1, 2, 5])
  for (const token of [9, 1, 2, 5]) text.add(token)
  expect(text.isPromising).toBe(false)
})

test('a request without a prediction gets no guesses from one', () => {
  const request = requestOf({ id: 'p', prompt: promptOf(3) })
  expect(PREDICTION.open(request.prompt, request, 0, specOf(request, 0, 1n), null)).toBeNull()
})

test.each(LOOPS)('predicted answers are the same in fewer steps: %s', (loop) => {
  const make = () => {
    const sizes = { numSlots: 4, maxTokens: 64, maxLogits: 32, maxSamples: 32, numSpares: 4 }
    const runner = new FakeRunner({ ...sizes, vocabSize: V })
    return engineOver(runner, { proposers: [PREDICTION] }, null, loop)
  }
  const plain = requestOf({ id: 'a', prompt: promptOf(12), maxTokens: 60 })
  const answer = soloAnswer(plain)
  const { tokens } = answer
  // Two of its tokens differ, one is missing.
  const wrong = tokens.map((token, i) => (i === 10 || i === 11 ? (token + 1) % V : token))
  const prediction = Int32Array.from(wrong.filter((_, i) => i !== 30))
  const steps = [undefined, Int32Array.from(tokens), prediction].map((prediction) => {
    const engine = make()
    engine.submit({ ...plain, prediction })
    const collected = drain(engine)
    expect(collected.answer('a')).toEqual(answer)
    const { predictionGuessed: guessed, predictionAccepted: accepted, steps } = engine.stats
    const finish = collected.of('a').find((event) => event.type === 'finish')
    const counts = { prediction: { accepted, rejected: guessed - accepted } }
    expect(finish).toEqual(expect.objectContaining(guessed === 0 ? {} : { guesses: counts }))
    engine.dispose()
    return steps
  })
  expect(steps[1]).toBeLessThan(steps[0]! / 3)
  expect(steps[2]).toBeLessThan(steps[0]! / 2)
})

test('nothing is launched beside a row with guesses, even when its request has gone', () => {
  const sizes = { numSlots: 4, maxTokens: 64, maxLogits: 32, maxSamples: 32, numSpares: 4 }
  const late = new DeferredRunner(new FakeRunner({ ...sizes, vocabSize: V }))
  late.patience = 3
  const launched: (readonly BatchRow[])[] = []
  const launch = late.launch.bind(late)
  late.launch = (rows) => {
    launched.push(rows)
    return launch(rows)
  }
  const engine = new Engine(late, tokenBytes, { proposers: [PREDICTION], now: () => 0 })
  const plain = requestOf({ id: 'a', prompt: promptOf(12), maxTokens: 60 })
  engine.submit({ ...plain, prediction: Int32Array.from(soloAnswer(plain).tokens) })
  engine.submit(requestOf({ id: 'b', prompt: promptOf(5), maxTokens: 60 }))
  const hasGuesses = () => launched.at(-1)?.some(({ guesses }) => guesses !== undefined) === true
  while (!hasGuesses()) engine.turn()
  engine.cancel('a')
  const before = engine.stats.steps
  while (engine.turn() === null) expect(engine.stats.steps).toBe(before)
  drain(engine)
  engine.dispose()
})
