/** Models and start states by the routes of RWKV-Infer, and the list of names that its clients choose from. */
import Type, { type Static, type TSchema } from 'typebox'
import { SkeinError } from '../../errors.ts'
import type { MixtureAdmin, ModelAdmin, ModelEntry } from '../models.ts'
import { invalid } from '../openai/sampling.ts'
import { type Call, get, json, operators, post, type Route } from '../route.ts'
import { Maybe, OneOf } from '../schema.ts'

/** A name that can stand in a request, a list and a log. */
const ViewName = Type.String({ pattern: '^[^\\u0000-\\u001f\\u007f@]{1,128}$' })
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

export function adminRoutes(): readonly Route[] {
  return [
    get('/models', 'List the models and their start states, as a bare array', ({ models }) =>
      json(
        models
          .list()
          .flatMap(namesOf)
          .map((id) => ({ object: 'models', id })),
      ),
    ),
    loadRoute(),
    change('/removemodel', 'Remove a model, or all of them', removeBody, (admin, body) =>
      admin.remove(body.model_viewname ?? null),
    ),
    loadStateRoute(),
    loadMixtureRoute(),
    weightsRoute(),
    change('/removestatemodel', 'Remove all start states', Type.Object({}), (admin) =>
      admin.removeStartStates(),
    ),
  ]
}

/** A route that changes what is served, and says that it has. */
function change<T extends TSchema>(
  path: string,
  summary: string,
  body: T,
  act: (admin: ModelAdmin & MixtureAdmin, body: Static<T>) => Promise<void>,
): Route {
  const route = post(path, summary, body, async (call) => {
    await act(adminOf(call), call.body)
    return json(SUCCESS)
  })
  return operators(route)
}

const removeBody = Type.Object({ model_viewname: Maybe(ViewName) })

/** The model, and the model with each of its states and mixtures. */
function namesOf({ id, client, mixtures = [] }: ModelEntry): string[] {
  const states = [...(client?.info.startStates ?? []), ...mixtures]
  return [id, ...states.map((state) => `${id} ${state}`)]
}

function loadRoute(): Route {
  const body = Type.Object({
    model_filename: FileName,
    model_viewname: Maybe(ViewName),
    model_strategy: Maybe(Type.String()),
  })
  return change('/loadmodel', 'Load a model from the folder of models', body, (admin, asked) =>
    admin.load({
      file: asked.model_filename,
      id: asked.model_viewname ?? 'default model',
      quant: quantOf(asked.model_strategy ?? ''),
      param: 'model_filename',
    }),
  )
}

function loadStateRoute(): Route {
  const body = Type.Object({
    state_filename: FileName,
    state_viewname: ViewName,
    model_viewname: Maybe(ViewName),
  })
  return change('/loadstatemodel', 'Give a model a tuned start state', body, (admin, asked) =>
    admin.addStartStates({
      model: asked.model_viewname ?? null,
      states: [{ name: asked.state_viewname, file: asked.state_filename }],
      param: 'state_filename',
    }),
  )
}

const Weights = Type.Array(Type.Number({ minimum: 0 }), { minItems: 1, maxItems: 64 })

/** Its clients send the texts "True" and "False". */
const Truth = OneOf('true or false', Type.Boolean(), Type.Enum(['True', 'False', 'true', 'false']))

/** A mixture of state experts: several tuned states (and the model's own) answer as one. */
function loadMixtureRoute(): Route {
  const body = Type.Object({
    state_viewname: ViewName,
    state_filenames: Type.Array(FileName, { minItems: 1, maxItems: 64 }),
    contain_originalstate: Maybe(Truth),
    state_gatingweight: Maybe(Weights),
    default_temperature: Maybe(Type.Number({ minimum: 0, maximum: 1000 })),
    default_top_p: Maybe(Type.Number({ minimum: 0, maximum: 1 })),
    model_viewname: Maybe(ViewName),
  })
  const summary = 'Let several tuned start states of a model answer together'
  return change('/mrss_loadstatemodel', summary, body, (admin, asked) =>
    admin.addMixture({
      model: asked.model_viewname ?? null,
      name: asked.state_viewname,
      files: asked.state_filenames,
      withOriginal: /^true$/i.test(String(asked.contain_originalstate ?? false)),
      weights: asked.state_gatingweight ?? null,
      defaults: {
        temperature: asked.default_temperature ?? null,
        topP: asked.default_top_p ?? null,
      },
      param: 'state_filenames',
    }),
  )
}

function weightsRoute(): Route {
  const body = Type.Object({
    state_viewname: ViewName,
    state_gatingweight: Weights,
    model_viewname: Maybe(ViewName),
  })
  const summary = 'Change the weights of a mixture'
  return change('/mrss_set_gatingweight', summary, body, (admin, asked) =>
    admin.setMixtureWeights(
      asked.model_viewname ?? null,
      asked.state_viewname,
      asked.state_gatingweight,
    ),
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
