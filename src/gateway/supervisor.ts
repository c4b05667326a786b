/**
 * Keeps one worker process alive: starts it, waits until it is ready, restarts it with growing pauses when it dies,
 * and gives up when it cannot live. Native code may abort a process at any time; this is where that ends.
 * It knows nothing of requests: those of a dead worker are ended by its client, and of HTTP nothing at all.
 */
import { type ChildProcess, fork } from 'node:child_process'
import { setTimeout as delay } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import type { ModelState } from '../api/models.ts'
import type { EngineClient } from '../engine/client.ts'
import { channelToChild } from '../engine/process-channel.ts'
import { RemoteEngineClient } from '../engine/remote-client.ts'
import { assert, type ErrorCode, SkeinError } from '../errors.ts'
import { forwardLines } from './worker-log.ts'

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
  /** How long a worker may take to end when asked, and again when told (SIGTERM). */
  stopMs: 5_000,
} as const

export type SupervisorTiming = { readonly [K in keyof typeof DEFAULT_TIMING]: number }

export interface SupervisorOptions {
  readonly worker: WorkerCommand
  /** Names the worker in logs. */
  readonly name: string
  readonly logger: Pick<FastifyBaseLogger, 'info' | 'warn' | 'error'>
  readonly timing?: Partial<SupervisorTiming>
  readonly onProgress?: (doneBytes: number, totalBytes: number) => void
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

const KEPT_LINES = 200

export class Supervisor {
  readonly #options: SupervisorOptions
  readonly #timing: SupervisorTiming
  readonly #stopping = new AbortController()
  /** The worker's latest lines of output, oldest first. */
  readonly recentLines: string[] = []
  #state: ModelState = 'loading'
  #reason: string | null = 'loading'
  #client: EngineClient | null = null
  #child: ChildProcess | null = null
  #running: Promise<void> | null = null
  #crashes = 0

  constructor(options: SupervisorOptions) {
    this.#options = options
    this.#timing = { ...DEFAULT_TIMING, ...options.timing }
  }

  get state(): ModelState {
    return this.#state
  }

  /** Why it is not ready, for people; null when it is. */
  get reason(): string | null {
    return this.#reason
  }

  /** Null unless ready. */
  get client(): EngineClient | null {
    return this.#client
  }

  get pid(): number | null {
    return this.#child?.pid ?? null
  }

  /** Starts the worker and keeps it alive until `stop`. Resolves when it is first ready; throws if it never will be. */
  start(): Promise<void> {
    assert(this.#running === null, 'a supervisor was started twice')
    return new Promise((resolve, reject) => {
      this.#running = this.#keepAlive(resolve).then((cause) => reject(cause))
    })
  }

  /** Ends the worker: asked first, told with SIGTERM, then SIGKILL. Idempotent. */
  async stop(): Promise<void> {
    this.#stopping.abort()
    this.#enter('stopped', 'stopped')
    const child = this.#child
    if (child !== null) {
      if (child.connected) child.send({ type: 'shutdown' }, () => {})
      const term = setTimeout(() => child.kill('SIGTERM'), this.#timing.stopMs)
      const kill = setTimeout(() => child.kill('SIGKILL'), 2 * this.#timing.stopMs)
      await this.#running
      clearTimeout(term)
      clearTimeout(kill)
    }
    await this.#running
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
        this.#enter('failed', 'the model could not be loaded or kept running; see the log')
        return end.error
      }
      const pauseMs = this.#pauseMs()
      this.#enter('restarting', `the worker ended and is started again (crash ${this.#crashes})`)
      logger.error({ worker: name, crashes: this.#crashes, pauseMs }, `worker ended: ${message}`)
      await delay(pauseMs, undefined, { signal: this.#stopping.signal }).catch(() => {})
    }
    this.#enter('stopped', 'stopped')
    return new SkeinError('model_not_loaded', 'the worker was stopped')
  }

  #pauseMs(): number {
    const { firstPauseMs, longestPauseMs } = this.#timing
    return Math.min(longestPauseMs, firstPauseMs * 2 ** (this.#crashes - 1))
  }

  /** One life of a worker; returns what it died of and how long it served. */
  async #runOnce(onReady: () => void): Promise<{ error: SkeinError; servedMs: number }> {
    const { name, logger } = this.#options
    const child = this.#spawn()
    const channel = channelToChild(child)
    const gone = new Promise<string>((resolve) => channel.onClose(resolve))
    let readyAt: number | null = null
    try {
      const client = await RemoteEngineClient.connect(channel, (done, all) => this.#load(done, all))
      readyAt = performance.now()
      this.#client = client
      this.#enter('ready', null)
      logger.info({ worker: name, workerPid: child.pid }, 'worker ready')
      onReady()
      const watch = this.#watchStalls(child, client)
      const reason = await gone
      clearInterval(watch)
      throw new SkeinError('model_not_loaded', `the worker process ended (${reason})`)
    } catch (thrown) {
      this.#client = null
      // It may still be alive: disconnected, or telling us that it cannot load.
      child.kill('SIGKILL')
      await gone
      const servedMs = readyAt === null ? 0 : performance.now() - readyAt
      return { error: SkeinError.from(thrown), servedMs }
    } finally {
      this.#child = null
    }
  }

  #spawn(): ChildProcess {
    const { entry, args, execArgv, env } = this.#options.worker
    const { name, logger } = this.#options
    const child = fork(entry, [...args], {
      serialization: 'advanced',
      stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
      env: { ...process.env, ...env },
      ...(execArgv === undefined ? {} : { execArgv: [...execArgv] }),
    })
    this.#child = child
    if (this.#crashes === 0) this.#enter('loading', 'loading')
    const keep = (line: string) => {
      this.recentLines.push(line)
      if (this.recentLines.length > KEPT_LINES) this.recentLines.shift()
    }
    forwardLines(child.stdout, (line) => {
      keep(line)
      logger.info({ worker: name }, line)
    })
    forwardLines(child.stderr, (line) => {
      keep(line)
      logger.warn({ worker: name }, line)
    })
    return child
  }

  #load(doneBytes: number, totalBytes: number): void {
    const percent = totalBytes > 0 ? Math.floor((100 * doneBytes) / totalBytes) : 0
    this.#reason = `loading, ${percent} %`
    this.#options.onProgress?.(doneBytes, totalBytes)
  }

  /** Kills a worker that has work and makes no step: nothing else would ever end its requests. */
  #watchStalls(child: ChildProcess, client: EngineClient): NodeJS.Timeout {
    const { name, logger } = this.#options
    let steps = -1
    let since = performance.now()
    const look = () => {
      const { stats } = client
      const isPending = stats.running + stats.waiting > 0
      if (!isPending || stats.steps !== steps) {
        steps = stats.steps
        since = performance.now()
        return
      }
      if (performance.now() - since < this.#timing.stallMs) return
      logger.error({ worker: name, workerPid: child.pid }, 'worker makes no step; killing it')
      child.kill('SIGKILL')
    }
    return setInterval(look, Math.min(1000, this.#timing.stallMs / 4)).unref()
  }

  #enter(state: ModelState, reason: string | null): void {
    // Nothing comes after a stop.
    if (this.#stopping.signal.aborted && state !== 'stopped') return
    this.#state = state
    this.#reason = reason
    if (state !== 'ready') this.#client = null
  }
}
