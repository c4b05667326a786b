/** Limits of a key that several members of a cluster count together. */
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest'
import { Database } from '../../src/cluster/database.ts'
import type { Principal } from '../../src/gateway/access/auth.ts'
import { NO_LIMITS } from '../../src/gateway/access/keys.ts'
import { RateLimits, SharedRates } from '../../src/gateway/access/rate-limits.ts'
import { NO_POSTGRES, type Postgres, startPostgres } from '../helpers/postgres.ts'

const LIMITS = { ...NO_LIMITS, requestsPerMinute: 10 }
const PRINCIPAL: Principal = { ...{ tenant: 't', name: 'ada', role: 'user', limits: LIMITS, expiresAt: null } }

describe.skipIf(NO_POSTGRES !== null)('limits in a cluster', () => {
  let postgres: Postgres
  beforeAll(async () => {
    postgres = await startPostgres()
  })
  afterAll(() => postgres?.remove())

  /** Members whose own clocks stand still: only the database's runs. */
  async function newMembers(count: number) {
    const url = postgres.newDatabase()
    const members = []
    for (let i = 0; i < count; i++) {
      const database = await Database.open(url)
      const rates = new SharedRates(database, new RateLimits(() => 0))
      // Done by the test.
      rates.close()
      onTestFinished(() => database.close())
      const take = (principal = PRINCIPAL) => {
        try {
          rates.limits.takeRequest(principal, () => {})
          return true
        } catch {
          return false
        }
      }
      const left = () => rates.limits.useOf(PRINCIPAL).requestsLeft
      members.push({ rates, database, take, left })
    }
    return members
  }

  /** Nothing is admitted before that moment. */
  const stopClock = (database: Database) => database.query("update allowance set at = now() + interval '1 day'")

  const takeAll = (take: () => boolean, most: number) => Array.from({ length: most }, take).filter(Boolean).length

  test('what one member admits reduces what the others may admit', async () => {
    const [one, two] = await newMembers(2)
    expect(takeAll(one!.take, 6)).toBe(6)
    await one!.rates.settle()
    await stopClock(one!.database)
    expect(two!.take()).toBe(true)
    await two!.rates.settle()
    expect([one!.left(), two!.left()]).toEqual([4, 3])
    expect(takeAll(two!.take, 50)).toBe(3)
    await two!.rates.settle()
    // A minute by the database's clock only.
    await one!.database.query("update allowance set at = now() - interval '1 minute'")
    expect(two!.take()).toBe(false)
    expect(one!.take()).toBe(true)
    await one!.rates.settle()
    expect(one!.left()).toBe(9)
  })

  test('at worst each admits its burst once, and all wait for the debt', async () => {
    const members = await newMembers(3)
    const numRecent = members.map(({ take }) => takeAll(take, 50))
    expect(numRecent).toEqual([10, 10, 10])
    for (const { rates, database } of members) {
      await rates.settle()
      await stopClock(database)
    }
    const { rows } = await members[0]!.database.query<{ level: number }>(
      "select level from allowance where tenant = 't' and kind = 'requests'",
    )
    // Between the first and the second a moment may pass.
    expect(Math.floor(rows[0]!.level)).toBe(-20)
    expect(members.map(({ take }) => take())).toEqual([false, false, false])
  })

  test('without the database each counts for itself, and reports it afterwards', { tags: 'night' }, async () => {
    const [one] = await newMembers(1)
    postgres.crash()
    expect(takeAll(one!.take, 50)).toBe(10)
    await expect(one!.rates.settle()).rejects.toThrow('database')
    postgres.start()
    await expect
      .poll(
        () =>
          one!.rates.settle().then(
            () => 'told',
            () => 'not',
          ),
        { timeout: 30_000 },
      )
      .toBe('told')
    const { rows } = await one!.database.query<{ used: number }>('select used from allowance')
    expect(rows).toEqual([{ used: 10 }])
  })
})
