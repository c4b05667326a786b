import { describe, expect, test } from 'vitest'
import { logprobOf, scoreRows } from '../../src/engine/answer/logprobs.ts'
import { Engine } from '../../src/engine/engine.ts'
import type { EngineEvent, TokenText } from '../../src/engine/messages.ts'
import { FakeRunner } from '../helpers/fake-runner.ts'
import { drain, promptOf, requestOf, soloAnswer, tokenBytes, V } from './kit.ts'

const UNSOUND = [
  ['NaN', [0, Number.NaN, 1]],
  ['+∞', [0, Infinity, 1]],
  ['all −∞', [-Infinity, -Infinity, -Infinity]],
] as const

describe('scoreRows', () => {
  test('log softmax of rows at their tokens and the best tokens of each, ties by the smaller id', () => {
    const logSum = Math.log(2 * Math.exp(3) + Math.exp(1))
    const logits = Float32Array.of(9, 0, 0, 0, 1, 3, 3, -Infinity, 1, 3, 3, -Infinity)
    const scores = scoreRows(logits, 4, Int32Array.of(0, 0, 3), 3)
    expect(scores.topIds).toEqual(Int32Array.of(0, 1, 2, 1, 2, 0, 1, 2, 0))
    expect(logprobOf(scores, 1, 0)?.logprob).toBeCloseTo(1 - logSum, 12)
    expect(logprobOf(scores, 1, 0)?.top[0]).toEqual({ token: 1, logprob: scores.topLogprobs[3] })
    expect(scores.topLogprobs[3]).toBeCloseTo(3 - logSum, 12)
    expect(logprobOf(scores, 2, 3)?.logprob).toBe(-Infinity)
    expect(logprobOf(scoreRows(logits, 4, Int32Array.of(2), 0), 0, 2)?.top).toEqual([])
  })

  test.each(UNSOUND)('a row with %s is no distribution', (_, row) => {
    const scores = scoreRows(Float32Array.of(0, 1, 2, ...row), 3, Int32Array.of(0, 0), 1)
    expect(logprobOf(scores, 0, 0)).not.toBeNull()
    expect(logprobOf(scores, 1, 0)).toBeNull()
  })
})

function run(options: { maxLogits: number; maxTokens: number; neighbours: number }) {
  const runner = new FakeRunner({ vocabSize: V, numSlots: 4, ...options })
  const engine = new Engine(runner, tokenBytes, { poisonFreedSlots: true, prefillChunk: 7 })
  for (let i = 0; i < options.neighbours; i++) {
    engine.submit(requestOf({ id: `n${i}`, prompt: promptOf(20, i), maxTokens: 30 }))
  }
  const request = requestOf({
    prompt: promptOf(37),
    maxTokens: 6,
    n: 2,
    promptLogprobs: 3,
    logprobs: 2,
  })
  engine.submit(request)
  return { request, collected: drain(engine), engine }
}

function promptLogprobs(events: readonly EngineEvent[]): readonly (TokenText | null)[] | null {
  const [first] = events
  return first?.type === 'prompt' ? first.logprobs : null
}

describe('in the engine', () => {
  const whole = run({ maxLogits: 64, maxTokens: 64, neighbours: 0 })
  const scored = promptLogprobs(whole.collected.of('a'))

  test('every prompt token but the first has one, with bytes: the same array for the same token', () => {
    const arrays = new Map<number, Uint8Array>()
    expect(scored).toHaveLength(37)
    expect(scored?.[0]).toBeNull()
    for (const [i, entry] of scored!.entries()) {
      if (entry === null) continue
      expect(entry.token).toBe(whole.request.prompt[i])
      expect(entry.bytes).toEqual(tokenBytes.bytesOf(entry.token))
      expect(entry.top).toHaveLength(3)
      expect(entry.topBytes).toEqual(entry.top.map(({ token }) => tokenBytes.bytesOf(token)))
      for (const [i, { token }] of entry.top.entries()) {
        const earlier = arrays.get(token) ?? entry.topBytes[i]!
        expect(entry.topBytes[i]).toBe(earlier)
        arrays.set(token, earlier)
      }
    }
  })

  test.each([
    { maxLogits: 4, maxTokens: 64, neighbours: 0 },
    { maxLogits: 4, maxTokens: 64, neighbours: 2 },
    { maxLogits: 9, maxTokens: 11, neighbours: 2 },
    { maxLogits: 64, maxTokens: 6, neighbours: 1 },
  ])('%o gives the same log-probabilities', (options) => {
    const { collected, request } = run(options)
    expect(promptLogprobs(collected.of('a'))).toEqual(scored)
    expect(collected.answer('a', 1)).toEqual(soloAnswer(request, 1))
  })

  test('each answer token has its own', () => {
    const events = whole.collected.of('a').filter((event) => event.type === 'text')
    expect(events.length).toBeGreaterThan(0)
    for (const { tokens, logprobs } of events) {
      expect(logprobs?.map(({ token }) => token)).toEqual(tokens)
      for (const entry of logprobs ?? []) expect(entry.topBytes).toHaveLength(2)
    }
  })

  test('where nobody reads along, the same answer comes some tokens at a time, the first at once', () => {
    const textsOf = (isGathered: boolean) => {
      const engine = new Engine(new FakeRunner({ vocabSize: V }), tokenBytes, { poisonFreedSlots: true })
      engine.submit(requestOf({ id: 'a', prompt: promptOf(5), maxTokens: 200, logprobs: 2, isGathered }))
      return drain(engine)
        .of('a')
        .filter((event) => event.type === 'text')
    }
    const [each, gathered] = [textsOf(false), textsOf(true)]
    const whole = (texts: typeof each) => ({
      text: texts.map(({ text }) => text).join(''),
      tokens: texts.flatMap(({ tokens }) => tokens),
      logprobs: texts.flatMap(({ logprobs }) => logprobs ?? []),
    })
    expect(whole(gathered)).toEqual(whole(each))
    expect(whole(each).tokens.length).toBeGreaterThan(100)
    expect(gathered[0]).toEqual(each[0])
    expect(gathered.length).toBeLessThan(each.length / 5)
  })

  test('prompt logits that are not finite fail the request', () => {
    const runner = new FakeRunner({ vocabSize: V })
    const engine = new Engine(runner, tokenBytes, { poisonFreedSlots: true })
    runner.hasNanPromptLogits = true
    engine.submit(requestOf({ promptLogprobs: 0 }))
    engine.submit(requestOf({ id: 'b' }))
    const collected = drain(engine)
    expect(collected.error('a')).toBe('kernel_failed')
    expect(collected.answer('b')).toEqual(soloAnswer(requestOf({ id: 'b' })))
  })
})
