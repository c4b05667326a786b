/**
 * One worker of the fleet, from the moment it was asked for until it is forgotten: what it is made of, what keeps it
 * alive, what it has printed, and what of it the management API tells. A worker that has ended can be started again and
 * keeps its id.
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
import { type Keeper, type Launch, type Launcher, type StartStateFile, withStartStates } from './launch.ts'
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
  numTaken = 0
  readonly #options: FleetWorkerOptions
  #launch: Launch
  #tokenizer: TextCodec
  #keeper: Keeper
  /** Stamp of its files when the worker was made. */
  #stamp: string
  #isServing: boolean
  /** On its way to its end, or there. */
  #isLeaving = false
  #isReturning = false
  #end: Promise<void> | null = null
  #stopping = new AbortController()
  #readyAt: number | null = null
  #exitedAt: number | null = null
  #info: WorkerInfo | null = null
  #phase: WorkerPhase = 'loading'

  /** Throws for a file that cannot be a model. Not started yet; requests go to it only while it is serving. */
  constructor(options: FleetWorkerOptions, isServing: boolean) {
    this.#launch = options.launch
    this.#options = options
    this.#isServing = isServing
    this.log = new WorkerLog(options.logPath(this.id))
    const { keeper, tokenizer } = this.#make()
    this.#keeper = keeper
    this.#tokenizer = tokenizer
    this.#stamp = fileStamp(this.#launch)
  }

  get launch(): Launch {
    return this.#launch
  }

  get tokenizer(): TextCodec {
    return this.#tokenizer
  }

  /** Whether it is one of those that answer to its model's name, as soon as it can. */
  get isServing(): boolean {
    return this.#isServing && !this.#isLeaving
  }

  /** Whether it ends, or has ended, only to be started again. */
  get isReturning(): boolean {
    return this.#isReturning
  }

  get hasEnded(): boolean {
    return this.#exitedAt !== null
  }

  get keeper(): Keeper {
    return this.#keeper
  }

  get client(): EngineClient | null {
    return this.#isLeaving ? null : this.#keeper.client
  }

  get engine(): EngineClient | null {
    return this.#keeper.engine
  }

  /** State as new requests see it: a draining worker counts as stopped. */
  get state(): ModelState {
    if (this.#isReturning) return 'restarting'
    return this.#isLeaving ? 'stopped' : this.#keeper.state
  }

  get reason(): string | null {
    if (this.#isReturning) return 'the worker is being started again'
    return this.#isLeaving ? 'the worker is being stopped' : this.#keeper.reason
  }

  /** Whether its files are those that it has read. */
  get isUpToDate(): boolean {
    return this.#stamp === fileStamp(this.#launch)
  }

  get neverServed(): boolean {
    return this.#phase === 'failed' && this.#readyAt === null
  }

  get phase(): WorkerPhase {
    return this.#phase
  }

  /** What processes of it will be started with; the present one has been told. */
  keepStartStates(startStates: readonly StartStateFile[]): void {
    this.#launch = withStartStates(this.#launch, startStates)
    this.#tell()
  }

  serve(): void {
    this.#isServing = true
    this.#changed()
  }

  /** What it failed to replace has the name again; it stays listed. */
  withdraw(): void {
    this.#isServing = false
    this.#changed()
  }

  /** Resolves when it is ready; throws if it never will be. */
  start(): Promise<void> {
    this.#changed()
    return this.#keeper.start()
  }

  /** Takes no more requests, gives those it has the time to end, and ends for good. Idempotent. */
  stop(drainMs: number): Promise<void> {
    this.expectBack(false)
    return this.#stop(drainMs)
  }

  /** The same for one that is about to be started again, unless it is stopped or forgotten meanwhile. */
  stopToReturn(drainMs: number): Promise<void> {
    const end = this.#stop(drainMs)
    this.expectBack(true)
    return end
  }

  /** What becomes of it after its end. */
  expectBack(isReturning: boolean): void {
    if (this.#isReturning === isReturning) return
    this.#isReturning = isReturning
    this.#tell()
  }

  /** Once more under the same id, after its end. One that never came to its name does now. */
  restart(): Promise<void> {
    if (!this.hasEnded) throw new SkeinError('conflict', `worker ${this.id} is still running; stop it first`)
    const { keeper, tokenizer } = this.#make()
    this.#keeper = keeper
    this.#tokenizer = tokenizer
    this.#stamp = fileStamp(this.#launch)
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
    const { pid, exitCode, restarts, progress, reason, failure } = this.#keeper
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
    return this.#options.launcher(() => this.#launch, {
      onLine: (line) => this.log.add(line),
      onChange: () => this.#changed(),
    })
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
    await this.#keeper.stop()
    this.#ended()
  }

  /** Waits until nothing has run for two looks in a row: a request may be on its way between them. */
  async #drain(drainMs: number): Promise<void> {
    const end = performance.now() + drainMs
    const { signal } = this.#stopping
    for (let idle = 0; idle < 2 && performance.now() < end && !signal.aborted; ) {
      await delay(DRAIN_POLL_MS, undefined, { signal }).catch(() => {})
      const stats = this.#keeper.engine?.stats
      idle = stats === undefined || stats.running + stats.waiting === 0 ? idle + 1 : 0
    }
  }

  #ended(): void {
    this.#exitedAt = Date.now()
    this.log.close()
    this.#tell()
  }

  #changed(): void {
    // Given up: there is nothing to wait for.
    if (this.#keeper.state === 'failed' && !this.hasEnded && !this.#isLeaving) this.#ended()
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
    const client = this.#keeper.client
    if (client !== null) this.#info = infoOf(client)
  }

  #phaseNow(): WorkerPhase {
    const { state } = this.#keeper
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

/** Changes when a model's files are replaced or written anew. A file that cannot be read counts as absent. */
function fileStamp({ file, adapters = [] }: Pick<Launch, 'file' | 'adapters'>): string {
  return [file, ...adapters.map(({ path }) => path)].map(stampOf).join('; ')
}

function stampOf(path: string): string {
  try {
    const found = statSync(path, { bigint: true })
    // A directory is one checkpoint.
    if (found.isDirectory())
      return readdirSync(path)
        .map((name) => stampOf(join(path, name)))
        .join(', ')
    return `${found.ino} ${found.size} ${found.mtimeNs}`
  } catch {
    return 'absent'
  }
}
