/**
 * The grammars of an engine's answers, as the engine sees them: rows that are told the drawn tokens, and whose mask of
 * allowed next tokens is ready when their thread has written it. Those threads get only grammars that trials.ts could
 * compile, so one that takes too long or crashes its instance harms no answer; slow ones have threads of their own,
 * because those compile them again. A thread that hangs or ends is replaced, and its answers continue, except the one
 * that it was working on.
 */
import { createHash } from 'node:crypto'
import { availableParallelism } from 'node:os'
import { Worker } from 'node:worker_threads'
import { SkeinError } from '../errors.ts'
import type { Constraint } from './constraint.ts'
import { type Grammar, Matcher } from './matcher.ts'
import type { Compiled, RowsOptions, Step } from './matcher-rows.ts'
import { MAX_QUICK, MAX_SLOW, SharedMasks } from './shared-masks.ts'
import { type Asker, type RowsThread, type ThreadEvents, Trials } from './trials.ts'
import type { TokenTable } from './vocabulary.ts'

/** Time limit of one turn of the answers; the machine may be busy. */
const TURN_MS = 10_000
/** Grammars that compiled successfully. */
const MAX_KNOWN = 256
/** A grammar that takes longer to compile is followed in a thread of slow ones; a schema takes 50 to 300 ms. */
const SLOW_MS = 500
/** So is one with such a turn; most take less than 0.1 ms. */
const SLOW_TURN_MS = 25
/** Answers per thread before another thread starts, as far as there are processors. */
const ROWS_A_THREAD = 32
const CORES_A_THREAD = 2

export type StartThread = (options: RowsOptions, events: ThreadEvents) => RowsThread

interface MatcherOptions {
  readonly tokens: () => TokenTable
  readonly vocabSize: number
  readonly numRows: number
  /** Maximum threads that follow most answers; absent: by the number of processors. Slow ones have half as many more. */
  readonly numThreads?: number
  readonly start?: StartThread
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
  readonly #trials: Trials
  /** Threads that follow answers, started as needed: those for most grammars, then those for slow ones. */
  readonly #rows: (RowsThread | null)[]
  readonly #numQuick: number
  /** Milliseconds that each took to compile. */
  readonly #known = new Map<string, number>()
  /** By the row that its thread writes. */
  readonly #open = new Map<number, Matcher>()
  /** Of the rows for most grammars. */
  readonly #free: number[]
  #steps: Step[] = []
  #watch: NodeJS.Timeout | null = null
  /** Counts all rows' turns: an answer never waits for one of its row's previous answer. */
  #lastTurn = 0

  constructor(options: MatcherOptions) {
    this.#options = options
    this.#start = options.start ?? startThread
    const numThreads = options.numThreads ?? Math.floor(availableParallelism() / CORES_A_THREAD)
    this.#numQuick = Math.min(Math.max(1, numThreads), MAX_QUICK)
    this.#rows = new Array(this.#numQuick + Math.min(Math.ceil(this.#numQuick / 2), MAX_SLOW)).fill(null)
    this.#trials = new Trials((events) => this.#start(this.#optionsOfRows(0), events))
    this.#free = Array.from({ length: options.numRows }, (_, row) => options.numRows - 1 - row)
  }

  /** Resolves when answers can use it; rejects with invalid_request if it does not compile. */
  async compile(constraint: Constraint, asker: Asker): Promise<Grammar> {
    const key = createHash('sha256').update(JSON.stringify(constraint)).digest('base64')
    let ms = this.#known.get(key)
    if (ms === undefined) {
      ms = await this.#trials.compile(key, constraint, asker)
      this.#known.set(key, ms)
      if (this.#known.size > MAX_KNOWN) this.#known.delete([...this.#known.keys()][0]!)
    }
    return { key, constraint, isSlow: ms > SLOW_MS }
  }

  /** `forces`: required text is not drawn. */
  rules(grammar: Grammar, forces: boolean): AnswerRules {
    return {
      open: () => this.open(grammar, forces),
      advance: (matcher, token) => this.advance(matcher, token),
      close: (matcher) => this.close(matcher),
    }
  }

  open(grammar: Grammar, forces: boolean): Matcher {
    const row = this.#free.pop()
    if (row === undefined) throw new SkeinError('internal', 'more answers with grammars than rows')
    const { masks } = this.#share()
    const slowRow = row + this.#options.numRows
    const matcher = new Matcher([row, slowRow], grammar, forces, masks)
    this.#enter(matcher)
    this.#watch ??= setInterval(() => this.#look(), TURN_MS / 4).unref()
    return matcher
  }

  #nextTurn(): number {
    // The shared memory has 32 bits for it, and 0 is none.
    this.#lastTurn = (this.#lastTurn + 1) | 0 || 1
    return this.#lastTurn
  }

