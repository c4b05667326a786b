/** Cases of the engine's bench with a scripted runner, and the minimum time they are compared with. */
import { expect, test } from 'vitest'
import { benchEngine, rooflineSeconds } from '../../../src/bench/engine.ts'
import type { BatchRow } from '../../../src/model/runner.ts'
import { DeferredRunner } from '../../helpers/deferred-runner.ts'
import { FakeRunner } from '../../helpers/fake-runner.ts'

test('decode and prefill run as requested, with and without draws, in steps that fit', async () => {
  const runner = new FakeRunner({ numSlots: 4, maxTokens: 10 })
  const seen = { drawing: 0, silent: 0, feeding: 0 }
  runner.onStep = (rows: readonly BatchRow[]) => {
    const draws = rows.some(({ samples }) => samples.length > 0)
    seen[draws ? 'drawing' : 'silent']++
    if (rows.some(({ tokens }) => tokens[0]! < 0)) seen.feeding++
  }
  const plan = { decode: [1, 4], mixed: [], prefill: [{ prompts: 3, tokens: 8 }], minRepeats: 5, minSeconds: 0 }
  const told: string[] = []
  const rows = await benchEngine(new DeferredRunner(runner), plan, ({ kind }) => told.push(kind))
  expect(told).toEqual(['decode', 'decode', 'prefill'])
  expect(rows.map(({ batch, tokens }) => [batch, tokens])).toEqual([
    [1, 1],
    [4, 1],
    [3, 8],
  ])
  for (const { batch, tokens, step } of rows) {
    expect(step.repeats).toBeGreaterThanOrEqual(5)
    expect(step.tokensPerSecond).toBeCloseTo((1000 * batch * tokens) / step.milliseconds, 6)
    expect(step.lowMilliseconds).toBeLessThanOrEqual(step.highMilliseconds)
  }
  expect(Math.max(...runner.log.map(({ tokens }) => tokens))).toBe(10)
  // Every decode step of a case but the first feeds the draws of the previous one.
  expect(seen.feeding).toBeGreaterThanOrEqual(2 * (5 + 2))
  expect(Math.min(seen.drawing, seen.silent)).toBeGreaterThan(20)
})

test('if a runner cannot feed draws within a step, each step takes a part of the rows', async () => {
  const runner = new FakeRunner({ numSlots: 8, maxTokens: 2000 })
  const late = new DeferredRunner(runner, 3, false)
  const prompts = [{ prompts: 2, tokens: 600 }]
  const plan = { decode: [8], mixed: [], prefill: prompts, minRepeats: 4, minSeconds: 0 }
  await benchEngine(late, plan)
  expect(late.deepest).toBe(3)
  const decode = runner.log.filter(({ tokens }) => tokens < 100)
  expect(decode.map(({ slots }) => slots.join()).slice(0, 4)).toEqual([...['0,3,6', '1,4,7', '2,5', '0,3,6']])
  const prefill = runner.log.filter(({ tokens }) => tokens >= 100)
  expect(prefill.map(({ tokens }) => tokens).slice(0, 3)).toEqual([400, 400, 400])
})

test('every step of a mixed case has the same number of prompt tokens, and answers that feed their draws', async () => {
  const runner = new FakeRunner({ numSlots: 5, maxTokens: 40 })
  let seen = 0
  runner.onStep = (rows: readonly BatchRow[]) => {
    expect(rows.map(({ tokens }) => tokens.length)).toEqual([1, 1, 1, 16])
    if (rows.slice(0, 3).every(({ tokens }) => tokens[0]! < 0)) seen++
  }
  const mixed = [{ rows: 3, tokens: 16 }]
  const plan = { decode: [], mixed, prefill: [], minRepeats: 4, minSeconds: 0 }
  const [row] = await benchEngine(new DeferredRunner(runner), plan)
  expect(row).toMatchObject({ kind: 'mixed', batch: 3, tokens: 16 })
  expect(row!.step.tokensPerSecond).toBeCloseTo((1000 * 19) / row!.step.milliseconds, 6)
  expect(seen).toBeGreaterThan(4)
  // On a pipeline the prompt is in the first part of the rows.
  const late = new FakeRunner({ numSlots: 5, maxTokens: 40 })
  await benchEngine(new DeferredRunner(late, 3, false), plan)
  expect(late.log.slice(0, 3).map(({ tokens }) => tokens)).toEqual([17, 1, 1])
})

test('the least time: reading or arithmetic, then the states', () => {
  const { info } = new FakeRunner({ vocabSize: 100 })
  const model = {
    ...info,
    stateShape: { ...info.stateShape, channels: 10 },
    numParameters: 5000,
    weightBytes: 12_000,
    tableBytes: 2000,
    stateBytes: 300,
  }
  const limits = { bytesPerSecond: 1000, operationsPerSecond: 10_000 }
  const decode = { kind: 'decode' as const, batch: 1, tokens: 1 }
  expect(rooflineSeconds(model, decode, 8, limits)).toBeCloseTo(10 + 0.6)
  // 3 000 of the body and 1 000 of the head, two operations each.
  expect(rooflineSeconds(model, { ...decode, batch: 40 }, 64, limits)).toBeCloseTo(32 + 24)
  // In two steps the weights are read twice, but the head is needed once.
  const prefill = { kind: 'prefill' as const, batch: 1, tokens: 16 }
  expect(rooflineSeconds(model, prefill, 8, limits)).toBeCloseTo(20 + 0.6)
})
