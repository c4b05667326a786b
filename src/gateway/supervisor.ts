/**
 * Keeps one worker process alive: starts it, waits until it has answered with a token, restarts it with growing pauses
 * when it dies, and gives up when it cannot live. Native code may abort a process at any time; this is where that ends.
 * It knows nothing of requests: those of a dead worker are ended by its client, and of HTTP nothing at all.
 */
import { type ChildProcess, fork } from 'node:child_process'
import { constants } from 'node:os'
import { setTimeout as delay } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import type { ModelState } from '../api/models.ts'
import type { EngineClient } from '../engine/client.ts'
import { channelToChild } from '../engine/process-channel.ts'
import { RemoteEngineClient } from '../engine/remote-client.ts'
import { assert, type ErrorCode, SkeinError } from '../errors.ts'
import type { Keeper } from './keeper.ts'
import { forwardLines } from './worker-log.ts'
import { type Illness, WorkerWatch } from './worker-watch.ts'

export interface WorkerCommand {
  /** JavaScript file that Node runs. */
  readonly entry: string
  readonly args: readonly string[]
  /** Options of Node itself; absent: those of this process. */
  readonly execArgv?: readonly string[]
  /** Added to this process's environment. */
  readonly env?: Readonly<Record<string, string>>
}

export const DEFAULT_TIMING = {
  firstPauseMs: 250,
  longestPauseMs: 30_000,
  /** A worker that has served this long has earned a fresh count of crashes. */
  healthyMs: 60_000,
  /** Crashes in a row before it is given up. */
  maxCrashes: 10,
  /** Work pending and no step for this long: it hangs, and is killed. Longer than any step takes to compute. */
  stallMs: 120_000,
  /** Idle for this long: it has to generate a token, to see that it still can. */
  probeMs: 30_000,
  /** Asked to end, how long a worker may take without any state saved in that time, before it is killed. */
  stopMs: 8_000,
  /** How long requests of a worker that has grown too large may go on. */
  recycleMs: 60_000,
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

/** What a dead worker has printed is read to its end, unless something else holds the pipe. */
const LAST_LINES_MS = 1000

export class Supervisor implements Keeper {
  readonly #options: SupervisorOptions
  readonly #timing: SupervisorTiming
  readonly #stopping = new AbortController()
  #state: ModelState = 'loading'
  #reason: string | null = 'loading'
  #progress: Keeper['progress'] = null
  /** Of the present process, from its first word to its end. */
  #engine: EngineClient | null = null
  #child: ChildProcess | null = null
  #watch: WorkerWatch | null = null
  #running: Promise<void> | null = null
  #crashes = 0
  #restarts = 0
  #exitCode: number | null = null

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
    return this.#child?.pid ?? null
  }

  get restarts(): number {
    return this.#restarts
  }

  get exitCode(): number | null {
    return this.#exitCode
  }

  get bytes(): number | null {
    return this.#watch?.bytes ?? null
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
    const child = this.#child
    const pressing = child === null ? undefined : this.#press(child)
    await this.#running
    clearInterval(pressing)
  }

  #press(child: ChildProcess): NodeJS.Timeout {
    if (this.#engine === null) child.kill('SIGTERM')
    else if (child.connected) child.send({ type: 'shutdown' }, () => {})
    const numUnsaved = () => this.#engine?.stats.states?.unsaved ?? 0
    let unsaved = numUnsaved()
    let since = performance.now()
    const look = () => {
      const now = numUnsaved()
      if (now < unsaved) since = performance.now()
      unsaved = now
      if (performance.now() - since >= this.#timing.stopMs) child.kill('SIGKILL')
    }
    return setInterval(look, Math.min(250, this.#timing.stopMs / 4))
  }

  /** Runs one worker after another; returns why there will be no more. */
  async #keepAlive(onReady: () => void): Promise<SkeinError> {
    const { logger, name } = this.#options
    while (!this.#stopping.signal.aborted) {
      const end = await this.#runOnce(onReady)
      if (this.#stopping.signal.aborted) break
      if (end.servedMs >= this.#timing.healthyMs) this.#crashes = 0
      this.#crashes++
      const { message } = end.error
      const isHopeless = end.servedMs === 0 && PERMANENT.includes(end.error.code)
      if (isHopeless || this.#crashes >= this.#timing.maxCrashes) {
        const count = isHopeless ? '' : `${this.#crashes} times in a row; `
        logger.error(
          { worker: name, crashes: this.#crashes },
          `worker given up: ${count}${message}`,
        )
        this.#say(`given up: ${count}${message}`)
        this.#enter('failed', 'the model could not be loaded or kept running; see the log')
        return end.error
      }
      this.#restarts++
      const pauseMs = this.#pauseMs()
      this.#enter('restarting', `the worker ended and is started again (crash ${this.#crashes})`)
      logger.error({ worker: name, crashes: this.#crashes, pauseMs }, `worker ended: ${message}`)
      this.#say(`${message}; started again in ${pauseMs} ms`)
      await delay(pauseMs, undefined, { signal: this.#stopping.signal }).catch(() => {})
    }
    this.#enter('stopped', 'stopped')
    this.#say(`stopped (exit code ${this.#exitCode ?? 'none'})`)
    return new SkeinError('model_not_loaded', 'the worker was stopped')
  }

  #pauseMs(): number {
    const { firstPauseMs, longestPauseMs } = this.#timing
    return Math.min(longestPauseMs, firstPauseMs * 2 ** (this.#crashes - 1))
  }

  /** One life of a worker; returns what it died of and how long it served. */
  async #runOnce(onReady: () => void): Promise<{ error: SkeinError; servedMs: number }> {
    const child = this.#spawn()
    const channel = channelToChild(child)
    const gone = new Promise<string>((resolve) => channel.onClose(resolve))
    const silent = new Promise<void>((resolve) => child.once('close', () => resolve()))
    let readyAt: number | null = null
    try {
      const client = await RemoteEngineClient.connect(channel, (done, all) => this.#load(done, all))
      this.#engine = client
      this.#watch = this.#watchOver(child, client)
      await this.#watch.probe()
      readyAt = performance.now()
      this.#enter('ready', null)
      const { name, logger } = this.#options
      logger.info({ worker: name, workerPid: child.pid }, 'worker ready')
      this.#say(`ready on ${client.info.model.device}`)
      onReady()
      const reason = await gone
      throw new SkeinError('model_not_loaded', `the worker process ended (${reason})`)
    } catch (thrown) {
      this.#watch?.end()
      // It may still be alive: disconnected, or telling us that it cannot load.
      child.kill('SIGKILL')
      await gone
      this.#engine = null
      if (readyAt !== null) this.#enter('restarting', 'the worker ended and is started again')
      await Promise.race([silent, delay(LAST_LINES_MS, undefined, { ref: false })])
      const servedMs = readyAt === null ? 0 : performance.now() - readyAt
      return { error: SkeinError.from(thrown), servedMs }
    } finally {
      this.#child = null
      this.#watch = null
    }
  }

  #spawn(): ChildProcess {
    const { entry, args, execArgv, env } = this.#options.worker()
    const { name, logger } = this.#options
    const child = fork(entry, [...args], {
      serialization: 'advanced',
      stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
      env: { ...process.env, ...env },
      ...(execArgv === undefined ? {} : { execArgv: [...execArgv] }),
    })
    this.#child = child
    if (this.#crashes === 0) this.#enter('loading', 'loading')
    this.#say(`process ${child.pid ?? 'none'} started`)
    child.once('exit', (code, signal) => {
      this.#exitCode = code ?? -(signal === null ? 1 : constants.signals[signal])
    })
    forwardLines(child.stdout, (line) => {
      this.#options.onLine?.(line)
      logger.info({ worker: name }, line)
    })
    forwardLines(child.stderr, (line) => {
      this.#options.onLine?.(line)
      logger.warn({ worker: name }, line)
    })
    return child
  }

  #load(doneBytes: number, totalBytes: number): void {
    const percent = totalBytes > 0 ? Math.floor((100 * doneBytes) / totalBytes) : 0
    this.#reason = `loading, ${percent} %`
    this.#progress = { done_bytes: doneBytes, total_bytes: totalBytes }
    this.#options.onProgress?.(doneBytes, totalBytes)
    this.#options.onChange?.()
  }

  #watchOver(child: ChildProcess, client: EngineClient): WorkerWatch {
    return new WorkerWatch(client, {
      // It has answered, so it has been started.
      pid: child.pid!,
      timing: this.#timing,
      maxBytes: this.#options.maxBytes ?? null,
      onIll: (illness, reason) => this.#treat(child, illness, reason),
    })
  }

  /** Kills it: nothing else would ever end its requests. Where it has only grown, they may end first. */
  #treat(child: ChildProcess, illness: Illness, reason: string): void {
    const { name, logger } = this.#options
    logger.error({ worker: name, workerPid: child.pid }, `worker replaced: ${reason}`)
    this.#say(`replaced: ${reason}`)
    if (illness !== 'too large') {
      child.kill('SIGKILL')
      return
    }
    this.#enter('restarting', reason)
    child.send({ type: 'shutdown', drain: true }, () => {})
    const timer = setTimeout(() => child.kill('SIGKILL'), this.#timing.recycleMs)
    child.once('exit', () => clearTimeout(timer))
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
