/**
 * RWKV-Runner: /switch-model (one model at a time, until it is deployed) and /status. Its other routes are those of the OpenAI
 * dialect.
 */

import { invalid, SkeinError } from '../../errors.ts'
import { withoutCheckpointSuffix } from '../../files/checkpoint-suffix.ts'
import { type Static, Type } from '../../files/schema-types.ts'
import { renderDetail, statusOf } from '../infer/dialect.ts'
import { type Call, type Dialect, get, json, operators, post, type Route } from '../route.ts'
import { Maybe, OneOf } from '../schema.ts'

/** Words of a strategy → how matrices are held. The device is the server's: it does not change with the model. */
const PRECISIONS: Readonly<Record<string, string>> = {
  fp16: 'f16',
  bf16: 'bf16',
  fp32: 'f32',
  i8: 'int8',
  fp16i8: 'int8',
  fp32i8: 'int8',
}
const DEVICES = ['cpu', 'cuda']

export function runnerDialect(): Dialect {
  return {
    name: 'rwkv_runner',
    about: 'RWKV-Runner',
    routes: [operators(switchRoute()), statusRoute(), updateRoute()],
    renderError: renderDetail,
    statusOf,
  }
}

/** RWKV-Runner's numbers for offline, loading and working. It also reports a process id, which is always 0 here. */
function statusRoute(): Route {
  return get('/status', 'Whether a model answers, as RWKV-Runner says it', ({ models }) => {
    const all = models.list()
    const ready = all.find(({ client }) => client !== null)
    const device_name = ready?.client?.info.model.device ?? ''
    return json({ status: ready ? 3 : all.length > 0 ? 2 : 1, pid: 0, device_name })
  })
}

function updateRoute(): Route {
  const summary = 'Refused: RWKV-Runner has it, this server does not'
  return post('/update-config', summary, Type.Object({}), () => {
    const message = 'this server has no /update-config: defaults for everybody; send them with each request'
    return Promise.reject(new SkeinError('unsupported_parameter', message))
  })
}

function switchRoute(): Route {
  let isDeployed = false
  /** One switch at a time: each ends all models but its own. */
  let turn: Promise<unknown> = Promise.resolve()
  const body = Type.Object({
    model: Type.String({ minLength: 1, maxLength: 1024 }),
    strategy: Type.String(),
    deploy: Maybe(OneOf('true or false', Type.Boolean(), Type.String())),
    tokenizer: Maybe(Type.String()),
    customCuda: Maybe(Type.Boolean()),
  })
  const serveInstead = async (call: Call<Static<typeof body>>) => {
    const { model, strategy, deploy, tokenizer } = call.body
    if (isDeployed) throw new SkeinError('forbidden', 'the model has been deployed and stays')
    if (call.admin === null) throw new SkeinError('forbidden', 'the models of this server are fixed')
    if (tokenizer) throw invalid('tokenizer', 'the vocabulary is found beside the model; leave it out')
    const quant = precisionOf(strategy)
    // Its clients send the text "true".
    const willDeploy = String(deploy).toLowerCase() === 'true'
    const id = withoutCheckpointSuffix(model.split('/').at(-1)!)
    await call.admin.load({ file: model, id, quant, param: 'model' })
    const others = call.models.list().filter((entry) => entry.id !== id)
    for (const other of others) await call.admin.remove(other.id)
    isDeployed = willDeploy
    return json('success')
  }
  return post('/switch-model', 'Serve another model instead', body, (call) => {
    const next = turn.then(() => serveInstead(call))
    turn = next.catch(() => {})
    return next
  })
}

/** "cuda fp16", "cpu fp32", "cuda fp16i8": of several parts joined by "->" the first says it. */
function precisionOf(strategy: string): string | null {
  const words = strategy.split('->')[0]!.trim().split(/\s+/)
  let precision: string | null = null
  for (const word of words) {
    // "*20" is a number of layers; all layers of a model are on one device here.
    if (word === '' || DEVICES.includes(word.split(':')[0]!) || /^\*\d+\+?$/.test(word)) continue
    if (!Object.hasOwn(PRECISIONS, word)) {
      const known = Object.keys(PRECISIONS).join(', ')
      throw invalid('strategy', `"${word.slice(0, 40)}" is not known; expected one of ${known}`)
    }
    precision = PRECISIONS[word]!
  }
  return precision
}
