import fc from 'fast-check'
import { expect, test } from 'vitest'
import type { ServeBench } from '../../../src/bench/serve/bench.ts'
import { htmlReport, ticks } from '../../../src/bench/serve/page.ts'
import { figureRows, headline, warnings } from '../../../src/bench/serve/report.ts'
import { type RequestResult, summarise } from '../../../src/bench/serve/statistics.ts'

function requests(count: number): RequestResult[] {
  return Array.from({ length: count }, (_, i) => ({
    dueMs: i,
    sentMs: i,
    e2eMs: 100 + (i % 7),
    failure: null,
    inputTokens: 3,
    cachedTokens: 1,
    answers: [{ outputTokens: 3, firstMs: 10 + (i % 5), endMs: 50, gapsMs: [20, 0] }],
  }))
}

function benchOf(results: readonly RequestResult[], more: Partial<ServeBench> = {}): ServeBench {
  return {
    model: 'demo',
    numPlanned: results.length,
    summary: summarise(results, 5000),
    eventLoopDelayMs: { p99: 1, max: 2 },
    outputTokensFrom: ['usage'],
    requests: results.map((result) => ({ ...result, tokensFrom: 'usage' })),
    ...more,
  }
}

const date = new Date(0)

test('a page has figures and four charts, and loads no other resources', () => {
  const page = htmlReport(benchOf(requests(50)), 'a setting', date)
  expect(page).toContain('50 of 50 requests succeeded in 5.00 s')
  expect(page.match(/<svg /g)).toHaveLength(4)
  expect(page.match(/<circle /g)).toHaveLength(100)
  expect(page).not.toMatch(/src=|href=|url\(|@import|<script|NaN|Infinity|undefined/)
})

test('names from servers and users cannot become markup', () => {
  const bench = benchOf(requests(2), { model: '<script>alert(1)</script>' })
  const page = htmlReport(bench, '"quoted" & <b>', date)
  expect(page).not.toMatch(/<script|<b>/)
  expect(page).toContain('&#38; &#60;b&#62;')
})

test('a page of a long run stays small', () => {
  const page = htmlReport(benchOf(requests(20_000)), '', date)
  expect(page.length).toBeLessThan(300_000)
  expect(page).toContain('Latency of 2000 requests, evenly picked')
})

test.each([
  ['no stream', requests(3).map((one) => ({ ...one, answers: [] }))],
  [
    'all text arrives at once',
    requests(3).map((one) => ({ ...one, answers: [{ outputTokens: 2, firstMs: 0, endMs: 0, gapsMs: [0] }] })),
  ],
  ['nothing', []],
])('a page of %s is complete', (_, results) => {
  expect(htmlReport(benchOf(results), '', date)).not.toMatch(/NaN|Infinity|undefined/)
})

test('axes reach the largest value in a few round steps', () => {
  fc.assert(
    fc.property(fc.double({ min: 1e-6, max: 1e9, noNaN: true }), (max) => {
      const all = ticks(max)
      expect(all[0]).toBe(0)
      expect(all.at(-1)).toBeGreaterThanOrEqual(max * (1 - 1e-9))
      expect(all.at(-2)).toBeLessThan(max)
      expect(all.length).toBeGreaterThanOrEqual(4)
      expect(all.length).toBeLessThanOrEqual(9)
    }),
    { seed: 1 },
  )
})

test('the page reports what was not sent, what failed and what is doubtful', () => {
  const failure = { reason: 'http 429', message: 'the line is full' }
  const results = requests(3).map((one, i) => (i === 0 ? { ...one, failure } : one))
  const bench = benchOf(results, {
    numPlanned: 5,
    eventLoopDelayMs: { p99: 5, max: 1200 },
    outputTokensFrom: ['events'],
  })
  expect(headline(bench)).toBe('2 of 5 requests succeeded in 5.00 s; 2 were not sent')
  expect(warnings(bench)[0]).toBe('1 failed: http 429 (first: the line is full)')
  expect(warnings(bench)[1]).toMatch(/client was 5 ms late at its own timers \(p99; at most 1200 ms\)/)
  expect(figureRows(bench)).toContainEqual(['input tokens', '6 (1.2/s), 2 of them cached'])
  expect(figureRows(bench)).toContainEqual(['output tokens', '6 (1.2/s), counted by events: no usage was sent'])
})
