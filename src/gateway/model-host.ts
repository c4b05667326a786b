/**
 * The models of a gateway that may change while it runs: loaded, replaced, given start states and removed by name. What
 * replaces a model is started beside it and must answer before it takes the name; the old worker goes when its requests
 * have ended. Only where the two cannot run side by side does the old one end first, and come back if the new one fails. It knows no HTTP and no files: a launcher makes the worker, dialects give the names.
 */
import { randomUUID } from 'node:crypto'
import { setTimeout as delay } from 'node:timers/promises'
import type { ModelAdmin, ModelChoice, ModelRegistry, StartStateChoice } from '../api/models.ts'
import type { EngineClient } from '../engine/client.ts'
import type { GenerateRequest } from '../engine/messages.ts'
import { SkeinError } from '../errors.ts'
import type { ModelFolder } from './model-folder.ts'
import { type EngineSource, type RegisteredModel, registryOver } from './registry.ts'

/** What keeps a worker alive; `Supervisor` does. */
export interface Keeper extends EngineSource {
  /** Resolves when it is ready, throws if it never will be. */
  start(): Promise<void>
  stop(): Promise<void>
}

/** Everything that a worker is made of. Compared to tell whether a model is already served as asked. */
export interface Launch {
  readonly id: string
  /** Real path of the checkpoint. */
  readonly file: string
  /** How matrices are held; null: as the server was told to. */
  readonly quant: string | null
  readonly startStates: readonly { readonly name: string; readonly path: string }[]
}

export interface Launched {
  readonly keeper: Keeper
  readonly tokenizer: RegisteredModel['tokenizer']
}

export interface ModelHostOptions {
  readonly folder: ModelFolder
  /** Makes a worker without starting it; throws for a file that cannot be one. */
  readonly launch: (launch: Launch) => Launched
  /** Whether the two cannot run side by side, because both would write to one store. Absent: any two can. */
  readonly excludes?: (old: Launch, next: Launch) => boolean
  /** How long requests of a replaced worker may go on. */
  readonly drainMs?: number
}

interface Hosted extends RegisteredModel {
  readonly launch: Launch
  readonly source: Keeper
}

const DEFAULT_DRAIN_MS = 600_000
const DRAIN_POLL_MS = 200

export class ModelHost implements ModelAdmin {
  readonly registry: ModelRegistry
  readonly #options: ModelHostOptions
  readonly #models = new Map<string, Hosted>()
  /** Workers that have been replaced and still answer. */
  readonly #leaving = new Set<Promise<void>>()
  readonly #stopping = new AbortController()
  /** One change at a time: two models loading at once would each think the memory theirs. */
  #turn: Promise<unknown> = Promise.resolve()

  constructor(options: ModelHostOptions) {
    this.#options = options
    this.registry = registryOver(() => [...this.#models.values()])
  }

  /** Serves a model from the start: it is listed while it loads, and stays listed when it fails. */
  async begin(launch: Launch): Promise<void> {
    const hosted = this.#make(launch)
    this.#models.set(launch.id, hosted)
    await hosted.source.start()
  }

  load(choice: ModelChoice): Promise<void> {
    return this.#inTurn(async () => {
      const file = this.#options.folder.find(choice.file, choice.param)
      const launch = { id: choice.id, file, quant: choice.quant, startStates: [] }
      await this.#replace(launch)
    })
  }

