/** Models and start states by the routes of RWKV-Infer, and the list of names that its clients choose from. */

import { invalid, SkeinError } from '../../errors.ts'
import { type Static, type TSchema, Type } from '../../files/schema-types.ts'
import {
  type AdapterFile,
  type MixtureAdmin,
  type ModelAdmin,
  type ModelEntry,
  type ModelRegistry,
  stateNames,
} from '../models.ts'
import { unsupported } from '../openai/parameters.ts'
import { present } from '../openai/sampling.ts'
import { type Call, get, json, operators, post, type Route } from '../route.ts'
import { Maybe, ModelName, OneOf } from '../schema.ts'

const FileName = Type.String({ minLength: 1, maxLength: 1024 })

/** `model_strategy` → how matrices are held. '' is the server's own choice; "quant" is bitsandbytes' NF4. */
const STRATEGIES: Readonly<Record<string, string | null>> = {
  '': null,
  quant: 'nf4',
  nf4: 'nf4',
  int8: 'int8',
  fp8: 'fp8',
  fp16: 'f16',
  bf16: 'bf16',
  fp32: 'f32',
}

const SUCCESS = { status: 'success' }

/**
 * RWKV-Infer has one model, and its clients do not say which one a state is for. Where several are served here, it is
 * the one that /loadmodel loaded last.
 */
class LastLoaded {
  #id: string | null = null

  set(id: string): void {
    this.#id = id
  }

