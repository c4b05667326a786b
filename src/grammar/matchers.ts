/**
 * The grammars of an engine's answers, as the engine sees them: rows that are told the drawn tokens, and whose mask of
 * allowed next tokens is ready when their thread has written it. One thread compiles new grammars, so that one that
 * takes too long or crashes its instance harms no answer. Other threads follow the answers, and get only grammars that
 * the first could compile. A thread that hangs or ends is replaced, and its answers continue, except the one that it
 * was working on.
 */
import { createHash } from 'node:crypto'
import { availableParallelism } from 'node:os'
import { Worker } from 'node:worker_threads'
import { SkeinError } from '../errors.ts'
import type { Constraint } from './constraint.ts'
import type { Compiled, RowsOptions, Step, ToRows } from './matcher-rows.ts'
import { MAX_THREADS, SharedMasks } from './shared-masks.ts'
import type { TokenTable } from './vocabulary.ts'

/** Time limit of one compilation and of one turn of the answers; the machine may be busy. */
const COMPILE_MS = 5000
/** Time limit for the start of a thread. */
const START_MS = 15_000
const TURN_MS = 10_000
/** Grammars that compiled successfully. */
const MAX_KNOWN = 256
/** Answers per thread before another thread starts, as far as there are processors. */
const ROWS_A_THREAD = 32
const CORES_A_THREAD = 2

/** A thread, or a fake in tests. */
interface RowsThread {
  post(message: ToRows): void
  end(): void
}

interface ThreadEvents {
  compiled(compiled: Compiled): void
  ended(reason: string): void
}

export type StartThread = (options: RowsOptions, events: ThreadEvents) => RowsThread

interface MatcherOptions {
  readonly tokens: () => TokenTable
  readonly vocabSize: number
  readonly numRows: number
  /** Maximum threads that follow answers; absent: by the number of processors. */
  readonly numThreads?: number
  readonly start?: StartThread
}

interface Waiting {
  readonly ask: ToRows
  readonly resolve: () => void
  readonly reject: (error: SkeinError) => void
}

interface Grammar {
  readonly key: string
  readonly constraint: Constraint
}

/** Applies a grammar to the tokens of a request's answers. */
export interface AnswerRules {
  open(): Matcher
  advance(matcher: Matcher, token: number): void
  close(matcher: Matcher): void
}

export class Matchers {
  readonly #options: MatcherOptions
  readonly #start: StartThread
  /** Created with the first grammar. */
  #shared: { readonly masks: SharedMasks; readonly tokens: TokenTable } | null = null
  #trial: RowsThread | null = null
  /** Threads that follow answers, started as needed. */
  readonly #rows: (RowsThread | null)[]
  readonly #known = new Set<string>()
  /** Running compilations, by key, and what waits for them. */
  readonly #trials = new Map<string, Promise<void>>()
  /** In the order of requests. */
  readonly #waiting = new Map<number, Waiting>()
  #limit: NodeJS.Timeout | undefined
  #lastId = 0
  readonly #open = new Map<number, Matcher>()
  readonly #free: number[]
  #steps: Step[] = []
  #watch: NodeJS.Timeout | null = null
  /** The last turn of each row: an answer never waits for one of the row's previous answer. */
  readonly #turns: Int32Array

  constructor(options: MatcherOptions) {
    this.#options = options
    this.#start = options.start ?? startThread
    const numThreads = options.numThreads ?? Math.floor(availableParallelism() / CORES_A_THREAD)
    this.#rows = new Array(Math.min(Math.max(1, numThreads), MAX_THREADS)).fill(null)
    this.#turns = new Int32Array(options.numRows)
    this.#free = Array.from({ length: options.numRows }, (_, row) => options.numRows - 1 - row)
  }

  /** Resolves when answers can use it; rejects with invalid_request if it does not compile. */
  async compile(constraint: Constraint): Promise<Grammar> {
    const key = createHash('sha256').update(JSON.stringify(constraint)).digest('base64')
    if (!this.#known.has(key)) {
      let trial = this.#trials.get(key)
      if (trial === undefined) {
        trial = this.#try(key, constraint).finally(() => this.#trials.delete(key))
        this.#trials.set(key, trial)
      }
      await trial
    }
    return { key, constraint }
  }

  /** `forces`: required text is not drawn. */
  rules(grammar: Grammar, forces: boolean): AnswerRules {
    return {
      open: () => this.open(grammar, forces),
      advance: (matcher, token) => this.advance(matcher, token),
      close: (matcher) => this.close(matcher),
    }
  }

