/**
 * Scores of prompts by their states: alone and among answers, with late states, and with requests that are cancelled.
 */
import { expect, test } from 'vitest'
import type { GenerateRequest } from '../../src/engine/messages.ts'
import type { StateData } from '../../src/model/runner.ts'
import { someTokens, tinyRunner } from '../helpers/runner.ts'
import { type Collected, drain, engineOver, LOOPS, requestOf } from './kit.ts'

const tokenBytes = { bytesOf: (token: number) => Uint8Array.of(97 + (token % 7)) }

/** Every number of a state changes the score. */
const scoreOf = ([shift, wkv]: StateData): number =>
  [...shift!, ...wkv!].reduce((sum, value, i) => sum + value * Math.sin(i), 0)
const reranker = { score: scoreOf }

const asking = (id: string, prompt: Int32Array): GenerateRequest =>
  requestOf({ id, prompt, isRanked: true, maxTokens: 0, cache: 'no-store' })

function scoreIn(collected: Collected, id: string): number {
  const events = collected.of(id)
  expect(events.map(({ type }) => type)).toEqual(['prompt', 'finish'])
  const [event] = events
  return event?.type === 'prompt' ? event.score! : Number.NaN
}

test.each(LOOPS)('%s: the score alone, among answers and by definition is the same', (loop) => {
  const plain = tinyRunner('cpu', { slots: 1, maxTokens: 128 })
  const limits = { poisonFreedSlots: true, prefillChunk: 13, reranker }
  const runner = tinyRunner('cpu', { slots: 4, maxTokens: 48 })
  const engine = engineOver(runner, limits, null, loop, tokenBytes)
  const asked = [1, 5, 40, 90, 7, 8, 9].map((length) => ({ id: `rank-${length}`, tokens: someTokens(length, length) }))
  for (let i = 0; i < 3; i++) engine.submit(requestOf({ id: `r${i}`, prompt: someTokens(6 + i, i), maxTokens: 6 }))
  for (const { id, tokens } of asked) engine.submit(asking(id, tokens))
  const together = drain(engine)
  for (const { id, tokens } of asked) {
    plain.clearSlot(0)
    plain.step([{ slot: 0, tokens, samples: [] }])
    engine.submit(asking(id, tokens))
    const alone = scoreIn(drain(engine), id)
    expect(scoreIn(together, id), id).toBe(alone)
    expect(alone, id).toBe(scoreOf(plain.readState(0).result()))
  }
  expect(engine.stats.freeSlots).toBe(engine.info.numSlots)
  engine.dispose()
  plain.dispose()
})

test.each(LOOPS)('%s: a request cancelled at any time returns no score, and its slot is free', (loop) => {
  const limits = { poisonFreedSlots: true, reranker }
  const runner = tinyRunner('cpu', { slots: 2, maxTokens: 48 })
  const engine = engineOver(runner, limits, null, loop, tokenBytes)
  for (let turns = 0; turns < 12; turns++) {
    engine.submit(asking('gone', someTokens(20, turns)))
    for (let i = 0; i < turns; i++) engine.turn()
    engine.cancel('gone')
    engine.submit(asking('next', someTokens(20, turns)))
    const collected = drain(engine)
    expect(collected.of('gone')).toEqual([])
    expect(scoreIn(collected, 'next')).not.toBeNaN()
    expect(engine.stats.freeSlots).toBe(2)
  }
  engine.dispose()
})

test('a score that is not finite fails only its own request', () => {
  const broken = { ...reranker, score: (state: StateData) => scoreOf(state) * Number.NaN }
  const runner = tinyRunner('cpu', { slots: 2, maxTokens: 48 })
  const engine = engineOver(runner, { reranker: broken }, null, 'plain', tokenBytes)
  engine.submit(asking('a', someTokens(4, 1)))
  engine.submit(requestOf({ id: 'b', prompt: someTokens(4, 2), maxTokens: 3 }))
  const collected = drain(engine)
  expect(collected.of('a')).toMatchObject([{ type: 'error', error: { code: 'kernel_failed' } }])
  expect(collected.of('b').at(-1)).toMatchObject({ type: 'finish' })
  engine.dispose()
})

test('options that do not apply to scores are refused, and everything without a reranker', () => {
  const fine = asking('a', someTokens(4, 1))
  const engine = engineOver(tinyRunner('cpu', { slots: 2 }), { reranker }, null, 'plain', tokenBytes)
  const wrongs = [{ maxTokens: 1 }, { n: 2 }, { cache: 'use' }, { embedding: 'last' }] as const
  for (const wrong of wrongs) expect(() => engine.submit({ ...fine, ...wrong })).toThrow(/isRanked/)
  engine.dispose()
  const without = engineOver(tinyRunner('cpu', { slots: 2 }), {}, null, 'plain', tokenBytes)
  expect(() => without.submit(fine)).toThrow(/needs a model with a reranker/)
  without.dispose()
})
