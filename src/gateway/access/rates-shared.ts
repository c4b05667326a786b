/**
 * Shares the counts of requests and tokens per minute in a cluster. Every member counts what it accepts, reports it to
 * the database twice a second, and continues with what is left for all. Requests that several members accept between
 * two reports become a debt that all of them wait for. So a key gets its rate and, at worst, one burst of a minute from
 * each member. Times are the database's.
 */
import type { Database } from '../../cluster/database.ts'
import { RateLimits } from './rate-limits.ts'

const SETTLE_MS = 500
/** How often unused rows are deleted. */
const FORGET_EVERY_MS = 3_600_000

const SETTLE = `
  insert into allowance as a (tenant, kind, capacity, used, level, at)
  select tenant, kind, capacity, used, capacity - used, now()
  from jsonb_to_recordset($1::jsonb) as g(tenant text, kind text, capacity float8, used float8)
  order by tenant, kind
  on conflict (tenant, kind) do update set
    capacity = excluded.capacity, used = excluded.used, at = greatest(a.at, excluded.at),
    level = least(excluded.capacity, a.level + greatest(0,
      extract(epoch from excluded.at - a.at)::float8 * excluded.capacity / 60)) - excluded.used
  returning tenant, kind, level`

interface Settled {
  readonly tenant: string
  readonly kind: string
  readonly level: number
}

export class SharedRates {
  readonly limits: RateLimits
  readonly #database: Database
  readonly #timers: readonly NodeJS.Timeout[]
  #settling: Promise<void> | null = null

  constructor(database: Database, limits = new RateLimits()) {
    this.#database = database
    this.limits = limits
    const forget = "delete from allowance where at < now() - interval '1 hour' and level >= 0"
    this.#timers = [
      // While the database is unreachable, each member counts alone and reports later.
      setInterval(() => void this.settle().catch(() => {}), SETTLE_MS).unref(),
      setInterval(() => void database.query(forget).catch(() => {}), FORGET_EVERY_MS).unref(),
    ]
  }

  /** Reports the usage since the last report, of buckets that were used. */
  async settle(): Promise<void> {
    this.#settling ??= this.#settle().finally(() => {
      this.#settling = null
    })
    await this.#settling
  }

  close(): void {
    for (const timer of this.#timers) clearInterval(timer)
  }

  async #settle(): Promise<void> {
    const used = [...this.limits.buckets()].filter(({ bucket }) => bucket.unsettled !== 0)
    if (used.length === 0) return
    const told = used.map(({ tenant, kind, bucket }) => {
      return { tenant, kind, bucket, capacity: bucket.capacity, used: bucket.unsettled }
    })
    const given = told.map(({ bucket, ...facts }) => facts)
    const { rows } = await this.#database.query<Settled>(SETTLE, [JSON.stringify(given)])
    for (const { tenant, kind, level } of rows) {
      const one = told.find((each) => each.tenant === tenant && each.kind === kind)
      one?.bucket.settle(one.used, level)
    }
  }
}
