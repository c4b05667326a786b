/**
 * Keeps one worker process alive: starts it, waits until it has answered with a token, restarts it with growing pauses
 * when it dies, and gives up when it cannot live. Native code may abort a process at any time; this is where that ends.
 * It knows nothing of requests: those of a dead worker are ended by its client, and of HTTP nothing at all.
 */
import { setTimeout as delay } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import type { ModelState } from '../../api/models.ts'
import { RemoteEngineClient } from '../../engine/client/remote-client.ts'
import type { EngineClient } from '../../engine/client.ts'
import { assert, type ErrorCode, SkeinError } from '../../errors.ts'
import type { Keeper } from './launch.ts'
import { type WorkerCommand, WorkerProcess } from './worker-process.ts'
import { type Illness, WorkerWatch } from './worker-watch.ts'

const DEFAULT_TIMING = {
  firstPauseMs: 250,
  longestPauseMs: 30_000,
  /** A worker that has served this long has earned a fresh count of crashes. */
  healthyMs: 60_000,
  /** Crashes in a row before it is given up. */
  maxCrashes: 10,
  /** Work pending and no step for this long: it hangs, and is killed. Longer than any step takes to compute. */
  stallMs: 120_000,
  /** No message from it and no use of the processor for this long: it is stopped or waits for ever, and is killed. */
  silentMs: 8_000,
  /** Loading without any progress, nor a line printed, for this long: it is killed. */
  loadMs: 600_000,
  /** Idle for this long: it has to generate a token, to see that it still can. */
  probeMs: 30_000,
  /** Asked to end, how long a worker may take without any state saved in that time, before it is killed. */
  stopMs: 8_000,
  /** How long requests of a worker that has grown too large may go on. */
  recycleMs: 60_000,
  /** A worker that cannot load says so and exits with its own code. After this long it is killed. */
  lastWordsMs: 2_000,
} as const

export type SupervisorTiming = { readonly [K in keyof typeof DEFAULT_TIMING]: number }

export interface SupervisorOptions {
  /** Asked at each start. */
  readonly worker: () => WorkerCommand
  /** Names the worker in logs. */
  readonly name: string
  readonly logger: Pick<FastifyBaseLogger, 'info' | 'warn' | 'error'>
  readonly timing?: Partial<SupervisorTiming>
  /** Memory that the process may take before it is replaced; absent: any. */
  readonly maxBytes?: number | undefined
  readonly onProgress?: (doneBytes: number, totalBytes: number) => void
  /** Each line that the worker prints. */
  readonly onLine?: (line: string) => void
  /** Told of each process that has gone. */
  readonly onEnd?: ((pid: number) => void) | undefined
  /** Its state, reason or progress is another. */
  readonly onChange?: () => void
}

/** Errors of loading that the same files on the same machine will give again. */
const PERMANENT: readonly ErrorCode[] = [
  'unsupported_weights',
  'corrupt_weights',
  'backend_unavailable',
  'out_of_memory',
  'invalid_request',
  'unsupported_parameter',
  'not_found',
  // Another process has the store; the lock of one that died is free.
  'conflict',
  'state_incompatible',
]

/** Errors of a process that could not be started or could not open files. */
const SHORTAGE = /\b(?:EMFILE|ENFILE|EAGAIN|ENOMEM|ENOSPC|EDQUOT)\b/
const ENDED = 'the worker ended and is started again'

export class Supervisor implements Keeper {
  readonly #options: SupervisorOptions
  readonly #timing: SupervisorTiming
  readonly #stopping = new AbortController()
  #state: ModelState = 'loading'
  #reason: string | null = 'loading'
  #progress: Keeper['progress'] = null
  /** Engine of the present process, from its first message to its end. */
  #engine: EngineClient | null = null
  #process: WorkerProcess | null = null
  #watch: WorkerWatch | null = null
  #running: Promise<void> | null = null
  #crashes = 0
  #restarts = 0
  #exitCode: number | null = null
  /** Why the process that runs, or ran last, had to be ended. */
  #illness: string | null = null
  #failure: string | null = null
  /** When the process that loads printed its last line, or was started. */
  #heardAt = 0

  constructor(options: SupervisorOptions) {
    this.#options = options
    this.#timing = { ...DEFAULT_TIMING, ...options.timing }
  }

  get state(): ModelState {
    return this.#state
  }

  get reason(): string | null {
    return this.#reason
  }

  get client(): EngineClient | null {
    return this.#state === 'ready' ? this.#engine : null
  }

  get engine(): EngineClient | null {
    return this.#engine
  }

  get progress(): Keeper['progress'] {
    return this.#progress
  }

  get pid(): number | null {
    return this.#process?.pid ?? null
  }

  get restarts(): number {
    return this.#restarts
  }

