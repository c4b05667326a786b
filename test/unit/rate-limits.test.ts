import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { NO_LIMITS } from '../../src/gateway/access/keys.ts'
import { Bucket, RowLine } from '../../src/gateway/access/rate-bucket.ts'
import { RateLimits } from '../../src/gateway/access/rate-limits.ts'

test('of thousands of keys, idle ones are forgotten', () => {
  let now = 0
  const rates = new RateLimits(() => now)
  const caller = (i: number) => {
    const limits = { ...NO_LIMITS, requestsPerMinute: 60 }
    return { tenant: `t${i}`, name: 'k', role: 'user', limits, expiresAt: null } as const
  }
  for (let i = 0; i < 10_000; i++) {
    now += 100
    rates.takeRequest(caller(i), () => {})
  }
  expect(rates.numAccounts).toBeLessThanOrEqual(1000)
  // A key that has used something this minute is remembered.
  expect(rates.useOf(caller(9_999)).requestsLeft).toBe(59)
})

describe('a bucket', () => {
  test('starts full, refills evenly and repays its debt', () => {
    let now = 0
    const bucket = new Bucket(60, () => now)
    bucket.take(60)
    expect(bucket.level).toBe(0)
    expect(bucket.msUntil(1)).toBe(1000)
    now = 2500
    expect(bucket.level).toBeCloseTo(2.5)
    bucket.take(32.5)
    expect(bucket.level).toBeCloseTo(-30)
    expect(bucket.msUntil(1)).toBeCloseTo(31_000)
    now = 1e9
    expect(bucket.level).toBe(60)
    expect(bucket.msUntilFull).toBe(0)
  })

  test('keeps what is left when its allowance changes', () => {
    const bucket = new Bucket(100, () => 0)
    bucket.take(30)
    bucket.capacity = 200
    expect(bucket.level).toBe(70)
    bucket.capacity = 10
    expect(bucket.level).toBe(10)
  })

  test('never gives more than its allowance plus one full bucket', () => {
    const step = fc.record({ wait: fc.integer({ min: 0, max: 5000 }), want: fc.nat(20) })
    fc.assert(
      fc.property(fc.array(step, { maxLength: 100 }), (steps) => {
        let now = 0
        let taken = 0
        const bucket = new Bucket(120, () => now)
        for (const { wait, want } of steps) {
          now += wait
          if (bucket.level < want) continue
          bucket.take(want)
          taken += want
        }
        expect(taken).toBeLessThanOrEqual(120 + (120 * now) / 60_000 + 1e-6)
      }),
    )
  })
})

describe('rows', () => {
  test('wait for others of the same key, in order', async () => {
    const line = new RowLine(4)
    const order: string[] = []
    const enter = (name: string, numRows: number) => line.take(numRows).then(() => order.push(name))
    await enter('a', 3)
    const b = enter('b', 2)
    const c = enter('c', 1)
    expect(line.hasRoomFor(1)).toBe(false)
    line.release(3)
    await Promise.all([b, c])
    expect(order).toEqual(['a', 'b', 'c'])
    expect(line.numRunning).toBe(3)
  })

  test('that give up make room for those behind them', async () => {
    const line = new RowLine(2)
    await line.take(1)
    const leaving = new AbortController()
    const large = line.take(2, leaving.signal)
    const small = line.take(1)
    leaving.abort(new Error('gone'))
    await expect(large).rejects.toThrow('gone')
    await small
    await expect(line.take(1, AbortSignal.abort(new Error('early')))).rejects.toThrow('early')
    expect(line.numRunning).toBe(2)
  })

  test('never exceed the limit, and none waits forever', async () => {
    const job = fc.record({ rows: fc.integer({ min: 1, max: 5 }), leaves: fc.boolean() })
    await fc.assert(
      fc.asyncProperty(fc.array(job, { maxLength: 40 }), async (jobs) => {
        const line = new RowLine(5)
        let running = 0
        const all = jobs.map(async ({ rows, leaves }) => {
          const leaving = new AbortController()
          const entered = line.take(rows, leaving.signal)
          if (leaves) leaving.abort(new Error('gone'))
          try {
            await entered
          } catch {
            return
          }
          running += rows
          expect(running).toBeLessThanOrEqual(5)
          await Promise.resolve()
          running -= rows
          line.release(rows)
        })
        await Promise.all(all)
        expect(line.numRunning).toBe(0)
        expect(line.hasRoomFor(5)).toBe(true)
      }),
    )
  })
})