  remove(id: string | null): Promise<void> {
    return this.#inTurn(async () => {
      const gone = id === null ? [...this.#models.values()] : [this.#find(id)]
      for (const hosted of gone) {
        this.#models.delete(hosted.id)
        this.#retire(hosted)
      }
    })
  }

  addStartState({ model, file, name, param }: StartStateChoice): Promise<void> {
    return this.#inTurn(async () => {
      const path = this.#options.folder.find(file, param)
      const { launch } = this.#find(model)
      const others = launch.startStates.filter((state) => state.name !== name)
      await this.#replace({ ...launch, startStates: [...others, { name, path }] })
    })
  }

  removeStartStates(): Promise<void> {
    return this.#inTurn(async () => {
      for (const { launch } of [...this.#models.values()]) {
        if (launch.startStates.length > 0) await this.#replace({ ...launch, startStates: [] })
      }
    })
  }

  /** Ends all workers, whatever they do. */
  async stop(): Promise<void> {
    this.#stopping.abort()
    const hosted = [...this.#models.values()]
    await Promise.all([...hosted.map(({ source }) => source.stop()), ...this.#leaving])
    await this.#turn
  }

  #inTurn<T>(change: () => Promise<T>): Promise<T> {
    const next = this.#turn.then(() => {
      if (this.#stopping.signal.aborted) throw stopped()
      return change()
    })
    this.#turn = next.catch(() => {})
    return next
  }

  #find(id: string | null): Hosted {
    const only = id === null && this.#models.size === 1 ? [...this.#models.values()][0] : undefined
    const found = id === null ? only : this.#models.get(id)
    if (found !== undefined) return found
    const message =
      id === null
        ? `model: ${this.#models.size} models are served; name one`
        : 'model: no model of that name; GET /v1/models lists the names'
    throw new SkeinError(id === null ? 'invalid_request' : 'not_found', message, { param: 'model' })
  }

  #make(launch: Launch): Hosted {
    const { keeper, tokenizer } = this.#options.launch(launch)
    return { id: launch.id, launch, tokenizer, source: keeper }
  }

  /** Until the new worker has answered, the old one does. */
  async #replace(launch: Launch): Promise<void> {
    const old = this.#models.get(launch.id)
    if (old?.source.state === 'ready' && isSame(old.launch, launch)) return
    if (old !== undefined && this.#options.excludes?.(old.launch, launch)) {
      await this.#follow(old, launch)
      return
    }
    const hosted = this.#make(launch)
    await this.#startChecked(hosted)
    this.#models.set(launch.id, hosted)
    if (old !== undefined) this.#retire(old)
  }

  /** The name says "loading" from the start, so that requests wait elsewhere and the old worker comes to its end. */
  async #follow(old: Hosted, launch: Launch): Promise<void> {
    const hosted = this.#make(launch)
    this.#models.set(launch.id, hosted)
    await this.#drain(old.source)
    try {
      await this.#startChecked(hosted)
    } catch (thrown) {
      const again = this.#make(old.launch)
      this.#models.set(launch.id, again)
      if (!this.#stopping.signal.aborted) await again.source.start()
      throw thrown
    }
  }

  async #startChecked(hosted: Hosted): Promise<void> {
    const onStop = () => void hosted.source.stop()
    this.#stopping.signal.addEventListener('abort', onStop)
    try {
      await hosted.source.start()
      await probe(hosted.source.client)
    } catch (thrown) {
      await hosted.source.stop()
      throw thrown
    } finally {
      this.#stopping.signal.removeEventListener('abort', onStop)
    }
    if (this.#stopping.signal.aborted) throw stopped()
  }

  #retire({ source }: Hosted): void {
    const gone = this.#drain(source).finally(() => this.#leaving.delete(gone))
    this.#leaving.add(gone)
  }

  /** Waits until nothing has run for two looks in a row: a request may be on its way between them. */
  async #drain(source: Keeper): Promise<void> {
    const end = performance.now() + (this.#options.drainMs ?? DEFAULT_DRAIN_MS)
    const { signal } = this.#stopping
    for (let idle = 0; idle < 2 && performance.now() < end && !signal.aborted; ) {
      await delay(DRAIN_POLL_MS, undefined, { signal }).catch(() => {})
      const stats = source.client?.stats
      idle = stats === undefined || stats.running + stats.waiting === 0 ? idle + 1 : 0
    }
    await source.stop()
  }
}

function stopped(): SkeinError {
  return new SkeinError('model_not_loaded', 'the server is shutting down')
}

function isSame(a: Launch, b: Launch): boolean {
  return JSON.stringify(a) === JSON.stringify(b)
}

/** One token, to see that the worker does not only listen. */
async function probe(client: EngineClient | null): Promise<void> {
  if (client === null) throw new SkeinError('model_not_loaded', 'the worker ended as it began')
  for await (const event of client.generate(probeRequest())) {
    if (event.type === 'error') throw SkeinError.fromShape(event.error)
  }
}

function probeRequest(): GenerateRequest {
  return {
    id: `probe-${randomUUID()}`,
    prompt: Int32Array.of(0),
    n: 1,
    maxTokens: 1,
    sampling: {
      temperature: 0,
      topK: 0,
      topP: 1,
      minP: 0,
      presencePenalty: 0,
      frequencyPenalty: 0,
      penaltyDecay: 1,
      repetitionPenalty: 1,
      seed: null,
      logitBias: [],
      bannedTokens: [],
    },
    stop: { strings: [], tokens: [], ignoreEos: true },
    logprobs: null,
    promptLogprobs: null,
    cache: 'no-store',
  }
}