  /** Null: the only model there is. */
  unless(asked: string | null | undefined, models: ModelRegistry): string | null {
    if (asked) return asked
    return models.list().some(({ id }) => id === this.#id) ? this.#id : null
  }
}

export function adminRoutes(): readonly Route[] {
  const last = new LastLoaded()
  return [
    get('/models', 'List the models and their start states, as a bare array', ({ models }) =>
      json(
        models
          .list()
          .flatMap(namesOf)
          .map((id) => ({ object: 'models', id })),
      ),
    ),
    loadRoute(last),
    change('/removemodel', 'Remove a model, or all of them', removeBody, (admin, body) =>
      admin.remove(body.model_viewname ?? null),
    ),
    loadStateRoute(last),
    loadMixtureRoute(last),
    weightsRoute(last),
    change('/removestatemodel', 'Remove all start states', Type.Object({}), (admin) => admin.removeStartStates()),
  ]
}

/** A route that changes what is served, and says that it has. */
function change<T extends TSchema>(
  path: string,
  summary: string,
  body: T,
  act: (admin: ModelAdmin & MixtureAdmin, body: Static<T>, models: ModelRegistry) => Promise<void>,
): Route {
  const route = post(path, summary, body, async (call) => {
    await act(adminOf(call), call.body, call.models)
    return json(SUCCESS)
  })
  return operators(route)
}

const removeBody = Type.Object({ model_viewname: Maybe(ModelName) })

/** The model, and the model with each of its states and mixtures. */
function namesOf(entry: ModelEntry): string[] {
  const { id } = entry
  return [id, ...stateNames(entry).map((state) => `${id} ${state}`)]
}

function loadRoute(last: LastLoaded): Route {
  const body = Type.Object({
    model_filename: FileName,
    model_viewname: Maybe(ModelName),
    model_strategy: Maybe(Type.String()),
    adapter_filename: Maybe(Type.String({ maxLength: 1024 })),
    adapter_mode: Maybe(Type.String()),
    adapter_scaling: Maybe(OneOf('a number', Type.Number(), Type.String())),
  })
  const summary = 'Load a model from the folder of models'
  return change('/loadmodel', summary, body, async (admin, asked) => {
    const id = asked.model_viewname ?? 'default model'
    const quant = quantOf(asked.model_strategy ?? '')
    refuseOthers(asked)
    const adapter = adapterOf(asked)
    await admin.load({ file: asked.model_filename, id, quant, adapter, param: 'model_filename' })
    last.set(id)
  })
}

/** An adapter's kind is in its file; these kinds can be merged without a second file. */
const ADAPTER_MODES = ['', 'lora', 'dora', 'bone']

interface AdapterFields {
  readonly adapter_filename?: string | null
  readonly adapter_mode?: string | null
  readonly adapter_scaling?: number | string | null
}

function adapterOf(asked: AdapterFields): AdapterFile | undefined {
  const { adapter_filename: file, adapter_mode: mode, adapter_scaling: scaling } = asked
  if (!ADAPTER_MODES.includes(mode ?? ''))
    throw invalid('adapter_mode', `expected one of ${ADAPTER_MODES.slice(1).join(', ')}`)
  const scale = isEmpty(scaling) ? null : Number(scaling)
  if (scale !== null && !Number.isFinite(scale)) throw invalid('adapter_scaling', 'not a number')
  return file ? { file, scale, param: 'adapter_filename' } : undefined
}

/** Fields of later RWKV-Infers that would change answers here → the values at which they do not. */
const NOT_READ: Readonly<Record<string, readonly unknown[]>> = {
  template: ['world'],
  endtoken: [],
  default_temperature: [1],
  default_top_p: [0.3],
  rope_theta: [0],
  rms_norm_eps: [0],
}

function refuseOthers(body: object): void {
  for (const [field, value] of Object.entries(body)) {
    if (!Object.hasOwn(NOT_READ, field) || isEmpty(value)) continue
    // Its clients also write numbers as texts.
    if (NOT_READ[field]!.some((one) => one === value || one === Number(value))) continue
    throw unsupported(field, 'leave it out')
  }
}

function isEmpty(value: unknown): value is null | undefined | '' {
  return !present(value) || value === ''
}

function loadStateRoute(last: LastLoaded): Route {
  const body = Type.Object({ state_filename: FileName, state_viewname: ModelName, model_viewname: Maybe(ModelName) })
  const summary = 'Give a model a tuned start state'
  return change('/loadstatemodel', summary, body, (admin, asked, models) =>
    admin.addStartStates({
      model: last.unless(asked.model_viewname, models),
      states: [{ name: asked.state_viewname, file: asked.state_filename }],
      param: 'state_filename',
    }),
  )
}

const Weights = Type.Array(Type.Number({ minimum: 0 }), { minItems: 1, maxItems: 64 })

/** Its clients send the texts "True" and "False". */
const Truth = OneOf('true or false', Type.Boolean(), Type.Enum(['True', 'False', 'true', 'false']))

/** A mixture of state experts: several tuned states (and the model's own) answer as one. */
function loadMixtureRoute(last: LastLoaded): Route {
  const body = Type.Object({
    state_viewname: ModelName,
    state_filenames: Type.Array(FileName, { minItems: 1, maxItems: 64 }),
    contain_originalstate: Maybe(Truth),
    state_gatingweight: Maybe(Weights),
    default_temperature: Maybe(Type.Number({ minimum: 0, maximum: 1000 })),
    default_top_p: Maybe(Type.Number({ minimum: 0, maximum: 1 })),
    model_viewname: Maybe(ModelName),
  })
  const summary = 'Let several tuned start states of a model answer together'
  return change('/mrss_loadstatemodel', summary, body, (admin, asked, models) =>
    admin.addMixture({
      model: last.unless(asked.model_viewname, models),
      name: asked.state_viewname,
      files: asked.state_filenames,
      withOriginal: /^true$/i.test(String(asked.contain_originalstate ?? false)),
      weights: asked.state_gatingweight ?? null,
      defaults: { temperature: asked.default_temperature ?? null, topP: asked.default_top_p ?? null },
      param: 'state_filenames',
    }),
  )
}

function weightsRoute(last: LastLoaded): Route {
  const body = Type.Object({ state_viewname: ModelName, state_gatingweight: Weights, model_viewname: Maybe(ModelName) })
  const summary = 'Change the weights of a mixture'
  return change('/mrss_set_gatingweight', summary, body, (admin, asked, models) =>
    admin.setMixtureWeights(last.unless(asked.model_viewname, models), asked.state_viewname, asked.state_gatingweight),
  )
}

function quantOf(strategy: string): string | null {
  const quant = Object.hasOwn(STRATEGIES, strategy) ? STRATEGIES[strategy] : undefined
  if (quant !== undefined) return quant
  const known = Object.keys(STRATEGIES).map((name) => JSON.stringify(name))
  throw invalid('model_strategy', `expected one of ${known.join(', ')}`)
}

function adminOf({ admin }: Call): ModelAdmin & MixtureAdmin {
  if (admin !== null) return admin
  throw new SkeinError('forbidden', 'the models of this server are fixed')
}
