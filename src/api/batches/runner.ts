/**
 * Runs batches, a few at a time and one of each tenant, with what the models have to spare. What has become of a line is stored
 * before the next takes its place, so whatever ends the server, a line is run again or has its one result. Which server runs
 * a batch is said by a lease in the store; who has lost it keeps nothing more.
 */
import { randomBytes } from 'node:crypto'
import { setTimeout as delay } from 'node:timers/promises'
import {
  advance,
  type BatchRow,
  type BatchStatus,
  type BatchStore,
  type Facts,
  type FileReader,
  type FileRow,
  type LineResult,
  note,
  UNFINISHED,
} from '../../batches/store.ts'
import { SkeinError } from '../../errors.ts'
import { checkLines, findLines, type LineBounds, type LinePlace, readLine } from './input.ts'

export interface RowOutcome {
  readonly status: number
  readonly requestId: string
  readonly body: object
  readonly warnings: string | null
}

export interface AskedRow {
  readonly endpoint: string
  readonly body: object
  readonly tenant: string
  /** The same for every try. */
  readonly id: string
}

export interface RowRunner {
  /** The model has room for one more beside those that others ask for. `running`: rows of batches. */
  hasRoom(body: object, running: number): boolean
  /** Throws what another try may mend, or for the signal; any other failure is an outcome. */
  run(row: AskedRow, signal: AbortSignal): Promise<RowOutcome>
}

interface BatchRunnerOptions {
  readonly store: BatchStore
  readonly rows: RowRunner
  readonly bounds: LineBounds
  /** Receives errors that no client sees. */
  readonly onError: (error: unknown) => void
  /** Unix seconds. */
  readonly now?: () => number
}

/** Batches that are run at once. */
const MOST_RUNNING = 4
const VERDICT_POLL_MS = 500
const ROOM_POLL_MS = 50
const RETRY_MS = 1000
/** Lines that are not run, per write. */
const LINES_AT_ONCE = 500
/** After a failure of this server's own, such as a full disk. */
const PAUSE_MS = 10_000
const TIDY_SECONDS = 60

