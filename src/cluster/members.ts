/**
 * The live engine processes, as a gateway follows them: by notifications of the database, and by polling every two
 * seconds.
 */
import type { Database } from './database.ts'
import { MEMBERS_CHANNEL, type WorkerFacts } from './lease.ts'
import { isNear, protocolOf } from './protocol.ts'

interface Member extends WorkerFacts {
  readonly inFlight: number
  /** By the database's clock at the last query. */
  readonly leftMs: number
}

const POLL_MS = 2000

export class Members {
  readonly #database: Database
  #list: readonly Member[] = []
  #strangers: readonly Member[] = []
  #timer: NodeJS.Timeout | null = null
  #stopListening: (() => void) | null = null
  #refreshing: Promise<void> | null = null
  #isStale = false

  constructor(database: Database) {
    this.#database = database
  }

  /** The last result: while the database is unreachable, the list stays the same. */
  get list(): readonly Member[] {
    return this.#list
  }

  /** Live members whose release is too far from this one; they get no requests. */
  get strangers(): readonly Member[] {
    return this.#strangers
  }

  /** Resolves when the list is known. */
  async start(pollMs = POLL_MS): Promise<void> {
    const refresh = () => void this.refresh().catch(() => {})
    this.#stopListening = this.#database.listen(MEMBERS_CHANNEL, refresh)
    this.#timer = setInterval(refresh, pollMs).unref()
    await this.refresh()
  }

  /** Queries now; when it resolves, the list includes everything that happened before the call. */
  async refresh(): Promise<void> {
    this.#isStale = true
    while (this.#isStale) {
      this.#refreshing ??= this.#ask().finally(() => {
        this.#refreshing = null
      })
      await this.#refreshing
    }
  }

  close(): void {
    if (this.#timer !== null) clearInterval(this.#timer)
    this.#stopListening?.()
  }

  async #ask(): Promise<void> {
    this.#isStale = false
    const { rows } = await this.#database.query<Member>(
      `select id, node, url, model, fingerprint, slots, info, in_flight as "inFlight",
         (extract(epoch from expires - now()) * 1000)::float as "leftMs"
       from worker where expires > now() order by id`,
    )
    const near = rows.filter(({ info }) => isNear(protocolOf(info)))
    this.#list = near
    this.#strangers = rows.filter((row) => !near.includes(row))
  }
}
