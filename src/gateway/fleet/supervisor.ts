/**
 * Keeps one worker process alive: starts it, waits until it has answered with a token, restarts it with backoff when it
 * dies, and gives up when it cannot run. Native code may abort the process at any time; the damage ends here. It knows
 * nothing of requests (the client of a dead worker ends them) or HTTP.
 */
import { setTimeout as delay } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import type { ModelState } from '../../api/models.ts'
import { RemoteEngineClient } from '../../engine/client/remote-client.ts'
import type { EngineClient } from '../../engine/client.ts'
import { assert, type ErrorCode, SkeinError } from '../../errors.ts'
import type { WorkerHandle } from './launch.ts'
import { type WorkerCommand, WorkerProcess } from './worker-process.ts'
import { type Illness, WorkerWatch } from './worker-watch.ts'

const DEFAULT_TIMING = {
  firstPauseMs: 250,
  longestPauseMs: 30_000,
  /** A worker that has served this long has its crash count reset. */
  healthyMs: 60_000,
  /** Crashes in a row before it is given up. */
  maxCrashes: 10,
  /**
   * Work pending and no step for this long: a device never ends one, and it is killed. Longer than any step takes. A
   * worker whose loop hangs ends itself sooner (host/watchdog.ts).
   */
  stallMs: 120_000,
  /** No message and no processor use for this long: it is stopped or deadlocked, and is killed. */
  silentMs: 8_000,
  /** No progress and no output for this long while loading: it is killed. */
  loadMs: 600_000,
  /** After this idle time it must generate a token, to show that it still can. */
  probeMs: 30_000,
  /** Time to end in; it restarts with each saved state, and a worker that exceeds it is killed. */
  stopMs: 8_000,
  /** Time that requests of a worker that has grown too large get to finish. */
  recycleMs: 60_000,
  /** A worker that cannot load reports why and exits by itself. After this long it is killed. */
  lastWordsMs: 2_000,
} as const

export type SupervisorTiming = { readonly [K in keyof typeof DEFAULT_TIMING]: number }

export interface SupervisorOptions {
  /** Called at each start. */
  readonly worker: () => WorkerCommand
  /** Names the worker in logs. */
  readonly name: string
  readonly logger: Pick<FastifyBaseLogger, 'info' | 'warn' | 'error'>
  readonly timing?: Partial<SupervisorTiming>
  /** Memory at which the process is replaced; absent: no limit. */
  readonly maxBytes?: number | undefined
  readonly onProgress?: (doneBytes: number, totalBytes: number) => void
  /** Called for each line that the worker prints. */
  readonly onLine?: (line: string) => void
  /** Called for each process that has gone. */
  readonly onEnd?: ((pid: number) => void) | undefined
  /** Called when the state, reason or progress changes. */
  readonly onChange?: () => void
}

/** As the engine words it. Of a worker that has served the device may be the cause; before that it is the model. */
const NOT_FINITE = /output was not finite/

function brokenModel(cause: SkeinError): SkeinError {
  const message =
    "the numbers of the model's first token are not finite: its file is damaged (fetch it again), or they are too large for f16 (try --quant bf16 or f32)"
  return new SkeinError('corrupt_weights', message, { cause })
}

/** Loading errors that would occur again with the same files on the same machine. */
const PERMANENT: readonly ErrorCode[] = [
  'unsupported_weights',
  'corrupt_weights',
  'backend_unavailable',
  'out_of_memory',
  'invalid_request',
  'unsupported_parameter',
  'not_found',
  // Another process has the store. A dead process releases its lock, so this one is alive.
  'conflict',
  'state_incompatible',
]

/** Errors of processes that could not be started or could not open files. */
const SHORTAGE = /\b(?:EMFILE|ENFILE|EAGAIN|ENOMEM|ENOSPC|EDQUOT)\b/
const ENDED = 'the worker ended and is started again'

/** What a worker that has served waits for. Everyone with a key may read this. */
const WAITS = 'the worker is started again as soon as there is'
const SHORTAGES: Partial<Record<ErrorCode, string>> = {
  out_of_memory: `${WAITS} enough memory for the model`,
  state_unavailable: `${WAITS} room for its store`,
}
const OTHER_SHORTAGE = `${WAITS} enough memory, disk or open files`

export class Supervisor implements WorkerHandle {
  readonly #options: SupervisorOptions
  readonly #timing: SupervisorTiming
  readonly #stopping = new AbortController()
  state: ModelState = 'loading'
  reason: string | null = 'loading'
  progress: WorkerHandle['progress'] = null
  /** Engine of the current process, from its first message to its end. */
  engine: EngineClient | null = null
  restarts = 0
  exitCode: number | null = null
  failure: string | null = null
  #process: WorkerProcess | null = null
  #watch: WorkerWatch | null = null
  #running: Promise<void> | null = null
  #crashes = 0
  /** Why the current or last process had to be ended. */
  #illness: string | null = null
  /** When the loading process last printed a line, or was started. */
  #heardAt = 0

  constructor(options: SupervisorOptions) {
    this.#options = options
    this.#timing = { ...DEFAULT_TIMING, ...options.timing }
  }

  get client(): EngineClient | null {
    return this.state === 'ready' ? this.engine : null
  }

