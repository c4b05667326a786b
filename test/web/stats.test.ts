import { describe, expect, test } from 'vitest'
import type { Sample } from '../../src/gateway/contract.ts'
import { waitBefore } from '../../web/src/lib/backoff.ts'
import { bytes, count, milliseconds, percent } from '../../web/src/lib/format.ts'
import { answerFigures, columns, HISTORY_SECONDS, partOf, withSample } from '../../web/src/lib/stats.ts'
import { fakeLoad } from './fake-server.ts'

const NONE = { p50: null, p90: null, p99: null }

function sample(at: number, workers: Sample['workers'] = {}): Sample {
  return {
    at,
    workers,
    requests: { open: 0, per_second: 0, errors_per_second: 0 },
    ttft_ms: NONE,
    itl_ms: NONE,
    event_loop_delay_ms: NONE,
    cpu_use: 0.5,
    memory_available_bytes: 1,
    gpus: [],
  }
}

describe('history', () => {
  test('covers its time span, in order, without duplicates', () => {
    const old = [sample(0), sample(1)]
    expect(withSample(old, sample(1))).toBe(old)
    expect(withSample(old, sample(2)).map(({ at }) => at)).toEqual([0, 1, 2])
    expect(withSample(old, sample(HISTORY_SECONDS + 1)).map(({ at }) => at)).toEqual([1, HISTORY_SECONDS + 1])
  })

  test('a pause is a gap in the chart', () => {
    const read = ({ cpu_use }: Sample) => cpu_use
    expect(columns([sample(1), sample(2), sample(60)], [read])).toEqual([
      [1, 2, 3, 60],
      [0.5, 0.5, null, 0.5],
    ])
  })
})

test('all workers together are the sum of each; unknown values do not hide known ones', () => {
  const [a, b] = [fakeLoad(10), { ...fakeLoad(11), rss_bytes: null, states: null }]
  const both = sample(0, { a, b })
  expect(partOf(both, 'a')).toBe(a)
  expect(partOf(both, 'c')).toBeNull()
  expect(partOf(sample(0), null)).toBeNull()
  expect(partOf(both, null)).toMatchObject({
    running: a.running + b.running,
    slots: a.slots + b.slots,
    rss_bytes: a.rss_bytes,
    states: a.states,
  })
})

test('the figures of an answer', () => {
  const times = { sent: 100, first: 150, last: 1150 }
  expect(answerFigures(times, 101)).toEqual({ ttftMs: 50, tokensPerSecond: 100 })
  expect(answerFigures(times, 1)).toEqual({ ttftMs: 50, tokensPerSecond: null })
  expect(answerFigures({ ...times, last: 151 }, 8).tokensPerSecond).toBeNull()
  expect(answerFigures({ sent: 0, first: null, last: null }, 0)).toEqual({ ttftMs: null, tokensPerSecond: null })
})

test('retries come later and later, and not all at the same moment', () => {
  const longest = [1, 2, 3, 4, 5, 6, 20].map((failures) => waitBefore(failures, 1))
  expect(longest).toEqual([500, 1000, 2000, 4000, 8000, 15_000, 15_000])
  expect(waitBefore(3, 0)).toBe(1500)
})

test('numbers for people', () => {
  expect([0, 0.44, 12.34, 999.6, 1234, 12_345, 4.56e6].map(count)).toEqual([
    '0',
    '0.4',
    '12.3',
    '1,000',
    '1,234',
    '12.3k',
    '4.56M',
  ])
  expect([512, 11_504_093, 3_055_062_912].map(bytes)).toEqual(['512 B', '11.5 MB', '3.06 GB'])
  expect([0, 4.123, 41, 1234, 12_345].map(milliseconds)).toEqual(['0 ms', '4.1 ms', '41 ms', '1.23 s', '12.3 s'])
  expect([0, 0.012, 0.61, 1].map(percent)).toEqual(['0%', '1.2%', '61%', '100%'])
  expect([count(null), bytes(undefined), percent(null)]).toEqual(['–', '–', '–'])
})
