/**
 * One process of a worker, from start to end: its channel, its output by line, its exit code, and how it is ended. The
 * supervisor decides when to start it again and what its end means.
 */
import { type ChildProcess, fork } from 'node:child_process'
import { constants } from 'node:os'
import { setTimeout as delay } from 'node:timers/promises'
import type { Channel } from '../../engine/client/channel.ts'
import { channelToChild } from '../../engine/client/process-channel.ts'
import type { FromWorker, ToWorker } from '../../engine/messages.ts'
import { forwardLines } from './worker-log.ts'

export interface WorkerCommand {
  readonly entry: string
  readonly args: readonly string[]
  /** Options of Node; absent: those of this process. */
  readonly execArgv?: readonly string[]
  /** Added to this process's environment. */
  readonly env?: Readonly<Record<string, string>>
}

interface OutputLines {
  readonly onOut: (line: string) => void
  readonly onError: (line: string) => void
}

/** A worker that has closed its channel has saved everything. Ending can take longer: a driver may wait for a GPU that failed. */
const EXIT_MS = 1000

/**
 * V8 marks all objects when those that it has kept have grown by some half, and memory outside its heap counts as well: a worker
 * has 12 MB of objects, so it did for every 8 MB of kept states. Up to here, in MB, it does for every 64 MB.
 */
const OLD_SPACE = '--initial-old-space-size=96'

/** Time to read the last output of a dead worker, unless another process holds the pipe open. */
const LAST_LINES_MS = 1000

export class WorkerProcess {
  readonly channel: Channel<ToWorker, FromWorker>
  /** Resolves with the reason when the process has gone and its last message has been read. */
  readonly gone: Promise<string>
  readonly #child: ChildProcess
  readonly #silent: Promise<void>
  #heardAt = performance.now()
  #exitCode: number | null = null

  constructor({ entry, args, execArgv, env }: WorkerCommand, { onOut, onError }: OutputLines) {
    const child = fork(entry, [...args], {
      serialization: 'advanced',
      stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
      env: { ...process.env, ...env },
      execArgv: [...(execArgv ?? process.execArgv), OLD_SPACE],
    })
    this.#child = child
    child.once('exit', (code, signal) => {
      this.#exitCode = code ?? -(signal === null ? 1 : constants.signals[signal])
    })
    child.once('disconnect', () => {
      const late = setTimeout(() => child.kill('SIGKILL'), EXIT_MS)
      child.once('exit', () => clearTimeout(late))
    })
    this.channel = channelToChild(child)
    child.on('message', () => {
      this.#heardAt = performance.now()
    })
    this.gone = new Promise((resolve) => this.channel.onClose(resolve))
    this.#silent = new Promise((resolve) => child.once('close', () => resolve()))
    forwardLines(child.stdout, onOut)
    forwardLines(child.stderr, onError)
  }

  /** Null if it could not be started. */
  get pid(): number | null {
    return this.#child.pid ?? null
  }

  /** The negated signal number if a signal ended it; null while it lives. */
  get exitCode(): number | null {
    return this.#exitCode
  }

  /** Time of its last message, by the clock of `performance`. */
  get heardAt(): number {
    return this.#heardAt
  }

  /** Asks it to save its states and end; `drain`: after its requests have ended. */
  askToEnd(drain = false): void {
    if (this.#child.connected) this.#child.send(drain ? { type: 'shutdown', drain } : { type: 'shutdown' }, () => {})
  }

  signal(name: 'SIGTERM' | 'SIGKILL'): void {
    this.#child.kill(name)
  }

  onExit(listener: () => void): void {
    this.#child.once('exit', listener)
  }

  /** Resolves when it has gone. Kills it if it lives longer than `patienceMs`. */
  async end(patienceMs: number): Promise<void> {
    const left = new AbortController()
    const late = delay(patienceMs, undefined, { signal: left.signal }).catch(() => {})
    await Promise.race([this.gone, late])
    left.abort()
    // It may still be alive, but disconnected or not reading messages.
    this.#child.kill('SIGKILL')
    await this.gone
  }

  /** Resolves when all its output has been read. */
  async silent(): Promise<void> {
    await Promise.race([this.#silent, delay(LAST_LINES_MS, undefined, { ref: false })])
  }
}
