/**
 * One worker of the fleet, from its creation until it is forgotten: its configuration, its supervisor, its output, and
 * its record in the management API. An ended worker can be started again and keeps its id.
 */
import { randomBytes } from 'node:crypto'
import { readdirSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import type { ModelState, TextCodec } from '../../api/models.ts'
import type { EngineClient } from '../../engine/client.ts'
import { SkeinError } from '../../errors.ts'
import type { WorkerInfo, WorkerPhase, WorkerRecord } from '../contract.ts'
import type { RoutedReplica } from '../routing/router.ts'
import { type Launch, type Launcher, type StartStateFile, type WorkerHandle, withStartStates } from './launch.ts'
import { WorkerLog } from './worker-log.ts'

const DRAIN_POLL_MS = 100
/** Log lines in the record of an ended worker. */
const LAST_LINES = 20

interface FleetWorkerOptions {
  readonly launch: Launch
  readonly launcher: Launcher
  readonly logPath: (id: string) => string | null
  readonly onChange: (worker: FleetWorker) => void
}

export class FleetWorker implements RoutedReplica {
  readonly id = `wkr-${randomBytes(5).toString('hex')}`
  readonly log: WorkerLog
  readonly createdAt = Date.now()
  numInFlight = 0
  numGiven = 0
  readonly #options: FleetWorkerOptions
  #launch: Launch
  /** With a stamp of the model's files when it was made. */
  #made: ReturnType<Launcher> & { readonly stamp: string }
  #isServing: boolean
  /** It is ending or has ended. */
  #isLeaving = false
  #isReturning = false
  #end: Promise<void> | null = null
  #stopping = new AbortController()
  #readyAt: number | null = null
  #exitedAt: number | null = null
  #info: WorkerInfo | null = null
  #phase: WorkerPhase = 'loading'

  /**
   * Throws for a file that cannot be a model. The worker is not started yet; it gets requests only while it is serving.
   */
  constructor(options: FleetWorkerOptions, isServing: boolean) {
    this.#launch = options.launch
    this.#options = options
    this.#isServing = isServing
    this.log = new WorkerLog(options.logPath(this.id))
    this.#made = this.#make()
  }

  get launch(): Launch {
    return this.#launch
  }

  get tokenizer(): TextCodec {
    return this.#made.tokenizer
  }

  /** Whether it answers to its model's name as soon as it is ready. */
  get isServing(): boolean {
    return this.#isServing && !this.#isLeaving
  }

  /** Whether it ends or has ended only to be started again. */
  get isReturning(): boolean {
    return this.#isReturning
  }

  get hasEnded(): boolean {
    return this.#exitedAt !== null
  }

  get handle(): WorkerHandle {
    return this.#made.handle
  }

  get client(): EngineClient | null {
    return this.#isLeaving ? null : this.#made.handle.client
  }

  get engine(): EngineClient | null {
    return this.#made.handle.engine
  }

  /** State as new requests see it: a draining worker counts as stopped. */
  get state(): ModelState {
    if (this.#isReturning) return 'restarting'
    return this.#isLeaving ? 'stopped' : this.#made.handle.state
  }

  get reason(): string | null {
    if (this.#isReturning) return 'the worker is being started again'
    return this.#isLeaving ? 'the worker is being stopped' : this.#made.handle.reason
  }

  /** Whether its files are still the ones it has read. */
  get isUpToDate(): boolean {
    return this.#made.stamp === fileStamp(this.#launch)
  }

  get neverServed(): boolean {
    return this.#phase === 'failed' && this.#readyAt === null
  }

  get phase(): WorkerPhase {
    return this.#phase
  }

  /** Start states for its future processes; the running one has been told. */
  keepStartStates(startStates: readonly StartStateFile[]): void {
    this.#launch = withStartStates(this.#launch, startStates)
    this.#tell()
  }

  serve(): void {
    this.#isServing = true
    this.#changed()
  }

  /** Gives the name back to the worker that it failed to replace; it stays listed. */
  withdraw(): void {
    this.#isServing = false
    this.#changed()
  }

  /** Resolves when it is ready; throws if it never will be. */
  start(): Promise<void> {
    this.#changed()
    return this.#made.handle.start()
  }

  /** Refuses new requests, gives running ones time to finish, and ends for good. Idempotent. */
  stop(drainMs: number): Promise<void> {
    this.expectBack(false)
    return this.#stop(drainMs)
  }

  /** Like stop(), but the worker will be started again unless it is stopped or forgotten meanwhile. */
  stopToReturn(drainMs: number): Promise<void> {
    const end = this.#stop(drainMs)
    this.expectBack(true)
    return end
  }

  /** Whether it will be started again after its end. */
  expectBack(isReturning: boolean): void {
    if (this.#isReturning === isReturning) return
    this.#isReturning = isReturning
    this.#tell()
  }

  /** Starts it again under the same id, after its end. It then serves under its name, even if it never did before. */
  restart(): Promise<void> {
    if (!this.hasEnded) throw new SkeinError('conflict', `worker ${this.id} is still running; stop it first`)
    this.#made = this.#make()
    this.#isServing = true
    this.#isLeaving = false
    this.#isReturning = false
    this.#stopping = new AbortController()
    this.#end = null
    this.#readyAt = null
    this.#exitedAt = null
    this.#info = null
    return this.start()
  }

  record(endpoint: string): WorkerRecord {
    const { pid, exitCode, restarts, progress, reason, failure } = this.#made.handle
    const hasEnded = this.hasEnded
    return {
      worker_id: this.id,
      model: this.launch.id,
      pid,
      status: hasEnded ? 'exited' : 'running',
      phase: this.#phase,
      reason: this.#phase === 'draining' ? 'finishing its requests' : (failure ?? reason),
      progress,
      created_at: this.createdAt / 1000,
      ready_at: seconds(this.#readyAt),
      exited_at: seconds(this.#exitedAt),
      exit_code: exitCode,
      restarts,
      endpoint,
      spec: this.launch.spec,
      info: this.#info,
      last_log: hasEnded ? this.log.tail(LAST_LINES) : [],
    }
  }

  #make() {
    const observer = { onLine: (line: string) => this.log.add(line), onChange: () => this.#changed() }
    return { ...this.#options.launcher(() => this.#launch, observer), stamp: fileStamp(this.#launch) }
  }

  #stop(drainMs: number): Promise<void> {
    if (drainMs === 0) this.#stopping.abort()
    this.#end ??= this.#leave(drainMs)
    return this.#end
  }

  async #leave(drainMs: number): Promise<void> {
    this.#isLeaving = true
    this.#changed()
    await this.#drain(drainMs)
    await this.#made.handle.stop()
    this.#ended()
  }

  /** Waits until two checks in a row find no running request, because one may be on its way between them. */
  async #drain(drainMs: number): Promise<void> {
    const end = performance.now() + drainMs
    const { signal } = this.#stopping
    for (let idle = 0; idle < 2 && performance.now() < end && !signal.aborted; ) {
      await delay(DRAIN_POLL_MS, undefined, { signal }).catch(() => {})
      const stats = this.#made.handle.engine?.stats
      idle = stats === undefined || stats.running + stats.waiting === 0 ? idle + 1 : 0
    }
  }

  #ended(): void {
    this.#exitedAt = Date.now()
    this.log.close()
    this.#tell()
  }

  #changed(): void {
    // Given up, so there is nothing to wait for.
    if (this.#made.handle.state === 'failed' && !this.hasEnded && !this.#isLeaving) this.#ended()
    else this.#tell()
  }

  #tell(): void {
    const phase = this.#phaseNow()
    if (phase === 'ready' && this.#phase !== 'ready') this.#becameReady()
    this.#phase = phase
    this.#options.onChange(this)
  }

  #becameReady(): void {
    this.#readyAt = Date.now()
    const client = this.#made.handle.client
    if (client !== null) this.#info = infoOf(client)
  }

  #phaseNow(): WorkerPhase {
    const { state } = this.#made.handle
    if (this.hasEnded) return state === 'failed' ? 'failed' : 'stopped'
    return this.#isLeaving ? 'draining' : state
  }
}

function infoOf({ info: { model, numSlots, maxPromptTokens } }: EngineClient): WorkerInfo {
  return {
    architecture: model.architecture,
    num_parameters: model.numParameters,
    weight_type: model.weightType,
    weight_bytes: model.weightBytes,
    device: model.device,
    slots: numSlots,
    state_bytes: model.stateBytes,
    max_prompt_tokens: maxPromptTokens,
  }
}

function seconds(milliseconds: number | null): number | null {
  return milliseconds === null ? null : milliseconds / 1000
}

/** Changes when a model's files are replaced or rewritten. An unreadable file counts as missing. */
function fileStamp({ file, adapters = [] }: Pick<Launch, 'file' | 'adapters'>): string {
  return [file, ...adapters.map(({ path }) => path)].map(stampOf).join('; ')
}

function stampOf(path: string): string {
  try {
    const found = statSync(path, { bigint: true })
    // A directory is a single checkpoint.
    if (found.isDirectory())
      return readdirSync(path)
        .map((name) => stampOf(join(path, name)))
        .join(', ')
    return `${found.ino} ${found.size} ${found.mtimeNs}`
  } catch {
    return 'absent'
  }
}
