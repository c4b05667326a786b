import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import {
  distribution,
  percentile,
  type RequestResult,
  runningOverTime,
  summarise,
} from '../../../src/bench/serve/statistics.ts'

const times = fc.array(fc.double({ min: 0, max: 1e6, noNaN: true }), { minLength: 1, maxLength: 60 })

/** By selection, without sorting: the value with `rank` other values before it. */
function ranked(values: readonly number[], rank: number): number {
  return values.find((value, i) => {
    const before = values.filter((other, j) => other < value || (other === value && j < i))
    return before.length === rank
  })!
}

test('percentiles equal those found by counting', () => {
  fc.assert(
    fc.property(times, fc.integer({ min: 0, max: 100 }), (values, percent) => {
      const rank = ((values.length - 1) * percent) / 100
      const share = rank % 1
      const [low, high] = [ranked(values, Math.floor(rank)), ranked(values, Math.ceil(rank))]
      const expected = low * (1 - share) + high * share
      const actual = percentile(Float64Array.from(values).sort(), percent)
      expect(actual).toBeCloseTo(expected, 6)
    }),
    { seed: 1 },
  )
})

test('a distribution of known values', () => {
  expect(distribution([5, 1, 2, 4, 3])).toEqual({ count: 5, mean: 3, min: 1, median: 3, p90: 4.6, p99: 4.96, max: 5 })
  expect(distribution([])).toBeNull()
})

const answer = { outputTokens: 5, firstMs: 100, endMs: 300, gapsMs: [40, 60, 50, 50] }
const request: RequestResult = {
  dueMs: 0,
  sentMs: 10,
  e2eMs: 310,
  failure: null,
  inputTokens: 7,
  cachedTokens: 2,
  answers: [answer],
}

describe('summary', () => {
  test('of two requests that overlap', () => {
    const second = { ...request, dueMs: 100, sentMs: 100, e2eMs: 400, inputTokens: 3 }
    const summary = summarise([request, second], 500)
    expect(summary).toMatchObject({
      numRequests: 2,
      numSucceeded: 2,
      numFailed: 0,
      failures: [],
      requestsPerSecond: 4,
      inputTokens: { total: 10, perSecond: 20 },
      cachedTokens: 4,
      outputTokens: { total: 10, perSecond: 20 },
      totalTokens: { total: 20, perSecond: 40 },
      peakConcurrency: 2,
      e2eMs: { count: 2, mean: 355 },
      ttftMs: { count: 2, mean: 100 },
      itlMs: { count: 8, mean: 50, min: 40, max: 60 },
      tpotMs: { count: 2, mean: 50 },
      clientWaitMs: { max: 10 },
    })
  })

  test('failures are counted by reason, and in no other figure', () => {
    const failed = (reason: string, message: string) => ({
      ...request,
      failure: { reason, message },
      inputTokens: null,
    })
    const all = [failed('timeout', 'a'), request, failed('http 500', 'b'), failed('timeout', 'c')]
    const summary = summarise(all, 1000)
    expect(summary.failures).toEqual([
      { reason: 'timeout', count: 2, example: 'a' },
      { reason: 'http 500', count: 1, example: 'b' },
    ])
    expect(summary).toMatchObject({
      numRequests: 4,
      numSucceeded: 1,
      numFailed: 3,
      requestsPerSecond: 1,
      totalTokens: { total: 12 },
      e2eMs: { count: 1 },
      itlMs: { count: 4 },
    })
  })

  test('an unknown count makes its totals unknown, not smaller', () => {
    const summary = summarise([request, { ...request, inputTokens: null, cachedTokens: null }], 1000)
    expect(summary.inputTokens).toEqual({ total: null, perSecond: null })
    expect(summary.cachedTokens).toBeNull()
    expect(summary.outputTokens.total).toBe(10)
    expect(summary.totalTokens.total).toBeNull()
  })

  test('an answer of one token has no time per token; one without a stream has no time to the first token', () => {
    const whole = { outputTokens: 9, firstMs: null, endMs: null, gapsMs: [] }
    const single = { ...answer, outputTokens: 1, gapsMs: [] }
    const summary = summarise([{ ...request, answers: [whole, single] }], 1000)
    expect(summary).toMatchObject({ tpotMs: null, itlMs: null, ttftMs: { count: 1 } })
    expect(summary.outputTokens.total).toBe(10)
  })
})

test('a request is in flight between its start and its end', () => {
  const spans = fc.array(fc.record({ sentMs: fc.nat(100), e2eMs: fc.integer({ min: 1, max: 50 }) }), { maxLength: 30 })
  fc.assert(
    fc.property(spans, (all) => {
      const points = runningOverTime(all.map((span) => ({ ...request, ...span })))
      for (const { ms, running } of points.filter(({ ms }, i) => ms !== points[i + 1]?.ms))
        expect(running).toBe(all.filter(({ sentMs, e2eMs }) => sentMs <= ms && ms < sentMs + e2eMs).length)
      const peak = Math.max(0, ...points.map(({ running }) => running))
      const busiest = all.map(
        ({ sentMs: at }) => all.filter(({ sentMs, e2eMs }) => sentMs <= at && at < sentMs + e2eMs).length,
      )
      expect(peak).toBe(Math.max(0, ...busiest))
    }),
    { seed: 1 },
  )
})
