/**
 * Runs batches, a few at a time and one of each tenant, with what the models have to spare. What has become of a line is stored
 * before the next takes its place, so whatever ends the server, a line is run again or has its one result. Which server runs
 * a batch is said by a lease in the store.
 */
import { randomBytes } from 'node:crypto'
import { type FileHandle, open } from 'node:fs/promises'
import { setTimeout as delay } from 'node:timers/promises'
import {
  type BatchData,
  type BatchRow,
  type BatchStatus,
  type BatchStore,
  type FileRow,
  UNFINISHED,
} from '../../batches/store.ts'
import { SkeinError } from '../../errors.ts'
import { checkLines, findLines, type LineBounds, type LinePlace, readLine } from './input.ts'

/** What became of one request. */
export interface RowOutcome {
  readonly status: number
  readonly requestId: string
  readonly body: object
  readonly warnings: string | null
}

export interface RowRunner {
  /** The model has room for one more beside those that others ask for. `running`: rows of batches. */
  hasRoom(body: object, running: number): boolean
  /** Throws what another try may mend, or for the signal; any other failure is an outcome. */
  run(endpoint: string, body: object, tenant: string, signal: AbortSignal): Promise<RowOutcome>
}

export interface BatchRunnerOptions {
  readonly store: BatchStore
  readonly rows: RowRunner
  readonly bounds: LineBounds
  /** Told of what nobody else hears of. */
  readonly onError: (error: unknown) => void
  /** Unix seconds. */
  readonly now?: () => number
}

/** Batches that are run at once. */
const MOST_RUNNING = 4
const POLL_MS = 500
const ROOM_POLL_MS = 50
const RETRY_MS = 1000
/** Renewed with every poll. Whoever stalls for longer runs lines that another runs too; the first result counts. */
const LEASE_SECONDS = 5
/** After a failure of this server's own, such as a full disk. */
const PAUSE_MS = 10_000
const TIDY_SECONDS = 60

export class BatchRunner {
  readonly #options: BatchRunnerOptions
  readonly #now: () => number
  /** In the store's leases. */
  readonly #owner = randomBytes(12).toString('hex')
  readonly #running = new Map<string, { readonly tenant: string; readonly done: Promise<void> }>()
  readonly #closing = new AbortController()
  #numRows = 0
  #tidiedAt = 0
  #timer: NodeJS.Timeout | null = null

  constructor(options: BatchRunnerOptions) {
    this.#options = options
    this.#now = options.now ?? (() => Math.floor(Date.now() / 1000))
  }

  get store(): BatchStore {
    return this.#options.store
  }

  /** Goes on with what was begun before. */
  start(): void {
    this.#timer ??= setInterval(() => this.wake(), POLL_MS).unref()
    this.wake()
  }

