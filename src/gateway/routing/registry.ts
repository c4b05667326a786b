/**
 * The models that a gateway serves, by name, each with the source of its engine (a supervisor, or an engine in this
 * process).
 */
import type { ModelEntry, ModelRegistry, ServedModel, TextCodec } from '../../api/models.ts'
import { invalid, SkeinError } from '../../errors.ts'
import { type StartStateName, startStateNames, withStartState } from './start-state-names.ts'

/** What a registry needs of a model's source; `Supervisor` is one. */
export type EngineSource = Pick<ModelEntry, 'state' | 'reason' | 'client' | 'workers'>

export interface RegisteredModel {
  readonly id: string
  /** Other names of the model. */
  readonly aliases?: readonly string[]
  readonly tokenizer: TextCodec
  readonly source: EngineSource
}

export function createRegistry(models: readonly RegisteredModel[]): ModelRegistry {
  return registryOver(() => models)
}

/** A registry of models that come and go: `models` is called at every access. `none`: the error while there are none. */
export function registryOver(
  models: () => readonly RegisteredModel[],
  none = 'no model is loaded here; POST /api/workers/start starts one',
): ModelRegistry {
  const created = Math.floor(Date.now() / 1000)
  return {
    list: () => models().map((model) => entryOf(model, created)),
    get: (name) => {
      const all = models()
      const named = all.flatMap((model) => [model.id, ...(model.aliases ?? [])].map((id) => [id, model] as const))
      // A model's own name takes precedence over an alias of another.
      const byId = new Map([...named, ...all.map((model) => [model.id, model] as const)])
      const names = startStateNames(name, (id) => byId.has(id) || meansTheOnlyOne(id))
      const isThere = ({ model, startState }: StartStateName) =>
        startState !== null && byId.get(model ?? '')?.source.client?.info.startStates?.includes(startState)
      const asked = names.find(isThere) ?? names[0]
      const model = served(find(byId, asked.model, none), created)
      return asked.startState === null ? model : withStartState(model, asked.startState)
    },
  }
}

/**
 * Refuses a request, whose body is not there yet, if every model would refuse it afterwards: most of what comes to an overloaded
 * server is refused, and its time is that of the answers.
 */
export function refuseIfFull(models: ModelRegistry, tenant: string): void {
  let refusal: SkeinError | null = null
  for (const { client } of models.list()) {
    refusal = client?.refusalOf?.(tenant) ?? null
    if (refusal === null) return
  }
  if (refusal !== null) throw refusal
}

function entryOf({ id, aliases = [], source }: RegisteredModel, created: number): ModelEntry {
  const { state, reason, client, workers } = source
  return {
    id,
    created,
    state,
    reason,
    client,
    ...(aliases.length === 0 ? {} : { aliases: [...new Set(aliases)] }),
    ...(workers === undefined ? {} : { workers }),
  }
}

/**
 * Names that clients of other RWKV servers send by default. No model has them as its own, so they mean the only model.
 */
export const GENERIC_NAMES: readonly string[] = ['rwkv', 'rwkv7', 'rwkv-7']

function meansTheOnlyOne(name: string | null | undefined): boolean {
  return !name || GENERIC_NAMES.includes(name)
}

const MOST_NAMES = 10

/** A failed model is listed, so that people see why, but no generic name means it. */
function hasOnlyFailed({ source: { workers } }: RegisteredModel): boolean {
  return workers !== undefined && workers.all === 0 && workers.failed > 0
}

function find(
  byId: ReadonlyMap<string, RegisteredModel>,
  name: string | null | undefined,
  none: string,
): RegisteredModel {
  const model = byId.get(name ?? '')
  if (model !== undefined) return model
  if (meansTheOnlyOne(name)) {
    const all = [...new Set(byId.values())]
    const able = all.filter((one) => !hasOnlyFailed(one))
    const models = able.length > 0 ? able : all
    const [only] = models
    if (only !== undefined && models.length === 1) return only
    if (models.length === 0) throw new SkeinError('model_not_loaded', none, { param: 'model' })
    throw invalid('model', `missing; ${models.length} models are served here, GET /v1/models lists their names`)
  }
  const names = [...byId.keys()].sort()
  const shown = names.slice(0, MOST_NAMES).join(', ')
  const rest = names.length > MOST_NAMES ? ' …; GET /v1/models lists them all' : ''
  throw new SkeinError('not_found', `model: no model of that name; there is ${shown}${rest}`, { param: 'model' })
}

function served({ id, tokenizer, source }: RegisteredModel, created: number): ServedModel {
  const { client, state, reason } = source
  if (client === null) {
    throw new SkeinError('model_not_loaded', `the model is not ready: ${reason ?? state}`)
  }
  return { id, created, client, tokenizer }
}
