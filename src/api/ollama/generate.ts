/** POST /api/generate: one prompt, through the template of chats unless it is `raw` or fills a gap before a `suffix`. */
import { type Static, Type } from '../../files/schema-types.ts'
import { plainConversation } from '../chat/conversation.ts'
import { prepareChat } from '../chat/prepare.ts'
import type { PreparedChat } from '../chat/reply.ts'
import { notRead, type UnreadFields } from '../fields.ts'
import type { RequestLimits } from '../limits.ts'
import type { LiveCalls } from '../live-calls.ts'
import { type Fill, fill, fimPrompt, toFill } from '../openai/fim.ts'
import { present } from '../openai/sampling.ts'
import { type Call, json, post, type Reply, type Route } from '../route.ts'
import { Maybe } from '../schema.ts'
import {
  chatSettings,
  checkOptions,
  maxTokensOf,
  OLLAMA_DEFAULTS,
  refuseImages,
  samplingFieldsOf,
  sharedFields,
} from './body.ts'
import { loaded } from './chat.ts'
import { modelOf } from './models.ts'
import { Figures, replyOf } from './reply.ts'

const PATH = '/api/generate'

export const UNREAD_GENERATE: UnreadFields = {
  harmless: ['truncate', 'shift'],
  refused: { template: [''], context: [[]] },
  instead: { template: 'send the finished prompt with "raw": true', context: 'send the conversation to /api/chat' },
}

function generateBody(limits: RequestLimits) {
  return Type.Object({
    ...sharedFields(limits),
    prompt: Maybe(Type.String()),
    suffix: Maybe(Type.String()),
    system: Maybe(Type.String()),
    raw: Maybe(Type.Boolean()),
    images: Maybe(Type.Array(Type.Unknown())),
  })
}

type GenerateBody = Static<ReturnType<typeof generateBody>>

export function generateRoute(limits: RequestLimits, live: LiveCalls): Route {
  const body = generateBody(limits)
  const summary = 'Answer one prompt, as Ollama does'
  const handle = async (call: Call<GenerateBody>): Promise<Reply> => {
    const { model: name, prompt, suffix, raw, images, options, stream } = call.body
    refuseImages(images, 'images')
    checkOptions(options ?? {}, limits, call)
    const head = { model: name }
    if ((prompt ?? '') === '' && (suffix ?? '') === '') {
      modelOf(call.models, name)
      return loaded(call, { response: '' })
    }
    const isPlain = raw === true || (suffix ?? '') !== ''
    if (isPlain) {
      const job = await plainJob(call)
      if (stream === false) return json(await plainWhole(job, head))
      return { kind: 'events', events: plainStreamed(job, head) }
    }
    const chat = await prepare(call)
    const where = { live, path: PATH, signal: call.signal }
    return await replyOf(chat, where, stream !== false, ({ text, reasoning }, rest) => {
      const thought = reasoning === '' ? {} : { thinking: reasoning }
      return objectWith(head, text, { ...thought, ...rest })
    })
  }
  return post(PATH, summary, body, handle, UNREAD_GENERATE)
}

async function prepare(call: Call<GenerateBody>): Promise<PreparedChat> {
  const { body } = call
  const model = modelOf(call.models, body.model)
  const said = present(body.system) && body.system !== '' ? [{ role: 'system' as const, content: body.system }] : []
  const asked = { role: 'user' as const, content: body.prompt ?? '' }
  return await prepareChat(plainConversation([...said, asked]), { ...chatSettings(call, model), param: 'prompt' })
}

/** Without a template, so without what belongs to one. */
async function plainJob(call: Call<GenerateBody>): Promise<Fill> {
  const { body, limits } = call
  const { prompt, suffix, system, format, think, logprobs } = body
  for (const [name, value] of Object.entries({ system, format, think, logprobs }))
    if (present(value) && value !== '' && value !== false) throw notRead(name, 'it does not go with `raw` or `suffix`')
  const model = modelOf(call.models, body.model)
  const text = (suffix ?? '') === '' ? (prompt ?? '') : fimPrompt(prompt ?? '', suffix!)
  const fields = { ...samplingFieldsOf(body.options ?? {}), model: model.id }
  return await toFill({ ...call, body: fields }, text, {
    defaults: OLLAMA_DEFAULTS,
    maxTokens: maxTokensOf(body.options ?? {}, limits),
    param: 'prompt',
  })
}

function objectWith(head: object, response: string, rest: object) {
  return { ...head, created_at: new Date().toISOString(), response, ...rest }
}

async function plainWhole(job: Fill, head: object): Promise<object> {
  let whole = { response: '' }
  for await (const part of plainStreamed(job, head)) whole = { ...part, response: whole.response + part.response }
  return whole
}

async function* plainStreamed(job: Fill, head: object): AsyncGenerator<{ response: string }> {
  const figures = new Figures()
  const run = fill(job)
  let step = await run.next()
  figures.read(job.request.prompt.length)
  for (; !step.done; step = await run.next()) yield objectWith(head, step.value, { done: false })
  const { reason, completionTokens } = step.value
  yield objectWith(head, '', figures.end(reason, completionTokens))
}