export class BatchRunner {
  readonly #options: BatchRunnerOptions
  readonly #now: () => number
  /** In the store's leases. */
  readonly #owner = randomBytes(12).toString('hex')
  readonly #running = new Map<string, Run>()
  readonly #closing = new AbortController()
  /** Looks at the store. */
  #looking: Promise<void> | null = null
  #isStale = false
  /** The last attempt failed and was reported. */
  #isFailing = false
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
    this.#timer ??= setInterval(() => this.wake(), this.store.pollMs).unref()
    this.wake()
  }

  /** Rows under way are run again by the next process that takes the batch. */
  async stop(): Promise<void> {
    if (this.#timer !== null) clearInterval(this.#timer)
    this.#closing.abort()
    await this.#looking
    await Promise.all([...this.#running.values()].map(({ done }) => done))
    const { store, onError } = this.#options
    // Where that fails the lease ends by time.
    if (store.isInUse) await store.release(this.#owner).catch(onError)
    store.close()
  }

  /** Looks for batches that can begin, and keeps the leases of those that run. */
  wake(): void {
    this.#isStale = true
    this.#looking ??= this.#look().finally(() => {
      this.#looking = null
    })
  }

  async #look(): Promise<void> {
    const { store, onError } = this.#options
    try {
      while (this.#isStale && store.isInUse && !this.#closing.signal.aborted) {
        this.#isStale = false
        for (const { batch, lost } of this.#running.values()) if (!(await store.claim(batch, this.#owner))) lost.abort()
        for (const batch of await store.unfinished(this.#owner)) await this.#consider(batch)
        if (this.#now() - this.#tidiedAt < TIDY_SECONDS) continue
        this.#tidiedAt = this.#now()
        await store.tidy(this.#tidiedAt)
      }
      this.#isFailing = false
    } catch (error) {
      if (!this.#isFailing) onError(error)
      this.#isFailing = true
    }
  }

  async #consider(batch: BatchRow): Promise<void> {
    const { store, onError } = this.#options
    const closing = this.#closing.signal
    const tenants = [...this.#running.values()].map((run) => run.batch.tenant)
    const isNext = this.#running.size < MOST_RUNNING && !tenants.includes(batch.tenant)
    if (!isNext || closing.aborted || !(await store.claim(batch, this.#owner))) return
    const lost = new AbortController()
    const done = this.#run(batch, AbortSignal.any([lost.signal, closing]))
      .catch(async (error) => {
        if (closing.aborted || lost.signal.aborted || error instanceof LeaseLost) return
        onError(error)
        await delay(PAUSE_MS, undefined, { signal: closing }).catch(() => {})
      })
      .finally(() => this.#running.delete(batch.id))
    this.#running.set(batch.id, { batch, lost, done })
  }

  async #run(batch: BatchRow, signal: AbortSignal): Promise<void> {
    const { store, bounds } = this.#options
    const file = await store.openFile(batch.data.inputFile)
    if (file === null) {
      const message = 'the input file is gone'
      const errors = [{ code: 'input_file_gone', message, line: null, param: 'input_file_id' }]
      await this.#advance(batch, UNFINISHED, 'finalizing', { errors })
      await this.#finish(batch, 'failed')
      return
    }
    try {
      const places = await findLines(file)
      // Nothing was run of it yet.
      if (batch.data.total === 0) {
        const errors = await checkLines(file, places, batch.data.endpoint, bounds)
        signal.throwIfAborted()
        if (errors.length > 0) {
          await this.#advance(batch, ['validating', 'cancelling'], 'failed', { errors })
          return
        }
        await this.#advance(batch, ['validating'], 'in_progress', { total: places.length })
      }
      await this.#runLines(batch, file, places, signal)
    } finally {
      await file.close()
    }
  }

  /** Until every line has a result, or the batch is called off or out of time. */
  async #runLines(batch: BatchRow, file: FileReader, places: readonly LinePlace[], own: AbortSignal): Promise<void> {
    const { store } = this.#options
    const ending = new AbortController()
    const signal = AbortSignal.any([ending.signal, own])
    const done = await store.linesDone(batch.id)
    const underWay = new Set<Promise<void>>()
    let failure: unknown = null
    let verdict = await this.#verdictOf(batch)
    const look = async () => {
      verdict ??= await this.#verdictOf(batch)
      if (verdict !== null) ending.abort()
    }
    // A store that does not answer says so to the next result.
    const watch = setInterval(() => void look().catch(() => {}), VERDICT_POLL_MS)
    try {
      for (const [line, place] of places.entries()) {
        if (done.has(line)) continue
        const row = await readLine(file, place, batch.data.endpoint)
        await this.#untilRoom(row.body, signal)
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
      verdict ??= await this.#verdictOf(batch)
    } finally {
      clearInterval(watch)
    }
    own.throwIfAborted()
    if (failure !== null) throw failure
    // A batch is complete with its last line, however late.
    if (verdict === 'expired' && (await store.linesDone(batch.id)).size === places.length) verdict = null
    if (verdict !== null) await this.#answerRest(batch, file, places, verdict)
    await this.#finish(batch, verdict ?? 'completed')
  }

  /** Why no more lines are run; null: they are. */
  async #verdictOf({ id, tenant, data }: BatchRow): Promise<'cancelled' | 'expired' | null> {
    const batch = await this.#options.store.batch(tenant, id)
    if (batch?.status === 'cancelling') return 'cancelled'
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
    const { rows } = this.#options
    const { endpoint } = data
    const row = { endpoint, body, tenant, id: idOf(id, line) }
    for (;;) {
      try {
        const outcome = await rows.run(row, signal)
        if (signal.aborted) return
        const { status, requestId, warnings } = outcome
        const response = { status_code: status, request_id: requestId, body: outcome.body }
        const said = warnings === null ? response : { ...response, warnings }
        const text = lineOf(id, line, customId, { response: said, error: null })
        await this.#keep(id, [{ line, isFailed: status >= 400, text }])
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
    file: FileReader,
    places: readonly LinePlace[],
    verdict: 'cancelled' | 'expired',
  ): Promise<void> {
    const { store } = this.#options
    const done = await store.linesDone(id)
    const why = verdict === 'cancelled' ? 'the batch was cancelled' : 'the batch ran out of time'
    const error = { code: `batch_${verdict}`, message: `${why} before this request was run` }
    const results: LineResult[] = []
    for (const [line, place] of places.entries()) {
      if (done.has(line)) continue
      const { customId } = await readLine(file, place, data.endpoint)
      const text = lineOf(id, line, customId, { response: null, error })
      results.push({ line, isFailed: true, text })
      if (results.length === LINES_AT_ONCE) await this.#keep(id, results.splice(0))
    }
    await this.#keep(id, results)
  }

  async #keep(batch: string, results: readonly LineResult[]): Promise<void> {
    if (!(await this.#options.store.addResults(batch, this.#owner, results))) throw new LeaseLost()
  }

  async #finish(batch: BatchRow, status: BatchStatus): Promise<void> {
    const { store } = this.#options
    const now = this.#now()
    // Called off from here on, it has ended all the same.
    await this.#advance(batch, UNFINISHED, 'finalizing', {})
    const { data } = (await store.batch(batch.tenant, batch.id)) ?? batch
    const counts = await store.countsOf({ ...batch, data })
    const expires = data.outputSeconds === null ? null : now + data.outputSeconds
    const fileOf = (kind: string, count: number): FileRow | null => {
      // The id of this attempt: a file that another attempt wrote stays as it is.
      const id = `file-${randomBytes(16).toString('hex')}`
      const filename = `${batch.id}_${kind}.jsonl`
      const { tenant } = batch
      const row = { id, tenant, filename, purpose: 'batch_output', bytes: 0, created: now, expires }
      return count === 0 ? null : row
    }
    const files = { output: fileOf('output', counts.completed), error: fileOf('error', counts.failed) }
    const ended: BatchRow = {
      ...batch,
      status,
      data: {
        ...data,
        counts,
        outputFile: files.output?.id ?? null,
        errorFile: files.error?.id ?? null,
        times: { ...data.times, [status]: now },
      },
    }
    if (!(await store.finish(ended, this.#owner, files))) throw new LeaseLost()
  }

  /** Where it is in another status by now, as after a cancel, that stays. */
  async #advance({ id }: BatchRow, from: readonly BatchStatus[], status: BatchStatus, change: Facts) {
    const { store } = this.#options
    const isTold = await advance(store, id, { from, status, change, now: this.#now() })
    // The results of its lines are worth keeping, whatever its status is.
    if (!isTold) await note(store, id, change)
  }
}

interface Run {
  readonly batch: BatchRow
  /** Aborted when another has the batch. */
  readonly lost: AbortController
  readonly done: Promise<void>
}

/** Another runs the batch. */
class LeaseLost extends Error {}

/** Another try may succeed: no room, a limit for a while, a worker that comes back. */
function isPassing(thrown: unknown): boolean {
  const { code } = SkeinError.from(thrown)
  return ['queue_full', 'rate_limited', 'model_not_loaded', 'aborted'].includes(code)
}

function lineOf(batch: string, line: number, customId: string, what: object): string {
  return JSON.stringify({ id: idOf(batch, line), custom_id: customId, ...what })
}

function idOf(batch: string, line: number): string {
  return `batch_req_${batch}_${line}`
}
