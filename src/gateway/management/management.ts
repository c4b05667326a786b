/**
 * The control plane: starts, stops, watches and reaches workers over HTTP. It combines the fleet, its figures and the
 * gateways of single workers; the routes are in `dialect.ts` (JSON) and `streams.ts` (events and proxies).
 */
import { realpathSync } from 'node:fs'
import type { ModelFetcher } from '../../api/models.ts'
import { SkeinError } from '../../errors.ts'
import { isLoopback } from '../access/auth.ts'
import type {
  HubModel,
  HubRepository,
  ManagementEvent,
  ModelFile,
  ModelQuantisation,
  PullRecord,
  SystemInfo,
  WorkerRecord,
  WorkerSpec,
} from '../contract.ts'
import type { Metrics } from '../figures/metrics.ts'
import type { Fleet } from '../fleet/fleet.ts'
import type { FleetWorker } from '../fleet/fleet-worker.ts'
import { DEFAULT_SPEC, type Launch, withStartStates } from '../fleet/launch.ts'
import { CpuUse, type DevicesOf, systemInfo } from './host-facts.ts'
import { countGpus, GpuWatch } from './nvidia-smi.ts'
import { Sampler } from './sampler.ts'
import { type OpenGateway, WorkerGateways } from './worker-gateways.ts'

export interface ManagementOptions {
  readonly fleet: Fleet
  readonly metrics: Metrics
  readonly version: string
  /** Address that the server listens on. */
  readonly host: string
  /** Everyone may use the server. A worker's own port must not be open to more people than that. */
  readonly isOpen: () => boolean
  /** Finds the files of a spec. Throws for a missing file, with the name of the field. */
  readonly resolve: (spec: WorkerSpec) => Launch
  /** Checkpoints that a worker can be started with. */
  readonly listModels: () => readonly ModelFile[]
  readonly devices: DevicesOf
  /** Downloads models from the hub, quantises and deletes them. */
  readonly jobs: ModelChanges
  readonly openGateway: OpenGateway
}

interface ModelChanges {
  /** Newest first. */
  list(): readonly PullRecord[]
  /** Returns at once. Throws for an invalid name, and while another download runs. */
  start(name: string): PullRecord
  quantise(file: string, asked: ModelQuantisation): PullRecord
  /** Returns the bytes freed. Throws for a model that was not pulled or is in use. */
  remove(name: string, isUsed: (path: string) => boolean): number
  search(words: string): Promise<readonly HubRepository[]>
  modelsOf(repository: string): Promise<readonly HubModel[]>
}

/** Time that the requests of a stopped worker get to finish. */
const STOP_DRAIN_MS = 8000

export class Management {
  readonly fleet: Fleet
  readonly workerGateways: WorkerGateways
  readonly sampler: Sampler
  readonly #options: ManagementOptions
  readonly #gpus = new GpuWatch()
  readonly #cpuUse = new CpuUse()
  /** Workers that are being restarted. Further calls join the running restart. */
  readonly #restarts = new Map<FleetWorker, Promise<void>>()
  #url = ''

