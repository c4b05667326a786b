/**
 * All workers of a gateway, including ended ones, and the model that each belongs to. Workers of the same name are
 * replicas, and its router spreads requests over them. It knows no HTTP; launchers know how workers are made.
 */
import type { ModelRegistry } from '../../api/models.ts'
import { SkeinError } from '../../errors.ts'
import { type RegisteredModel, registryOver } from '../routing/registry.ts'
import { RouteMemory, Router, type RouterCounts } from '../routing/router.ts'
import { FleetWorker } from './fleet-worker.ts'
import { type Launch, type Launcher, refuseSharedNames } from './launch.ts'
import { logPath } from './worker-log.ts'

interface FleetOptions {
  readonly launcher: Launcher
  /** Folder for the workers' output; absent: in memory only. */
  readonly logFolder?: string | undefined
}

/** Number of ended workers that are listed; older ones are forgotten. */
const MAX_ENDED = 200

interface Route {
  readonly router: Router
  readonly memory: RouteMemory
}

export class Fleet {
  readonly registry: ModelRegistry
  readonly #options: FleetOptions
  readonly #workers: FleetWorker[] = []
  readonly #routes = new Map<string, Route>()
  readonly #listeners = new Set<(worker: FleetWorker) => void>()
  #isStopping = false

  constructor(options: FleetOptions) {
    this.#options = options
    this.registry = registryOver(() => this.#models())
  }

  /** In order of creation. */
  get workers(): readonly FleetWorker[] {
    return this.#workers
  }

  /** Throws not_found. */
  find(id: string): FleetWorker {
    const worker = this.#workers.find((candidate) => candidate.id === id)
    if (worker === undefined) throw new SkeinError('not_found', 'worker not found')
    return worker
  }

  /** Workers that answer to a name, and those that were given up while they did. */
  serving(model: string): FleetWorker[] {
    return this.#workers.filter(({ launch, isServing }) => isServing && launch.id === model)
  }

  /** Workers that serve a model; if there are none, those that are about to be restarted. */
  workersOf(model: string): FleetWorker[] {
    const serving = this.serving(model)
    return serving.length > 0 ? serving : this.#returning().filter(({ launch }) => launch.id === model)
  }

  /** Names in the order in which they were first served; models that are about to be restarted come last. */
  get names(): string[] {
    const serving = this.#workers.filter(({ isServing }) => isServing)
    return [...new Set([...serving, ...this.#returning()].map(({ launch }) => launch.id))]
  }

  /** Creates a worker without starting it. Throws for a file that cannot be a model, and for names that are taken. */
  create(launch: Launch, isServing = true): FleetWorker {
    this.refuseTakenNames(launch)
    const worker = new FleetWorker(
      {
        launch,
        launcher: this.#options.launcher,
        logPath: (id) => logPath(this.#options.logFolder, id),
        onChange: (changed) => this.#changed(changed),
      },
      isServing,
    )
    this.#workers.push(worker)
    this.#forgetOldEnds()
    return worker
  }

  /** Throws conflict for names of other models, and model_not_loaded during shutdown. */
  refuseTakenNames(launch: Launch): void {
    if (this.#isStopping) throw new SkeinError('model_not_loaded', 'the server is shutting down')
    const serving = this.#workers.filter(({ isServing }) => isServing)
    refuseSharedNames(
      launch,
      serving.map((worker) => worker.launch),
    )
  }

  /** Forgets an ended worker. Throws conflict for a running one. */
  forget(id: string): void {
    const worker = this.find(id)
    if (!worker.hasEnded) throw new SkeinError('conflict', `worker ${id} is still running; stop it first`)
    worker.expectBack(false)
    this.#workers.splice(this.#workers.indexOf(worker), 1)
  }

  /** Reports every change of any worker. Returns a function that stops the reports. */
  listen(listener: (worker: FleetWorker) => void): () => void {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }

  /** A router that sends everything to one worker. It shares the session affinity of the model's router. */
  routerTo(worker: FleetWorker): Router {
    return new Router(() => [worker], this.#route(worker.launch.id).memory)
  }

  routerCounts(): ReadonlyMap<string, RouterCounts> {
    return new Map([...this.#routes].map(([name, { memory }]) => [name, memory.counts]))
  }

  /** Ends all workers, whatever they do; their states are saved. */
  async stop(): Promise<void> {
    this.#isStopping = true
    await Promise.all(this.#workers.map((worker) => worker.stop(0)))
  }

  #models(): RegisteredModel[] {
    return this.names.map((id) => {
      const workers = this.workersOf(id)
      const aliases = workers.flatMap(({ launch }) => launch.spec.aliases)
      // A worker that was given up may have had another vocabulary.
      const { tokenizer } = workers.find(({ hasEnded }) => !hasEnded) ?? workers[0]!
      return { id, aliases, tokenizer, source: this.#route(id).router }
    })
  }

  /** Their models count as not ready, so that clients retry. Another model may have taken a name meanwhile. */
  #returning(): FleetWorker[] {
    const serving = this.#workers.filter(({ isServing }) => isServing)
    const taken = serving.flatMap(({ launch }) => namesOf(launch))
    const isFree = ({ launch }: FleetWorker) => !namesOf(launch).some((name) => taken.includes(name))
    return this.#workers.filter((worker) => worker.isReturning && isFree(worker))
  }

  #route(model: string): Route {
    const known = this.#routes.get(model)
    if (known !== undefined) return known
    const memory = new RouteMemory()
    const router = new Router(() => this.workersOf(model), memory)
    this.#routes.set(model, { router, memory })
    return { router, memory }
  }

  #changed(worker: FleetWorker): void {
    if (worker.engine === null) this.#routes.get(worker.launch.id)?.memory.prefixes.forget(worker.id)
    for (const listener of this.#listeners) listener(worker)
  }

  #forgetOldEnds(): void {
    const ended = this.#workers.filter(({ hasEnded }) => hasEnded)
    for (const { id } of ended.slice(0, Math.max(0, ended.length - MAX_ENDED))) this.forget(id)
  }
}

function namesOf({ id, spec }: Launch): string[] {
  return [id, ...spec.aliases]
}
