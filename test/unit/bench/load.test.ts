import { setTimeout as delay } from 'node:timers/promises'
import { expect, test } from 'vitest'
import { runLoad } from '../../../src/bench/serve/bench.ts'

const never = new AbortController().signal

/** A request that takes `ms`, and the highest number of simultaneous requests. */
function counter(ms: number) {
  const seen = { running: 0, most: 0 }
  const send = async (i: number) => {
    seen.running++
    seen.most = Math.max(seen.most, seen.running)
    await delay(ms)
    seen.running--
    return i
  }
  return { seen, send }
}

test('every request is sent once, none before it is due', async () => {
  const { send } = counter(5)
  const arrivalsMs = [0, 10, 10, 40]
  const ends: number[] = []
  const load = await runLoad({
    arrivalsMs,
    concurrency: 9,
    send,
    onEnd: (numEnded) => ends.push(numEnded),
    signal: never,
  })
  expect(ends).toEqual([1, 2, 3, 4])
  expect(load.requests.map(({ value }) => value).toSorted()).toEqual([0, 1, 2, 3])
  for (const { dueMs, sentMs, value } of load.requests) {
    expect(dueMs).toBe(arrivalsMs[value])
    expect(sentMs).toBeGreaterThanOrEqual(dueMs)
  }
  // The last one is sent at 40 and takes 5; a Node timer may fire a millisecond early.
  expect(load.durationMs).toBeGreaterThanOrEqual(44)
})

test('the limit on requests in flight is reached and never exceeded', async () => {
  const { seen, send } = counter(2)
  const arrivalsMs = new Array<number>(40).fill(0)
  const load = await runLoad({ arrivalsMs, concurrency: 3, send, onEnd: () => {}, signal: never })
  expect(load.requests).toHaveLength(40)
  expect(seen.most).toBe(3)
})

test('an interrupted load sends no more requests and returns those that have ended', async () => {
  const abort = new AbortController()
  const { send } = counter(1)
  const load = await runLoad({
    arrivalsMs: [0, 0, 60_000, 60_000],
    concurrency: 9,
    send,
    onEnd: (numEnded) => {
      if (numEnded === 2) abort.abort()
    },
    signal: abort.signal,
  })
  expect(load.requests.map(({ value }) => value).toSorted()).toEqual([0, 1])
  expect(load.durationMs).toBeLessThan(10_000)
})

test('a blocked event loop is noticed', async () => {
  const busy = async () => {
    const end = performance.now() + 150
    while (performance.now() < end);
  }
  const load = await runLoad({
    // The second is sent when the loop has been idle for a while.
    arrivalsMs: [20, 200],
    concurrency: 1,
    send: busy,
    onEnd: () => {},
    signal: never,
  })
  // On a busy machine the measurements are more than a hundred, and the stop is beyond their p99.
  expect(load.eventLoopDelayMs.max).toBeGreaterThan(100)
  expect(load.eventLoopDelayMs.max).toBeGreaterThanOrEqual(load.eventLoopDelayMs.p99)
})
