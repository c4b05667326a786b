/** Models and start states by the routes of RWKV-Infer, and the list of names that its clients choose from. */
import Type from 'typebox'
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
    operators(loadRoute()),
    operators(
      post('/removemodel', 'Remove a model, or all of them', removeBody, async (call) => {
        await adminOf(call).remove(call.body.model_viewname ?? null)
        return json(SUCCESS)
      }),
    ),
    operators(loadStateRoute()),
    operators(loadMixtureRoute()),
    operators(weightsRoute()),
    operators(
      post('/removestatemodel', 'Remove all start states', Type.Object({}), async (call) => {
        await adminOf(call).removeStartStates()
        return json(SUCCESS)
      }),
    ),
  ]
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
  return post('/loadmodel', 'Load a model from the folder of models', body, async (call) => {
    const { model_filename, model_viewname, model_strategy } = call.body
    await adminOf(call).load({
      file: model_filename,
      id: model_viewname ?? 'default model',
      quant: quantOf(model_strategy ?? ''),
      param: 'model_filename',
    })
    return json(SUCCESS)
  })
}

function loadStateRoute(): Route {
  const body = Type.Object({
    state_filename: FileName,
    state_viewname: ViewName,
    model_viewname: Maybe(ViewName),
  })
  return post('/loadstatemodel', 'Give a model a tuned start state', body, async (call) => {
    const { state_filename, state_viewname, model_viewname } = call.body
    await adminOf(call).addStartStates({
      model: model_viewname ?? null,
      states: [{ name: state_viewname, file: state_filename }],
      param: 'state_filename',
    })
    return json(SUCCESS)
  })
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
  return post('/mrss_loadstatemodel', summary, body, async (call) => {
    const { body } = call
    await adminOf(call).addMixture({
      model: body.model_viewname ?? null,
      name: body.state_viewname,
      files: body.state_filenames,
      withOriginal: /^true$/i.test(String(body.contain_originalstate ?? false)),
      weights: body.state_gatingweight ?? null,
      defaults: {
        temperature: body.default_temperature ?? null,
        topP: body.default_top_p ?? null,
      },
      param: 'state_filenames',
    })
    return json(SUCCESS)
  })
}

function weightsRoute(): Route {
  const body = Type.Object({
    state_viewname: ViewName,
    state_gatingweight: Weights,
    model_viewname: Maybe(ViewName),
  })
  const summary = 'Change the weights of a mixture'
  return post('/mrss_set_gatingweight', summary, body, async (call) => {
    const { model_viewname, state_viewname, state_gatingweight } = call.body
    const model = model_viewname ?? null
    await adminOf(call).setMixtureWeights(model, state_viewname, state_gatingweight)
    return json(SUCCESS)
  })
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