  get pid(): number | null {
    return this.#process?.pid ?? null
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
   * Asks the worker to end, and kills it if it neither ends nor saves. A loading worker is killed at once: it has
   * nothing to save and reads no messages. Idempotent.
   */
  async stop(): Promise<void> {
    this.#stopping.abort()
    this.#enter('stopped', 'stopped')
    const pressing = this.#process === null ? undefined : this.#press(this.#process)
    await this.#running
    clearInterval(pressing)
  }

  #press(worker: WorkerProcess): NodeJS.Timeout {
    if (this.engine === null) worker.signal('SIGTERM')
    else worker.askToEnd()
    const numUnsaved = () => this.engine?.stats.states?.unsaved ?? 0
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
      const error = !hasServed && NOT_FINITE.test(end.error.message) ? brokenModel(end.error) : end.error
      const { message, code } = error
      // A full disk, a lack of descriptors, or a GPU that another program has filled meanwhile passes, and nobody
      // would restart the worker afterwards.
      const isShort = code === 'state_unavailable' || code === 'out_of_memory' || SHORTAGE.test(message)
      const waitsForRoom = hasServed && end.servedMs === 0 && isShort
      const isHopeless = end.servedMs === 0 && PERMANENT.includes(code) && !waitsForRoom
      waits = waitsForRoom ? waits + 1 : 0
      if (!waitsForRoom) this.#crashes++
      if (isHopeless || this.#crashes >= maxCrashes) {
        this.#giveUp(isHopeless ? '' : `${this.#crashes} times in a row; `, error)
        return error
      }
      this.restarts++
      const pauseMs = this.#pauseMs(this.#crashes + waits)
      const crash = `${ENDED} (crash ${this.#crashes})`
      this.#enter('restarting', waitsForRoom ? (SHORTAGES[code] ?? OTHER_SHORTAGE) : crash)
      logger.error({ worker: name, crashes: this.#crashes, pauseMs }, `worker ended: ${message}`)
      this.#say(`${message}; started again in ${pauseMs} ms`)
      await delay(pauseMs, undefined, { signal: this.#stopping.signal }).catch(() => {})
    }
    this.#enter('stopped', 'stopped')
    this.#say(`stopped (exit code ${this.exitCode ?? 'none'})`)
    return new SkeinError('model_not_loaded', 'the worker was stopped')
  }

  #giveUp(count: string, { code, message }: SkeinError): void {
    const { logger, name } = this.#options
    logger.error({ worker: name, crashes: this.#crashes }, `worker given up: ${count}${message}`)
    this.#say(`given up: ${count}${message}`)
    this.failure = count + message
    // Everyone with a key may read this. The message, which may name files, is for operators.
    this.#enter('failed', `the model could not be loaded or kept running (${code})`)
  }

  #pauseMs(numEnds: number): number {
    const { firstPauseMs, longestPauseMs } = this.#timing
    return Math.min(longestPauseMs, firstPauseMs * 2 ** (numEnds - 1))
  }

  /** Runs one process; returns why it ended and how long it served. */
  async #runOnce(onReady: () => void): Promise<{ error: SkeinError; servedMs: number }> {
    const worker = this.#spawn()
    let readyAt: number | null = null
    let patienceMs = this.#timing.lastWordsMs
    // Runs before the process's requests fail, so that their retries do not go to a process that has gone.
    worker.channel.onClose(() => {
      if (this.state === 'ready') this.#enter('restarting', ENDED)
    })
    // A worker whose device has failed says so, and ends when it has saved what it can.
    worker.channel.onMessage(({ type }) => {
      if (type === 'fatal' && this.state === 'ready') this.#enter('restarting', ENDED)
    })
    const loading = this.#watchLoading(worker)
    try {
      const client = await RemoteEngineClient.connect(
        worker.channel,
        (done, all) => this.#load(done, all),
        (text) => this.#tellStage(text),
      )
      clearInterval(loading)
      this.engine = client
      patienceMs = 0
      this.#watch = new WorkerWatch(client, {
        // It has answered, so it was started.
        pid: worker.pid!,
        ping: () => worker.channel.send({ type: 'ping' }),
        heardAt: () => worker.heardAt,
        timing: this.#timing,
        maxBytes: this.#options.maxBytes ?? null,
        onIll: (illness, reason) => this.#treat(worker, illness, reason),
      })
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
      this.engine = null
      if (readyAt !== null) this.#enter('restarting', ENDED)
      await worker.silent()
      const servedMs = readyAt === null ? 0 : performance.now() - readyAt
      return { error: SkeinError.from(thrown), servedMs }
    } finally {
      this.exitCode = worker.exitCode
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
    this.reason = `loading, ${percent} %`
    this.progress = { done_bytes: doneBytes, total_bytes: totalBytes }
    this.#options.onProgress?.(doneBytes, totalBytes)
    this.#options.onChange?.()
  }

  #tellStage(text: string): void {
    const { name, logger } = this.#options
    logger.info({ worker: name }, `loading: ${text}`)
    this.#say(text)
    this.reason = `loading: ${text}`
    this.#options.onChange?.()
  }

  /** Large files on slow disks take long, but report progress. */
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

  /** Kills the process, because nothing else ends its requests. If it is only too large, they may finish first. */
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

  /** Writes a line into the worker's log. */
  #say(line: string): void {
    this.#options.onLine?.(`skein: ${line}`)
  }

  #enter(state: ModelState, reason: string | null): void {
    // Stopped is the final state.
    if (this.#stopping.signal.aborted && state !== 'stopped') return
    this.state = state
    this.reason = reason
    if (state === 'ready') this.progress = null
    this.#options.onChange?.()
  }
}