  get exitCode(): number | null {
    return this.#exitCode
  }

  get failure(): string | null {
    return this.#failure
  }

  get bytes(): number | null {
    return this.#watch?.bytes ?? null
  }

  get numProbes(): number {
    return this.#watch?.numProbes ?? 0
  }

  /** Starts the worker and keeps it alive until `stop`. Resolves when it is first ready; throws if it never will be. */
  start(): Promise<void> {
    assert(this.#running === null, 'a supervisor was started twice')
    return new Promise((resolve, reject) => {
      this.#running = this.#keepAlive(resolve).then((cause) => reject(cause))
    })
  }

  /**
   * Ends the worker: asked, and killed when it neither ends nor saves. One that loads has nothing to save and hears
   * nothing. Idempotent.
   */
  async stop(): Promise<void> {
    this.#stopping.abort()
    this.#enter('stopped', 'stopped')
    const pressing = this.#process === null ? undefined : this.#press(this.#process)
    await this.#running
    clearInterval(pressing)
  }

  #press(worker: WorkerProcess): NodeJS.Timeout {
    if (this.#engine === null) worker.signal('SIGTERM')
    else worker.askToEnd()
    const numUnsaved = () => this.#engine?.stats.states?.unsaved ?? 0
    let unsaved = numUnsaved()
    let since = performance.now()
    const look = () => {
      const now = numUnsaved()
      if (now < unsaved) since = performance.now()
      unsaved = now
      if (performance.now() - since >= this.#timing.stopMs) worker.signal('SIGKILL')
    }
    return setInterval(look, Math.min(250, this.#timing.stopMs / 4))
  }

  /** Runs one process after another; returns why there will be no more. */
  async #keepAlive(onReady: () => void): Promise<SkeinError> {
    const { logger, name } = this.#options
    const { healthyMs, maxCrashes } = this.#timing
    let hasServed = false
    let waits = 0
    while (!this.#stopping.signal.aborted) {
      const end = await this.#runOnce(onReady)
      if (this.#stopping.signal.aborted) break
      hasServed ||= end.servedMs > 0
      if (end.servedMs >= healthyMs) this.#crashes = 0
      const { message, code } = end.error
      const isHopeless = end.servedMs === 0 && PERMANENT.includes(code)
      // A disk that is full now, or descriptors that are all taken: that passes, and nobody would start the worker after it.
      const isShort = code === 'state_unavailable' || SHORTAGE.test(message)
      const waitsForRoom = hasServed && end.servedMs === 0 && isShort
      waits = waitsForRoom ? waits + 1 : 0
      if (!waitsForRoom) this.#crashes++
      if (isHopeless || this.#crashes >= maxCrashes) {
        this.#giveUp(isHopeless ? '' : `${this.#crashes} times in a row; `, end.error)
        return end.error
      }
      this.#restarts++
      const pauseMs = this.#pauseMs(this.#crashes + waits)
      this.#enter('restarting', `the worker ended and is started again (crash ${this.#crashes})`)
      logger.error({ worker: name, crashes: this.#crashes, pauseMs }, `worker ended: ${message}`)
      this.#say(`${message}; started again in ${pauseMs} ms`)
      await delay(pauseMs, undefined, { signal: this.#stopping.signal }).catch(() => {})
    }
    this.#enter('stopped', 'stopped')
    this.#say(`stopped (exit code ${this.#exitCode ?? 'none'})`)
    return new SkeinError('model_not_loaded', 'the worker was stopped')
  }

  #giveUp(count: string, { code, message }: SkeinError): void {
    const { logger, name } = this.#options
    logger.error({ worker: name, crashes: this.#crashes }, `worker given up: ${count}${message}`)
    this.#say(`given up: ${count}${message}`)
    this.#failure = count + message
    // Everybody with a key may read it; the message, which may name files, is for operators.
    this.#enter('failed', `the model could not be loaded or kept running (${code})`)
  }

  #pauseMs(numEnds: number): number {
    const { firstPauseMs, longestPauseMs } = this.#timing
    return Math.min(longestPauseMs, firstPauseMs * 2 ** (numEnds - 1))
  }

  /** One life of a worker; returns what it died of and how long it served. */
  async #runOnce(onReady: () => void): Promise<{ error: SkeinError; servedMs: number }> {
    const worker = this.#spawn()
    let readyAt: number | null = null
    let patienceMs = this.#timing.lastWordsMs
    // Before its requests hear of it: what is tried again must not go to a process that has gone.
    worker.channel.onClose(() => {
      if (this.#state === 'ready') this.#enter('restarting', ENDED)
    })
    const loading = this.#watchLoading(worker)
    try {
      const client = await RemoteEngineClient.connect(
        worker.channel,
        (done, all) => this.#load(done, all),
        (text) => this.#tellStage(text),
      )
      clearInterval(loading)
      this.#engine = client
      patienceMs = 0
      this.#watch = this.#watchOver(worker, client)
      await this.#watch.probe()
      readyAt = performance.now()
      this.#enter('ready', null)
      const { name, logger } = this.#options
      logger.info({ worker: name, workerPid: worker.pid }, 'worker ready')
      this.#say(`ready on ${client.info.model.device}`)
      onReady()
      const reason = await worker.gone
      const cause = this.#illness === null ? reason : `replaced: ${this.#illness}`
      throw new SkeinError('model_not_loaded', `the worker process ended (${cause})`)
    } catch (cause) {
      const isStuck = readyAt === null && this.#illness !== null
      const thrown = isStuck ? new SkeinError('model_not_loaded', this.#illness ?? '', { cause }) : cause
      clearInterval(loading)
      this.#watch?.end()
      await worker.end(patienceMs)
      this.#engine = null
      if (readyAt !== null) this.#enter('restarting', ENDED)
      await worker.silent()
      const servedMs = readyAt === null ? 0 : performance.now() - readyAt
      return { error: SkeinError.from(thrown), servedMs }
    } finally {
      this.#exitCode = worker.exitCode
      this.#process = null
      this.#watch = null
    }
  }

  #spawn(): WorkerProcess {
    const { name, logger, onLine, onEnd, worker: command } = this.#options
    const worker = new WorkerProcess(command(), {
      onOut: (line) => {
        onLine?.(line)
        logger.info({ worker: name }, line)
      },
      onError: (line) => {
        this.#heardAt = performance.now()
        onLine?.(line)
        logger.warn({ worker: name }, line)
      },
    })
    const { pid } = worker
    if (pid !== null) worker.onExit(() => onEnd?.(pid))
    this.#process = worker
    this.#illness = null
    if (this.#crashes === 0) this.#enter('loading', 'loading')
    this.#say(`process ${worker.pid ?? 'none'} started`)
    return worker
  }

  #load(doneBytes: number, totalBytes: number): void {
    const percent = totalBytes > 0 ? Math.floor((100 * doneBytes) / totalBytes) : 0
    this.#reason = `loading, ${percent} %`
    this.#progress = { done_bytes: doneBytes, total_bytes: totalBytes }
    this.#options.onProgress?.(doneBytes, totalBytes)
    this.#options.onChange?.()
  }

  #tellStage(text: string): void {
    const { name, logger } = this.#options
    logger.info({ worker: name }, `loading: ${text}`)
    this.#say(text)
    this.#reason = `loading: ${text}`
    this.#options.onChange?.()
  }

  /** Large files on slow disks load for long, and say how far they are. */
  #watchLoading(worker: WorkerProcess): NodeJS.Timeout {
    const { loadMs } = this.#timing
    this.#heardAt = performance.now()
    const look = () => {
      const silent = performance.now() - Math.max(this.#heardAt, worker.heardAt)
      if (silent < loadMs) return
      this.#illness = `it has been loading without progress for ${Math.round(silent / 1000)} s`
      worker.signal('SIGKILL')
    }
    return setInterval(look, Math.min(1000, loadMs / 4))
  }

  #watchOver(worker: WorkerProcess, client: EngineClient): WorkerWatch {
    return new WorkerWatch(client, {
      // It has answered, so it has been started.
      pid: worker.pid!,
      ping: () => worker.channel.send({ type: 'ping' }),
      heardAt: () => worker.heardAt,
      timing: this.#timing,
      maxBytes: this.#options.maxBytes ?? null,
      onIll: (illness, reason) => this.#treat(worker, illness, reason),
    })
  }

  /** Kills it: nothing else would ever end its requests. Where it has only grown, they may end first. */
  #treat(worker: WorkerProcess, illness: Illness, reason: string): void {
    const { name, logger } = this.#options
    logger.error({ worker: name, workerPid: worker.pid }, `worker replaced: ${reason}`)
    this.#say(`replaced: ${reason}`)
    this.#illness = reason
    this.#enter('restarting', reason)
    if (illness !== 'too large') {
      worker.signal('SIGKILL')
      return
    }
    worker.askToEnd(true)
    const timer = setTimeout(() => worker.signal('SIGKILL'), this.#timing.recycleMs)
    worker.onExit(() => clearTimeout(timer))
  }

  /** In the worker's own log, between what it prints. */
  #say(line: string): void {
    this.#options.onLine?.(`skein: ${line}`)
  }

  #enter(state: ModelState, reason: string | null): void {
    // Nothing comes after a stop.
    if (this.#stopping.signal.aborted && state !== 'stopped') return
    this.#state = state
    this.#reason = reason
    if (state === 'ready') this.#progress = null
    this.#options.onChange?.()
  }
}
