/**
 * Loads, replaces and removes a gateway's models by name while it runs, and changes their start states. A replacement
 * starts beside the old model and must answer before it takes the name; the old workers end when their requests have.
 * If memory has no room for both, the old workers end first, and return if the new ones fail. Start states change in
 * running workers. The fleet owns the workers.
 */
import type { ModelAdmin, ModelChoice, ModelRegistry, StartStatesChoice } from '../../api/models.ts'
import type { EngineClient } from '../../engine/client.ts'
import { SkeinError } from '../../errors.ts'
import type { Fleet } from '../fleet/fleet.ts'
import type { FleetWorker } from '../fleet/fleet-worker.ts'
import { DEFAULT_SPEC, type Launch, launchOf, type StartStateFile } from '../fleet/launch.ts'
import type { ModelFolder } from './model-folder.ts'

export interface ModelHostOptions {
  readonly folder: ModelFolder
  readonly fleet: Fleet
  /** Time that requests of a replaced worker get to finish. */
  readonly drainMs?: number
}

const DEFAULT_DRAIN_MS = 600_000

export class ModelHost implements ModelAdmin {
  readonly #options: ModelHostOptions
  readonly #fleet: Fleet
  #isStopping = false
  /** One change at a time: two models that load at once would each count on the same memory. */
  #turn: Promise<unknown> = Promise.resolve()

  constructor(options: ModelHostOptions) {
    this.#options = options
    this.#fleet = options.fleet
  }

  get registry(): ModelRegistry {
    return this.#fleet.registry
  }