  /** Rows that are under way are run again by whoever has the batch next. */
  async stop(): Promise<void> {
    if (this.#timer !== null) clearInterval(this.#timer)
    this.#closing.abort()
    await Promise.all([...this.#running.values()].map(({ done }) => done))
    const { store } = this.#options
    if (store.isInUse) store.release(this.#owner)
    store.close()
  }

  /** Looks for batches that can begin, and keeps the leases of those that run. */
  wake(): void {
    const { store, onError } = this.#options
    if (!store.isInUse || this.#closing.signal.aborted) return
    try {
      for (const batch of store.unfinished()) this.#consider(batch)
    } catch (error) {
      onError(error)
    }
    if (this.#now() - this.#tidiedAt < TIDY_SECONDS) return
    this.#tidiedAt = this.#now()
    store.tidy(this.#tidiedAt).catch(onError)
  }

  #consider(batch: BatchRow): void {
    const { store, onError } = this.#options
    const now = this.#now()
    const isMine = this.#running.has(batch.id)
    const tenants = [...this.#running.values()].map(({ tenant }) => tenant)
    const isNext = this.#running.size < MOST_RUNNING && !tenants.includes(batch.tenant)
    if (!isMine && !isNext) return
    if (!store.claim(batch.id, this.#owner, now, now + LEASE_SECONDS) || isMine) return
    const { signal } = this.#closing
    const done = this.#run(batch)
      .catch(async (error) => {
        if (signal.aborted) return
        onError(error)
        await delay(PAUSE_MS, undefined, { signal }).catch(() => {})
      })
      .finally(() => this.#running.delete(batch.id))
    this.#running.set(batch.id, { tenant: batch.tenant, done })
  }

  async #run(batch: BatchRow): Promise<void> {
    const { store, bounds } = this.#options
    const file = await open(store.pathOf(batch.data.inputFile)).catch(goneOrThrow)
    if (file === null) {
      const message = 'the input file is gone'
      const errors = [{ code: 'input_file_gone', message, line: null, param: 'input_file_id' }]
      this.#advance(batch, UNFINISHED, 'finalizing', { errors })
      await this.#finish(batch, 'failed')
      return
    }
    try {
      const places = await findLines(file)
      // Nothing was run of it yet.
      if (batch.data.total === 0) {
        const errors = await checkLines(file, places, batch.data.endpoint, bounds)
        if (errors.length > 0) {
          this.#advance(batch, ['validating', 'cancelling'], 'failed', { errors })
          return
        }
        this.#advance(batch, ['validating'], 'in_progress', { total: places.length })
      }
      await this.#runLines(batch, file, places)
    } finally {
      await file.close()
    }
  }

  /** Until every line has a result, or the batch is called off or out of time. */
  async #runLines(batch: BatchRow, file: FileHandle, places: readonly LinePlace[]): Promise<void> {
    const { store } = this.#options
    const ending = new AbortController()
    const signal = AbortSignal.any([ending.signal, this.#closing.signal])
    const done = store.linesDone(batch.id)
    const underWay = new Set<Promise<void>>()
    let failure: unknown = null
    let verdict = this.#verdictOf(batch)
    const watch = setInterval(() => {
      verdict ??= this.#verdictOf(batch)
      if (verdict !== null) ending.abort()
    }, POLL_MS)
    try {
      for (const [line, place] of places.entries()) {
        if (done.has(line)) continue
        const row = await readLine(file, place, batch.data.endpoint)
        await this.#untilRoom(row.body, signal)
        verdict ??= this.#verdictOf(batch)
        if (verdict !== null || signal.aborted || failure !== null) break
        this.#numRows++
        const work = this.#runLine(batch, line, row, signal)
          .catch((error) => {
            if (!signal.aborted) failure ??= error
          })
          .finally(() => {
            this.#numRows--
            underWay.delete(work)
          })
        underWay.add(work)
      }
      if (verdict !== null) ending.abort()
      await Promise.all(underWay)
      verdict ??= this.#verdictOf(batch)
    } finally {
      clearInterval(watch)
    }
    this.#closing.signal.throwIfAborted()
    if (failure !== null) throw failure
    // With its last line it was done, however late.
    if (verdict === 'expired' && store.linesDone(batch.id).size === places.length) verdict = null
    if (verdict !== null) await this.#answerRest(batch, file, places, verdict)
    await this.#finish(batch, verdict ?? 'completed')
  }

  /** Why no more lines are run; null: they are. */
  #verdictOf({ id, tenant, data }: BatchRow): 'cancelled' | 'expired' | null {
    const status = this.#options.store.batch(tenant, id)?.status
    if (status === 'cancelling') return 'cancelled'
    return this.#now() >= data.expires ? 'expired' : null
  }

  async #untilRoom(body: object, signal: AbortSignal): Promise<void> {
    while (!signal.aborted && !this.#options.rows.hasRoom(body, this.#numRows))
      await delay(ROOM_POLL_MS, undefined, { signal }).catch(() => {})
  }

  async #runLine(
    { id, tenant, data }: BatchRow,
    line: number,
    { customId, body }: { readonly customId: string; readonly body: object },
    signal: AbortSignal,
  ): Promise<void> {
    const { store, rows } = this.#options
    for (;;) {
      try {
        const outcome = await rows.run(data.endpoint, body, tenant, signal)
        if (signal.aborted) return
        const { status, requestId, warnings } = outcome
        const response = { status_code: status, request_id: requestId, body: outcome.body }
        const said = warnings === null ? response : { ...response, warnings }
        const text = lineOf(id, line, customId, { response: said, error: null })
        store.addResult(id, line, status >= 400, text)
        return
      } catch (thrown) {
        if (signal.aborted) return
        if (!isPassing(thrown)) throw thrown
      }
      await delay(RETRY_MS, undefined, { signal }).catch(() => {})
    }
  }

  /** Lines that were not run have a result that says why. */
  async #answerRest(
    { id, data }: BatchRow,
    file: FileHandle,
    places: readonly LinePlace[],
    verdict: 'cancelled' | 'expired',
  ): Promise<void> {
    const { store } = this.#options
    const done = store.linesDone(id)
    const why = verdict === 'cancelled' ? 'the batch was cancelled' : 'the batch ran out of time'
    const error = { code: `batch_${verdict}`, message: `${why} before this request was run` }
    for (const [line, place] of places.entries()) {
      if (done.has(line)) continue
      const { customId } = await readLine(file, place, data.endpoint)
      store.addResult(id, line, true, lineOf(id, line, customId, { response: null, error }))
    }
  }

  async #finish(batch: BatchRow, status: BatchStatus): Promise<void> {
    const { store } = this.#options
    const now = this.#now()
    // Called off from here on, it has ended all the same.
    this.#advance(batch, UNFINISHED, 'finalizing', {})
    const { data } = store.batch(batch.tenant, batch.id) ?? batch
    const counts = store.countsOf({ ...batch, data })
    const expires = data.outputSeconds === null ? null : now + data.outputSeconds
    const fileOf = (kind: string, count: number): FileRow | null => {
      const id = `file-${batch.id}_${kind}`
      const filename = `${batch.id}_${kind}.jsonl`
      const { tenant } = batch
      const row = { id, tenant, filename, purpose: 'batch_output', bytes: 0, created: now, expires }
      return count === 0 ? null : row
    }
    const files = {
      output: fileOf('output', counts.completed),
      error: fileOf('error', counts.failed),
    }
    const ended: BatchData = {
      ...data,
      counts,
      outputFile: files.output?.id ?? null,
      errorFile: files.error?.id ?? null,
      times: { ...data.times, [status]: now },
    }
    await store.finish(batch, status, ended, files)
  }

  /** Where it is in another status by now, as after a cancel, that stays. */
  #advance(
    { id, tenant }: BatchRow,
    from: readonly BatchStatus[],
    status: BatchStatus,
    change: Partial<BatchData>,
  ): void {
    const { store } = this.#options
    const now = store.batch(tenant, id)
    if (now === null) return
    const times = { ...now.data.times, [status]: this.#now() }
    const isTold = store.advance(id, from, status, { ...now.data, ...change, times })
    // What is known of its lines is worth keeping whatever its status is.
    if (!isTold) store.advance(id, [now.status], now.status, { ...now.data, ...change })
  }
}

function goneOrThrow(error: NodeJS.ErrnoException): null {
  if (error.code === 'ENOENT') return null
  throw error
}

/** Another try may succeed: no room, a limit for a while, a worker that comes back. */
function isPassing(thrown: unknown): boolean {
  const { code } = SkeinError.from(thrown)
  return ['queue_full', 'rate_limited', 'model_not_loaded', 'aborted'].includes(code)
}

function lineOf(batch: string, line: number, customId: string, what: object): string {
  return JSON.stringify({ id: `batch_req_${batch}_${line}`, custom_id: customId, ...what })
}