  open({ key, constraint }: Grammar, forces: boolean): Matcher {
    const row = this.#free.pop()
    if (row === undefined) throw new SkeinError('internal', 'more answers with grammars than rows')
    const { masks } = this.#share()
    const matcher = new Matcher(row, { key, constraint }, forces, masks, this.#turns)
    this.#open.set(row, matcher)
    const thread = this.#threadOf(row)
    const rows = this.#rows[thread] ?? this.#startRows(thread)
    this.#rows[thread] = rows
    rows.post(matcher.opening())
    this.#watch ??= setInterval(() => this.#look(), TURN_MS / 4).unref()
    return matcher
  }

  close(matcher: Matcher): void {
    if (!this.#open.delete(matcher.row)) return
    this.#steps = this.#steps.filter(({ row }) => row !== matcher.row)
    this.#rows[this.#threadOf(matcher.row)]?.post({ type: 'close', row: matcher.row })
    this.#free.push(matcher.row)
  }

  /** Records a drawn token. flush() sends it with the others of its step. */
  advance(matcher: Matcher, token: number): void {
    this.#steps.push(matcher.next(token))
  }

  flush(): void {
    if (this.#steps.length === 0) return
    for (const [thread, rows] of this.#rows.entries()) {
      const steps = this.#steps.filter(({ row }) => this.#threadOf(row) === thread)
      if (steps.length > 0) rows?.post({ type: 'advance', steps })
    }
    this.#steps = []
  }

  #threadOf(row: number): number {
    return Math.floor(row / ROWS_A_THREAD) % this.#rows.length
  }

  /** Waits until every waiting row is written, or until the time is over. */
  wait(ms: number): void {
    const masks = this.#shared?.masks
    const end = performance.now() + ms
    while (masks !== undefined) {
      const { signal } = masks
      const left = end - performance.now()
      if (left <= 0 || [...this.#open.values()].every(({ isReady }) => isReady)) return
      masks.wait(signal, left)
    }
  }

  dispose(): void {
    if (this.#watch !== null) clearInterval(this.#watch)
    clearTimeout(this.#limit)
    for (const { reject } of this.#waiting.values()) reject(broken('the engine was closed'))
    this.#waiting.clear()
    this.#trial?.end()
    for (const rows of this.#rows) rows?.end()
    this.#trial = null
    this.#rows.fill(null)
  }

  #share() {
    const { numRows, vocabSize, tokens } = this.#options
    this.#shared ??= { masks: new SharedMasks(numRows, Math.ceil(vocabSize / 32)), tokens: tokens() }
    return this.#shared
  }

  #optionsOfRows(thread: number): RowsOptions {
    const { masks, tokens } = this.#share()
    const { numRows, vocabSize } = this.#options
    return { tokens, vocabSize, numRows, memory: masks.memory, thread }
  }

  /** Compiles in a thread that can be ended without harm. */
  #try(key: string, constraint: Constraint): Promise<void> {
    return new Promise((resolve, reject) => {
      const id = ++this.#lastId
      const ask: ToRows = { type: 'compile', id, key, constraint }
      const done = () => {
        this.#known.add(key)
        if (this.#known.size > MAX_KNOWN) this.#known.delete([...this.#known][0]!)
        resolve()
      }
      this.#waiting.set(id, { ask, resolve: done, reject })
      this.#trial ??= this.#startTrial()
      this.#trial.post(ask)
      if (this.#waiting.size === 1) this.#watchTrial(START_MS)
    })
  }

  #startTrial(): RowsThread {
    const trial: RowsThread = this.#start(this.#optionsOfRows(0), {
      compiled: (compiled) => {
        if (this.#trial === trial) this.#tried(compiled)
      },
      ended: (reason) => {
        if (this.#trial === trial) this.#restartTrial(broken(reason))
      },
    })
    return trial
  }

  /** Watches the first waiting compilation, which is the running one. */
  #watchTrial(extraMs = 0): void {
    clearTimeout(this.#limit)
    if (this.#waiting.size === 0) return
    const late = () => this.#restartTrial(tooSlow())
    this.#limit = setTimeout(late, COMPILE_MS + extraMs).unref()
  }

  #tried({ id, error, isBloated }: Compiled): void {
    const waiting = this.#waiting.get(id)
    this.#waiting.delete(id)
    if (error === null) waiting?.resolve()
    else waiting?.reject(SkeinError.fromShape(error))
    // An instance that has failed may be broken.
    if (isBloated || error !== null) this.#restartTrial(null)
    else this.#watchTrial()
  }

  /** `error`: the error of the running compilation. The others go to the next thread. */
  #restartTrial(error: SkeinError | null): void {
    this.#trial?.end()
    this.#trial = null
    const [first] = this.#waiting.keys()
    if (error !== null && first !== undefined) {
      this.#waiting.get(first)!.reject(error)
      this.#waiting.delete(first)
    }
    if (this.#waiting.size > 0) {
      this.#trial = this.#startTrial()
      for (const { ask } of this.#waiting.values()) this.#trial.post(ask)
    }
    this.#watchTrial(START_MS)
  }

  #startRows(thread: number): RowsThread {
    const rows: RowsThread = this.#start(this.#optionsOfRows(thread), {
      compiled: () => {},
      ended: () => {
        if (this.#rows[thread] === rows) this.#restart(thread)
      },
    })
    return rows
  }

  /** A turn that takes too long is blamed on the row in progress. */
  #look(): void {
    const { masks } = this.#share()
    const late = [...this.#open.values()].filter((matcher) => matcher.waitsMs > TURN_MS)
    for (const thread of new Set(late.map(({ row }) => this.#threadOf(row)))) {
      this.#open.get(masks.busyRowOf(thread))?.fail()
      this.#restart(thread)
    }
  }

  #restart(thread: number): void {
    this.#rows[thread]?.end()
    const isOwn = ({ row }: { readonly row: number }) => this.#threadOf(row) === thread
    this.#steps = this.#steps.filter((step) => !isOwn(step))
    const rows = this.#startRows(thread)
    this.#rows[thread] = rows
    for (const matcher of this.#open.values()) if (isOwn(matcher) && !matcher.hasFailed) rows.post(matcher.opening())
  }
}

/** One answer's position in a grammar. */
export class Matcher {
  readonly row: number
  readonly #grammar: Grammar
  readonly #forces: boolean
  readonly #masks: SharedMasks
  readonly #turns: Int32Array
  /** All tokens of the answer so far, including accepted forced ones. */
  readonly #tokens: number[] = []
  /** The turn that it waits for, and since when. */
  #turn: number
  #since = performance.now()
  #hasTaken = false
  #hasFailed = false

  constructor(row: number, grammar: Grammar, forces: boolean, masks: SharedMasks, turns: Int32Array) {
    this.row = row
    this.#grammar = grammar
    this.#forces = forces
    this.#masks = masks
    this.#turns = turns
    this.#turn = ++turns[row]!
  }

  /** Whether its mask and forced tokens are up to date with the last token. */
  get isReady(): boolean {
    return this.#hasFailed || this.#masks.turnOf(this.row) === this.#turn
  }

  get hasFailed(): boolean {
    return this.#hasFailed || (this.isReady && this.#masks.statusOf(this.row) === 'failed')
  }

  /** Whether its forced tokens were taken, so that the next token may be drawn with its mask. */
  get hasTaken(): boolean {
    return this.#hasTaken
  }

  get waitsMs(): number {
    return this.isReady ? 0 : performance.now() - this.#since
  }

  /** Tokens that may come next. Valid once it is ready. */
  get mask(): Uint32Array {
    return this.#masks.maskOf(this.row)
  }

  /** Required next tokens, which are returned once; the mask is for the token after them. */
  takeForced(): readonly number[] {
    this.#hasTaken = true
    const forced = this.#masks.forcedOf(this.row)
    this.#tokens.push(...forced)
    return forced
  }

  /** Its answer cannot continue. */
  fail(): void {
    this.#hasFailed = true
  }

  /** Used by matchers.ts: what its thread must do for another token. */
  next(token: number): Step {
    this.#tokens.push(token)
    this.#hasTaken = false
    this.#since = performance.now()
    this.#turn = ++this.#turns[this.row]!
    return { row: this.row, turn: this.#turn, token }
  }

  /** Used by matchers.ts: what a new thread must know. */
  opening(): ToRows {
    this.#since = performance.now()
    const tokens = [...this.#tokens]
    const [row, turn, forces] = [this.row, this.#turn, this.#forces]
    return { type: 'open', row, turn, ...this.#grammar, tokens, forces }
  }
}

function startThread(options: RowsOptions, events: ThreadEvents): RowsThread {
  const place = new URL('./thread.ts', import.meta.url).href.replace(/\.ts$/, '.js')
  const worker = new Worker(new URL(place.replace('/src/', '/dist/')), { workerData: options })
  worker.unref()
  worker.on('message', (compiled: Compiled) => events.compiled(compiled))
  worker.on('error', (error) => events.ended(error.message))
  return { post: (message) => worker.postMessage(message), end: () => void worker.terminate() }
}

function tooSlow(): SkeinError {
  const message = `the grammar of the answer takes more than ${COMPILE_MS / 1000} s to compile; make it simpler`
  return new SkeinError('invalid_request', message)
}

function broken(reason: string): SkeinError {
  return new SkeinError('invalid_request', `the grammar of the answer cannot be used: ${reason}`)
}