  /** Serves a model from the start: it is listed while it loads, and stays listed if it fails. */
  async begin(launches: readonly Launch[]): Promise<void> {
    const workers = launches.map((launch) => this.#fleet.create(launch))
    await Promise.all(workers.map((worker) => worker.start()))
  }

  load(choice: ModelChoice): Promise<boolean> {
    return this.#inTurn(async () => {
      const file = this.#options.folder.find(choice.file, choice.param)
      const { id, quant } = choice
      const adapters = this.#adaptersOf(choice)
      const spec = { ...DEFAULT_SPEC, model_path: file, model_name: id, quant }
      return await this.#replace(launchOf(spec, { file, adapters }))
    })
  }

  remove(id: string | null): Promise<void> {
    return this.#inTurn(async () => {
      const names = id === null ? this.#fleet.names : [this.#find(id)]
      const isThere = ({ isServing, isReturning }: FleetWorker) => isServing || isReturning
      const workers = this.#fleet.workers.filter(isThere)
      this.#retire(workers.filter(({ launch }) => names.includes(launch.id)))
    })
  }

  addStartStates({ model, states, instead = [], param }: StartStatesChoice): Promise<void> {
    return this.#inTurn(async () => {
      const { folder } = this.#options
      const add = states.map(({ name, file }) => ({ name, path: folder.find(file, param) }))
      await changeStartStates(this.#fleet, this.#find(model), { add, remove: instead })
    })
  }

  removeStartStates(): Promise<void> {
    return this.#inTurn(async () => {
      for (const name of this.#fleet.names) {
        const launches = this.#fleet.workersOf(name).map(({ launch }) => launch)
        const states = launches.flatMap(({ startStates }) => startStates.map((state) => state.name))
        const remove = [...new Set(states)]
        if (remove.length > 0) await changeStartStates(this.#fleet, name, { add: [], remove })
      }
    })
  }

  /** Ends all workers, whatever they do. */
  async stop(): Promise<void> {
    this.#isStopping = true
    await this.#fleet.stop()
    await this.#turn
  }

  #inTurn<T>(change: () => Promise<T>): Promise<T> {
    const next = this.#turn.then(() => {
      if (this.#isStopping) throw stopped()
      return change().catch((thrown) => {
        throw this.#options.folder.conceal(thrown)
      })
    })
    this.#turn = next.catch(() => {})
    return next
  }

  #adaptersOf({ adapter }: ModelChoice): Launch['adapters'] {
    if (adapter === undefined) return undefined
    const path = this.#options.folder.find(adapter.file, adapter.param)
    return [adapter.scale === null ? { path } : { path, scale: adapter.scale }]
  }

  #find(id: string | null): string {
    const { names } = this.#fleet
    const only = id === null && names.length === 1 ? names[0] : undefined
    const found = id === null ? only : names.find((name) => name === id)
    if (found !== undefined) return found
    if (id === null && names.length === 0)
      throw new SkeinError('model_not_loaded', 'no model is loaded here; load one first')
    const message =
      id === null
        ? `model: ${names.length} models are served; name one`
        : 'model: no model of that name; GET /v1/models lists the names'
    throw new SkeinError(id === null ? 'invalid_request' : 'not_found', message, { param: 'model' })
  }

  /** The old workers serve until as many new ones have answered. False if they already are what was asked for. */
  async #replace(launch: Launch): Promise<boolean> {
    const all = this.#fleet.serving(launch.id)
    // Workers that failed to start while others served never answered a request.
    const served = all.filter(({ neverServed }) => !neverServed)
    const old = served.length === 0 ? all : served
    const isThere = old.length > 0 && old.every((worker) => worker.state === 'ready')
    const isAsked = (worker: FleetWorker) => isSame(worker.launch, launch) && worker.isUpToDate
    if (isThere && old.every(isAsked)) return false
    const launches = old.length === 0 ? [launch] : old.map((worker) => inPlaceOf(worker, launch))
    const next = launches.map((one) => this.#fleet.create(one, false))
    try {
      await this.#startChecked(next)
    } catch (thrown) {
      if (old.length === 0 || SkeinError.from(thrown).code !== 'out_of_memory') throw thrown
      await this.#follow(old, launches)
      return true
    }
    // Others may have the name meanwhile, by a restart or as replicas of the old ones.
    const others = this.#fleet.serving(launch.id).filter((other) => !isSame(other.launch, launch))
    for (const worker of next) worker.serve()
    this.#retire([...old, ...others])
    return true
  }

  /** The name reports "loading" from the start, so that requests wait and the old workers can finish. */
  async #follow(old: readonly FleetWorker[], launches: readonly Launch[]): Promise<void> {
    const next = launches.map((launch) => this.#fleet.create(launch))
    await Promise.all(old.map((worker) => worker.stop(this.#drainMs)))
    try {
      await this.#startChecked(next)
    } catch (thrown) {
      for (const worker of next) worker.withdraw()
      if (!this.#isStopping) await this.begin(old.map(({ launch }) => launch))
      throw thrown
    }
  }

  async #startChecked(workers: readonly FleetWorker[]): Promise<void> {
    try {
      await Promise.all(workers.map((worker) => worker.start()))
    } catch (thrown) {
      // Workers that were given up stay in the list with their reason.
      const others = workers.filter(({ hasEnded }) => !hasEnded)
      await Promise.all(others.map((worker) => worker.stop(0)))
      throw thrown
    }
    if (this.#isStopping) throw stopped()
  }

  #retire(workers: readonly FleetWorker[]): void {
    for (const worker of workers) void worker.stop(this.#drainMs)
  }

  get #drainMs(): number {
    return this.#options.drainMs ?? DEFAULT_DRAIN_MS
  }
}

/** Puts the new worker on the device of the one it replaces. */
function inPlaceOf({ launch: { spec } }: FleetWorker, next: Launch): Launch {
  const { gpu_id, device, pp_devices, threads, aliases } = spec
  return { ...next, spec: { ...next.spec, gpu_id, device, pp_devices, threads, aliases } }
}

function stopped(): SkeinError {
  return new SkeinError('model_not_loaded', 'the server is shutting down')
}

/** Start states do not count: they may change in the same model. */
function isSame(a: Launch, b: Launch): boolean {
  const facts = ({ file, quant, adapters }: Launch) => JSON.stringify([file, quant, adapters])
  return facts(a) === facts(b)
}

/**
 * Changes the start states of a model while its workers answer: each worker is told in turn, and future processes get
 * the new states once all have accepted. If one refuses, the ones before it are restored. It starts no worker; engines
 * know how to read the files.
 */
interface StartStateChange {
  /** They replace states of the same names. */
  readonly add: readonly StartStateFile[]
  readonly remove: readonly string[]
}

/** What a worker was told; `undo` reverts it. */
interface Step {
  readonly worker: FleetWorker
  readonly undo: () => Promise<unknown>
}

/** Waits for workers that load or have crashed. Rethrows the refusal of the first worker that refuses. */
async function changeStartStates(fleet: Fleet, model: string, change: StartStateChange): Promise<void> {
  // A worker that crashes meanwhile comes back as another process, which has not been told.
  const told = new Set<EngineClient>()
  const steps: Step[] = []
  try {
    for (let next = await untold(fleet, model, told); next !== null; ) {
      const { worker, engine } = next
      await tell(worker, engine, change, steps)
      told.add(engine)
      next = await untold(fleet, model, told)
    }
    if (told.size === 0 && change.add.length > 0) throw notReady(fleet, model)
  } catch (thrown) {
    // A process that has gone since will come back with the old states anyway.
    for (const step of steps.reverse())
      await step.undo().catch((thrown) => {
        const { message } = SkeinError.from(thrown)
        step.worker.log.add(`skein: a start state could not be put back: ${message}`)
      })
    throw thrown
  }
  for (const worker of fleet.workersOf(model)) worker.keepStartStates(changed(worker.launch.startStates, change))
}

/** Waits for a worker that has not been told, as long as one may still become ready. */
async function untold(fleet: Fleet, model: string, told: ReadonlySet<EngineClient>) {
  for (;;) {
    const workers = fleet.workersOf(model)
    for (const worker of workers) {
      const engine = worker.client
      if (engine !== null && !told.has(engine)) return { worker, engine }
    }
    if (!workers.some(({ state }) => state === 'loading' || state === 'restarting')) return null
    await new Promise<void>((resolve) => {
      const end = fleet.listen(() => {
        end()
        resolve()
      })
    })
  }
}

async function tell(worker: FleetWorker, engine: EngineClient, { add, remove }: StartStateChange, steps: Step[]) {
  const before = new Map(worker.launch.startStates.map((state) => [state.name, state]))
  const put = (state: StartStateFile) => engine.call('startStates.add', { ...state, replace: true })
  const drop = (name: string) => engine.call('startStates.remove', { name })
  for (const state of add) {
    await put(state)
    const old = before.get(state.name)
    steps.push({ worker, undo: () => (old === undefined ? drop(state.name) : put(old)) })
  }
  for (const name of remove) {
    const old = before.get(name)
    if (old === undefined) continue
    await drop(name)
    steps.push({ worker, undo: () => put(old) })
  }
}

function changed(states: readonly StartStateFile[], { add, remove }: StartStateChange): StartStateFile[] {
  const gone = new Set([...remove, ...add.map(({ name }) => name)])
  return [...states.filter(({ name }) => !gone.has(name)), ...add]
}

function notReady(fleet: Fleet, model: string): SkeinError {
  const reason = fleet.workersOf(model)[0]?.reason ?? 'stopped'
  return new SkeinError('model_not_loaded', `the model is not ready: ${reason}`)
}
