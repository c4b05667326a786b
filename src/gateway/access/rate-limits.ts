/**
 * Enforces the limits of each key: requests and tokens per minute, parallel rows, bytes of kept states. A request is
 * refused as a whole, before its first token; running answers are never cut. An observer of the engine's requests
 * counts rows and tokens, so that every dialect, `n` and batches count alike.
 */
import type { ServedModel } from '../../api/models.ts'
import type { Database } from '../../cluster/database.ts'
import type { EngineCall, EngineCalls, GenerateRequest } from '../../engine/messages.ts'
import { SkeinError } from '../../errors.ts'
import type { Observer, Watch } from '../routing/observed.ts'
import type { Principal } from './auth.ts'
import { Bucket, RowLine } from './rate-bucket.ts'

interface RateUse {
  readonly requestsLeft: number | null
  readonly tokensLeft: number | null
  readonly rowsRunning: number | null
}

type RateHeaders = Readonly<Record<string, string>>

/** The time when a row ends is unknown. Random, so that clients do not all retry at once. */
const ROW_RETRY_SECONDS = [1, 4] as const

export class RateLimits {
  readonly #accounts = new Map<string, Account>()
  readonly #now: () => number

  constructor(now: () => number = () => performance.now()) {
    this.#now = now
  }

  get numAccounts(): number {
    return this.#accounts.size
  }

  /** Counts a request. The headers report the remaining allowance, whether it passes or throws `rate_limited`. */
  takeRequest(principal: Principal, setHeaders: (headers: RateHeaders) => void): void {
    const account = this.#accountOf(principal)
    if (account === null) return
    const { requests } = account
    const isRefused = requests !== null && requests.level < 1
    if (!isRefused) requests?.take(1)
    setHeaders(account.headers)
    if (isRefused) {
      const limit = `${requests.capacity} requests per minute`
      throw limited(`this key may make ${limit}`, requests.msUntil(1) / 1000)
    }
  }

  /** Applies the caller's limits to one HTTP request and everything that is generated for it. */
  observers(principal: Principal): readonly Observer[] {
    const account = this.#accountOf(principal)
    return account === null ? [] : [new RequestMeter(account, principal)]
  }

  /**
   * The remaining allowance of this minute, and running rows; null without a limit, because then nothing is counted.
   */
  useOf(principal: Principal): RateUse {
    const account = this.#accountOf(principal)
    const left = (bucket: Bucket | null | undefined) => (bucket == null ? null : Math.max(0, Math.floor(bucket.level)))
    return {
      requestsLeft: left(account?.requests),
      tokensLeft: left(account?.tokens),
      rowsRunning: principal.limits.rows === null ? null : (account?.rows.numRunning ?? 0),
    }
  }

  #forgetIdle(): void {
    for (const [tenant, account] of this.#accounts) if (account.isAsNew) this.#accounts.delete(tenant)
  }

  *buckets(): Generator<{ tenant: string; kind: 'requests' | 'tokens'; bucket: Bucket }> {
    for (const [tenant, { requests, tokens }] of this.#accounts) {
      if (requests !== null) yield { tenant, kind: 'requests', bucket: requests }
      if (tokens !== null) yield { tenant, kind: 'tokens', bucket: tokens }
    }
  }