  constructor(options: ManagementOptions) {
    const { fleet, metrics, openGateway, host } = options
    this.#options = options
    this.fleet = fleet
    this.workerGateways = new WorkerGateways(openGateway, host)
    countGpus(metrics.registry, this.#gpus)
    this.sampler = new Sampler({ fleet, metrics, cpuUse: this.#cpuUse, gpus: this.#gpus })
    fleet.listen((worker) => {
      if (!worker.hasEnded) return
      metrics.forgetWorker(worker.id)
      void this.workerGateways.close(worker.id)
    })
  }

  /** Sets the server's own URL, which is known once it listens. */
  listensOn(url: string): void {
    this.#url = url
  }

  record(worker: FleetWorker): WorkerRecord {
    const own = this.workerGateways.urlOf(worker)
    return worker.record(own ?? `${this.#url}/api/workers/${worker.id}/proxy`)
  }

  records(): WorkerRecord[] {
    return this.fleet.workers.map((worker) => this.record(worker))
  }

  models(): readonly ModelFile[] {
    return this.#options.listModels()
  }

  pulls(): readonly PullRecord[] {
    return this.#options.jobs.list()
  }

  searchHub(words: string): Promise<readonly HubRepository[]> {
    this.#refuseStrangers('search the hub from')
    return this.#options.jobs.search(words)
  }

  hubModels(repository: string): Promise<readonly HubModel[]> {
    this.#refuseStrangers('search the hub from')
    return this.#options.jobs.modelsOf(repository)
  }

  /** The same, in the form that other dialects call. */
  get fetcher(): ModelFetcher {
    return {
      start: (name) => this.pull(name),
      progress: (id) => this.pulls().find((record) => record.id === id) ?? null,
    }
  }

  pull(name: string): PullRecord {
    this.#refuseStrangers('fill', 'name')
    return this.#options.jobs.start(name)
  }

  quantise(asked: ModelQuantisation): PullRecord {
    this.#refuseStrangers('fill', 'model_path')
    const { resolve, jobs } = this.#options
    return jobs.quantise(resolve({ ...DEFAULT_SPEC, model_path: asked.model_path }).file, asked)
  }

  /** Refuses models of workers, including workers that will be restarted. */
  removeModel(name: string): number {
    this.#refuseStrangers('empty')
    return this.#options.jobs.remove(name, (path) =>
      this.fleet.workers.some(({ hasEnded, launch }) => !hasEnded && realPath(launch.file) === realPath(path)),
    )
  }

  #refuseStrangers(what: 'fill' | 'empty' | 'search the hub from', param?: string): void {
    const { isOpen, host } = this.#options
    if (!isOpen() || isLoopback(host)) return
    const field = param === undefined ? '' : `${param}: `
    const message = `${field}this server can be reached from outside and has no key: anybody could ${what} its disk. Add a key first (skein keys add), or use the command line on its machine`
    throw new SkeinError('forbidden', message, param === undefined ? {} : { param })
  }

  system(): Promise<SystemInfo> {
    const { version, devices } = this.#options
    return systemInfo({ version, devices, url: this.#url, cpuUse: this.#cpuUse, gpus: this.#gpus })
  }

  async hello(): Promise<ManagementEvent> {
    const system = await this.system()
    return { type: 'hello', system, workers: this.records(), history: this.sampler.history }
  }

  /** Returns at once; the record reports the worker's progress. */
  async start(spec: WorkerSpec): Promise<WorkerRecord> {
    this.#refusePublicPort(spec)
    const worker = this.fleet.create(this.#joining(this.#options.resolve(spec)))
    try {
      this.#refuseOtherModel(worker)
      await this.workerGateways.listen(worker)
    } catch (thrown) {
      await worker.stop(0)
      this.fleet.forget(worker.id)
      throw thrown
    }
    // The worker's record and log report how this ends.
    worker.start().catch(() => {})
    return this.record(worker)
  }

  stop(id: string): void {
    void this.fleet.find(id).stop(STOP_DRAIN_MS)
  }

  /** Returns when the worker is loading, as `start` does; at once if a running worker has to end first. */
  async restart(id: string): Promise<WorkerRecord> {
    const worker = this.fleet.find(id)
    this.#catchUp(worker)
    this.#refuseOtherModel(worker)
    const { hasEnded } = worker
    const end = worker.stopToReturn(STOP_DRAIN_MS)
    const begun = this.#restarts.get(worker) ?? this.#startAfter(end, worker)
    this.#restarts.set(worker, begun)
    if (hasEnded) await begun
    else begun.catch(() => {})
    return this.record(worker)
  }

  /** Starts the worker unless it was stopped meanwhile. An error also goes to its log. */
  async #startAfter(end: Promise<void>, worker: FleetWorker): Promise<void> {
    try {
      await end
      await this.workerGateways.close(worker.id)
      if (!worker.isReturning) return
      this.#catchUp(worker)
      // Another model may have taken the name since the worker began to end.
      this.#refuseOtherModel(worker)
      await this.workerGateways.listen(worker)
      // The worker's record and log report how this ends.
      worker.restart().catch(() => {})
    } catch (thrown) {
      worker.log.add(`skein: ${SkeinError.from(thrown).message}`)
      throw thrown
    } finally {
      this.#restarts.delete(worker)
      worker.expectBack(false)
    }
  }

  async close(): Promise<void> {
    this.sampler.stop()
    await this.workerGateways.closeAll()
  }

  #refusePublicPort({ host, port }: WorkerSpec): void {
    const { isOpen, host: own } = this.#options
    if (port === null || isLoopback(host) || !isOpen() || !isLoopback(own)) return
    const message = `host: ${host} can be reached from outside and this server has no key; use 127.0.0.1`
    throw new SkeinError('forbidden', message, { param: 'host' })
  }

  /** Another worker of the same name that serves or will serve. Workers that were given up do not count. */
  #other({ id }: Launch, worker?: FleetWorker): FleetWorker | undefined {
    return this.fleet.serving(id).find((other) => other !== worker && !other.hasEnded)
  }

  /** A replica gets the adapters of its model, and its start states unless the spec gives some. */
  #joining(launch: Launch): Launch {
    const other = this.#other(launch)
    if (other === undefined) return launch
    const { adapters, startStates } = other.launch
    const adapted = { ...launch, adapters }
    return launch.startStates.length > 0 ? adapted : withStartStates(adapted, startStates)
  }

  /** Gives the worker the start states that its model got while the worker did not serve it. */
  #catchUp(worker: FleetWorker): void {
    const { launch } = worker
    const other = this.#other(launch, worker)
    if (other === undefined || weightsOf(other.launch) !== weightsOf(launch)) return
    if (!worker.isServing) worker.keepStartStates(other.launch.startStates)
  }

  /** Workers of one name must answer alike, so they must have the same weights. */
  #refuseOtherModel(worker: FleetWorker): void {
    const { launch } = worker
    this.fleet.refuseTakenNames(launch)
    const other = this.#other(launch, worker)
    if (other === undefined) return
    const facts = (one: Launch) => JSON.stringify([weightsOf(one), one.startStates])
    if (facts(other.launch) === facts(launch)) return
    const message = `model_name: ${launch.id} is served from another file, or with other precision or states; give another model_name`
    throw new SkeinError('conflict', message, { param: 'model_name' })
  }
}

function weightsOf({ file, quant, adapters, vocab }: Launch): string {
  return JSON.stringify([file, quant, adapters, vocab])
}

/** The files of a worker may be gone. */
function realPath(path: string): string {
  try {
    return realpathSync(path)
  } catch {
    return path
  }
}