  #enter(matcher: Matcher): void {
    this.#open.set(matcher.row, matcher)
    const thread = this.#threadOf(matcher)
    const rows = this.#rows[thread] ?? this.#startRows(thread)
    this.#rows[thread] = rows
    rows.post(matcher.opening(this.#nextTurn()))
  }

  close(matcher: Matcher): void {
    if (this.#open.get(matcher.row) !== matcher) return
    this.#leave(matcher)
    this.#free.push(matcher.row % this.#options.numRows)
  }

  #leave(matcher: Matcher): void {
    this.#open.delete(matcher.row)
    this.#steps = this.#steps.filter(({ row }) => row !== matcher.row)
    this.#rows[this.#threadOf(matcher)]?.post({ type: 'close', row: matcher.row })
  }

  /** Records a drawn token. flush() sends it with the others of its step. */
  advance(matcher: Matcher, token: number): void {
    const step = matcher.next(token, this.#nextTurn())
    if (matcher.isSlow || this.#share().masks.msOf(matcher.row) < SLOW_TURN_MS) this.#steps.push(step)
    else {
      this.#leave(matcher)
      matcher.isSlow = true
      this.#enter(matcher)
    }
  }

  flush(): void {
    if (this.#steps.length === 0) return
    for (const [thread, rows] of this.#rows.entries()) {
      const steps = this.#steps.filter(({ row }) => this.#threadOf(this.#open.get(row)!) === thread)
      if (steps.length > 0) rows?.post({ type: 'advance', steps })
    }
    this.#steps = []
  }

  #threadOf({ row, isSlow }: Matcher): number {
    const numQuick = this.#numQuick
    return isSlow ? numQuick + (row % (this.#rows.length - numQuick)) : Math.floor(row / ROWS_A_THREAD) % numQuick
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
    this.#trials.dispose()
    for (const rows of this.#rows) rows?.end()
    this.#rows.fill(null)
  }

  #share() {
    const { numRows, vocabSize, tokens } = this.#options
    this.#shared ??= { masks: new SharedMasks(2 * numRows, Math.ceil(vocabSize / 32)), tokens: tokens() }
    return this.#shared
  }

  #optionsOfRows(thread: number): RowsOptions {
    const { masks, tokens } = this.#share()
    const { numRows, vocabSize } = this.#options
    return { tokens, vocabSize, numRows: 2 * numRows, memory: masks.memory, thread }
  }

  #startRows(thread: number): RowsThread {
    let isReady = false
    const rows: RowsThread = this.#start(this.#optionsOfRows(thread), {
      ready: () => {
        isReady = true
      },
      compiled: () => {},
      ended: () => {
        if (this.#rows[thread] !== rows) return
        if (isReady) this.#blame(thread)
        else this.#giveUp(thread)
      },
    })
    return rows
  }

  #look(): void {
    const late = [...this.#open.values()].filter((matcher) => matcher.waitsMs > TURN_MS)
    for (const thread of new Set(late.map((matcher) => this.#threadOf(matcher)))) this.#blame(thread)
  }

  /** A turn that takes too long, or ends its thread, is that in progress; it may be that of a closed answer. */
  #blame(thread: number): void {
    const busy = this.#share().masks.busyTurnOf(thread)
    for (const matcher of this.#open.values()) if (matcher.turn === busy) matcher.fail()
    this.#restart(thread)
  }

  /** A thread that ends before it is ready would end again: its answers fail, and the next one starts another. */
  #giveUp(thread: number): void {
    this.#rows[thread] = null
    for (const matcher of this.#open.values()) if (this.#threadOf(matcher) === thread) matcher.fail()
  }

  #restart(thread: number): void {
    this.#rows[thread]?.end()
    const isOwn = (matcher: Matcher) => this.#threadOf(matcher) === thread
    this.#steps = this.#steps.filter(({ row }) => !isOwn(this.#open.get(row)!))
    const rows = this.#startRows(thread)
    this.#rows[thread] = rows
    const all = [...this.#open.values()].filter((matcher) => isOwn(matcher) && !matcher.hasFailed)
    for (const matcher of all) rows.post(matcher.opening(this.#nextTurn()))
  }
}

function startThread(options: RowsOptions, events: ThreadEvents): RowsThread {
  const place = new URL('./thread.ts', import.meta.url).href.replace(/\.ts$/, '.js')
  const worker = new Worker(new URL(place.replace('/src/', '/dist/')), { workerData: options })
  worker.unref()
  worker.on('message', (message: 'ready' | Compiled) => {
    if (message === 'ready') events.ready()
    else events.compiled(message)
  })
  worker.on('error', (error) => events.ended(error.message))
  return { post: (message) => worker.postMessage(message), end: () => void worker.terminate() }
}