  /** Null: nothing is limited. */
  #accountOf({ tenant, limits }: Principal): Account | null {
    if (Object.values(limits).every((limit) => limit === null)) return null
    let account = this.#accounts.get(tenant)
    if (account === undefined) {
      if (this.#accounts.size >= MANY_ACCOUNTS) this.#forgetIdle()
      account = new Account()
      this.#accounts.set(tenant, account)
    }
    account.requests = bucketFor(account.requests, limits.requestsPerMinute, this.#now)
    account.tokens = bucketFor(account.tokens, limits.tokensPerMinute, this.#now)
    // Rows are always counted, because a limit may be set while they run.
    account.rows.limit = limits.rows ?? Number.POSITIVE_INFINITY
    return account
  }
}

/** Above this number, accounts of revoked keys and idle ones are dropped, as that makes no difference. */
const MANY_ACCOUNTS = 1000

class Account {
  requests: Bucket | null = null
  tokens: Bucket | null = null
  readonly rows = new RowLine(Number.POSITIVE_INFINITY)

  /** Nothing runs, and the allowances are full again. */
  get isAsNew(): boolean {
    const isFull = (bucket: Bucket | null) => bucket === null || bucket.msUntilFull <= 0
    return this.rows.isIdle && isFull(this.requests) && isFull(this.tokens)
  }

  /** The rate-limit headers of the OpenAI API. */
  get headers(): RateHeaders {
    return {
      ...(this.requests === null ? {} : bucketHeaders('requests', this.requests)),
      ...(this.tokens === null ? {} : bucketHeaders('tokens', this.tokens)),
    }
  }
}

/** Meters one HTTP request and everything that is generated for it. */
class RequestMeter implements Observer {
  readonly #account: Account
  readonly #principal: Principal
  #isAdmitted = false
  #refusal: SkeinError | null = null

  constructor(account: Account, principal: Principal) {
    this.#account = account
    this.#principal = principal
  }

  async begin(_model: ServedModel, request: GenerateRequest, signal: AbortSignal | undefined): Promise<Watch> {
    const { rows, tokens } = this.#account
    const { n, prompt } = request
    this.#admit(n)
    await rows.take(n, signal)
    tokens?.take(prompt.length)
    return {
      request: this.#bounded(request),
      event: (_event, numDrawn) => tokens?.take(numDrawn),
      end: (ending) => {
        rows.release(n)
        // The queue was full, so the request was not read. A batch retries it until there is room.
        const isTurnedAway =
          ending.how === 'failed' && !ending.hasBegun && SkeinError.from(ending.thrown).code === 'queue_full'
        if (isTurnedAway) tokens?.take(-prompt.length)
      },
    }
  }

  /** Adds the limit on stored bytes to calls that create a session; it is checked where states are counted. */
  readonly paramsOf = <M extends EngineCall>(method: M, params: EngineCalls[M]['params']) => {
    const storedBytes = this.#principal.limits.storedBytes ?? undefined
    return MAKES_SESSION.has(method) ? { ...params, storedBytes } : params
  }

  /** The first rows of a request are refused or run at once; further rows of a batch may wait for them. */
  #admit(numRows: number): void {
    const { rows, tokens } = this.#account
    if (this.#refusal !== null) throw this.#refusal
    if (numRows > rows.limit) {
      const message = `n: ${numRows} answers at once, and this key may have ${rows.limit}`
      throw new SkeinError('invalid_request', message, { param: 'n' })
    }
    if (this.#isAdmitted) return
    this.#refusal = refusalOf(tokens, rows, numRows)
    if (this.#refusal !== null) throw this.#refusal
    this.#isAdmitted = true
  }

  #bounded(request: GenerateRequest): GenerateRequest {
    const { share, storedBytes } = this.#principal.limits
    return { ...request, share: share ?? undefined, storedBytes: storedBytes ?? undefined }
  }
}

const MAKES_SESSION: ReadonlySet<EngineCall> = new Set(['sessions.fork', 'sessions.import', 'sessions.open'])

function refusalOf(tokens: Bucket | null, rows: RowLine, numRows: number): SkeinError | null {
  if (tokens !== null && tokens.level < 1) {
    const message = `this key may use ${tokens.capacity} tokens per minute, prompts included`
    return limited(message, tokens.msUntil(1) / 1000)
  }
  if (rows.hasRoomFor(numRows)) return null
  const message = `this key may have ${rows.limit} rows at once, and ${rows.numRunning} are running`
  const [least, most] = ROW_RETRY_SECONDS
  return limited(message, least + (most - least) * Math.random())
}

function limited(message: string, retryAfterSeconds: number): SkeinError {
  const seconds = Math.max(1, Math.ceil(retryAfterSeconds))
  return new SkeinError('rate_limited', `${message}; retry in ${seconds} s`, { retryAfterSeconds: seconds })
}

function bucketFor(old: Bucket | null, capacity: number | null, now: () => number): Bucket | null {
  if (capacity === null) return null
  if (old === null) return new Bucket(capacity, now)
  old.capacity = capacity
  return old
}

function bucketHeaders(what: string, bucket: Bucket): RateHeaders {
  return {
    [`x-ratelimit-limit-${what}`]: String(bucket.capacity),
    [`x-ratelimit-remaining-${what}`]: String(Math.max(0, Math.floor(bucket.level))),
    [`x-ratelimit-reset-${what}`]: duration(bucket.msUntilFull),
  }
}

/** "850ms", "7.66s", "1m3.5s": the format of the OpenAI API. */
function duration(ms: number): string {
  if (ms < 1000) return `${Math.ceil(ms)}ms`
  const minutes = Math.floor(ms / 60_000)
  const seconds = Math.round((ms - minutes * 60_000) / 10) / 100
  return `${minutes > 0 ? `${minutes}m` : ''}${seconds}s`
}

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

/**
 * Shares the counts of requests and tokens per minute in a cluster. Every member counts what it accepts, reports it to
 * the database twice a second, and continues with what is left for all. Requests that several members accept between
 * two reports become a debt that all of them wait for. So a key gets its rate and, at worst, one burst of a minute from
 * each member. Times are the database's.
 */
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
