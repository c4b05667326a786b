/**
 * Compiles new grammars, to know whether answers can use them, in threads that may hang or end without harm to any
 * answer. A tenant has one compiled at a time. Next comes one of the tenant whose grammars have taken least time, and
 * for another tenant a second thread starts when the first one takes long: slow grammars delay their own tenant.
 */
import { SkeinError } from '../errors.ts'
import type { Constraint } from './constraint.ts'
import type { Compiled, ToRows } from './matcher-rows.ts'

/** Time limit of one compilation; the machine may be busy. */
const COMPILE_MS = 5000
/** Time limit for the start of a thread. */
const START_MS = 15_000
/** Time that the first thread may take before another tenant gets the second one. */
const PATIENCE_MS = 250
const NUM_LANES = 2

/** A thread, or a fake in tests. */
export interface RowsThread {
  post(message: ToRows): void
  end(): void
}

export interface ThreadEvents {
  /** It has started, and begins with the first message. */
  ready(): void
  compiled(compiled: Compiled): void
  ended(reason: string): void
}

export interface Asker {
  readonly tenant: string
  /** False once its request has been cancelled. */
  readonly isWanted: () => boolean
}

interface Waiter extends Asker {
  readonly resolve: (ms: number) => void
  readonly reject: (error: SkeinError) => void
}

/** A grammar that waits or is compiled, and everybody who waits for it. */
interface Trial {
  readonly key: string
  readonly constraint: Constraint
  readonly waiters: Waiter[]
}

interface Lane {
  thread: RowsThread | null
  isReady: boolean
  trial: Trial | null
  since: number
  limit: NodeJS.Timeout | undefined
}

export class Trials {
  readonly #start: (events: ThreadEvents) => RowsThread
  /** Waiting and running, by key, in the order of requests. */
  readonly #trials = new Map<string, Trial>()
  readonly #lanes = Array.from({ length: NUM_LANES }, (): Lane => {
    return { thread: null, isReady: false, trial: null, since: 0, limit: undefined }
  })
  /** Milliseconds that each tenant's grammars took, since none waited. */
  readonly #used = new Map<string, number>()
  #patience: NodeJS.Timeout | undefined

  constructor(start: (events: ThreadEvents) => RowsThread) {
    this.#start = start
  }

  /** Resolves to the milliseconds it took; rejects with invalid_request if it does not compile. */
  compile(key: string, constraint: Constraint, asker: Asker): Promise<number> {
    return new Promise((resolve, reject) => {
      const trial = this.#trials.get(key) ?? { key, constraint, waiters: [] }
      trial.waiters.push({ ...asker, resolve, reject })
      this.#trials.set(key, trial)
      this.#next()
    })
  }

  dispose(): void {
    clearTimeout(this.#patience)
    for (const lane of this.#lanes) end(lane)
    for (const { waiters } of this.#trials.values()) {
      for (const { reject } of waiters) reject(broken('the engine was closed'))
    }
    this.#trials.clear()
  }

  #next(): void {
    clearTimeout(this.#patience)
    const busy = this.#lanes.filter(({ trial }) => trial !== null)
    const running = new Set(busy.map(({ trial }) => trial))
    for (const trial of this.#trials.values()) {
      // Cancelled requests are not told.
      if (!running.has(trial) && trial.waiters.every(({ isWanted }) => !isWanted())) this.#trials.delete(trial.key)
    }
    if (this.#trials.size === 0) {
      this.#used.clear()
      // The second thread is for rush hours; its memory is not kept.
      for (const lane of this.#lanes.slice(1)) end(lane)
    }
    const served = new Set([...running].flatMap((trial) => tenantsOf(trial!)))
    const claimOf = (trial: Trial) => {
      const tenants = tenantsOf(trial).filter((tenant) => !served.has(tenant))
      // Infinity if it is nobody's turn.
      return Math.min(...tenants.map((tenant) => this.#used.get(tenant) ?? 0))
    }
    let first: Trial | null = null
    let least = Number.POSITIVE_INFINITY
    for (const trial of this.#trials.values()) {
      const claim = running.has(trial) ? least : claimOf(trial)
      if (claim < least) [first, least] = [trial, claim]
    }
    const lane = this.#lanes.find(({ trial }) => trial === null)
    if (first === null || lane === undefined) return
    const wait = Math.max(0, ...busy.map(({ since }) => since + PATIENCE_MS - performance.now()))
    if (wait > 0) this.#patience = setTimeout(() => this.#next(), wait).unref()
    else {
      this.#run(lane, first)
      this.#next()
    }
  }

  #run(lane: Lane, trial: Trial): void {
    lane.trial = trial
    lane.since = performance.now()
    lane.thread ??= this.#startIn(lane)
    this.#watch(lane, lane.isReady ? COMPILE_MS : START_MS + COMPILE_MS)
    const { key, constraint } = trial
    lane.thread.post({ type: 'compile', key, constraint })
  }

  #startIn(lane: Lane): RowsThread {
    const isIt = () => lane.thread === thread
    const thread: RowsThread = this.#start({
      ready: () => {
        if (!isIt()) return
        lane.isReady = true
        if (lane.trial !== null) this.#watch(lane, COMPILE_MS)
      },
      compiled: ({ ms, error, isBloated }) => {
        if (!isIt()) return
        // An instance that has failed may be broken.
        if (isBloated || error !== null) end(lane)
        this.#finish(lane, ms, error === null ? null : SkeinError.fromShape(error))
      },
      ended: (reason) => {
        if (isIt()) this.#fail(lane, broken(reason))
      },
    })
    return thread
  }

  #watch(lane: Lane, ms: number): void {
    clearTimeout(lane.limit)
    lane.limit = setTimeout(() => this.#fail(lane, tooSlow()), ms).unref()
  }

  #fail(lane: Lane, error: SkeinError): void {
    end(lane)
    this.#finish(lane, performance.now() - lane.since, error)
  }

  #finish(lane: Lane, ms: number, error: SkeinError | null): void {
    clearTimeout(lane.limit)
    const { trial } = lane
    lane.trial = null
    if (trial !== null) {
      for (const tenant of tenantsOf(trial)) this.#used.set(tenant, (this.#used.get(tenant) ?? 0) + ms)
      this.#trials.delete(trial.key)
      for (const { resolve, reject } of trial.waiters) {
        if (error === null) resolve(ms)
        else reject(error)
      }
    }
    this.#next()
  }
}

function tenantsOf({ waiters }: Trial): string[] {
  return waiters.map(({ tenant }) => tenant)
}

function end(lane: Lane): void {
  clearTimeout(lane.limit)
  lane.thread?.end()
  lane.thread = null
  lane.isReady = false
}

function tooSlow(): SkeinError {
  const message = `the grammar of the answer takes more than ${COMPILE_MS / 1000} s to compile; make it simpler`
  return new SkeinError('invalid_request', message)
}

function broken(reason: string): SkeinError {
  return new SkeinError('invalid_request', `the grammar of the answer cannot be used: ${reason}`)
}
