/** llama.cpp's own routes; its OpenAI routes are those of the OpenAI dialect, and /infill is in fim/. */
import type { ErrorCode, SkeinError } from '../../errors.ts'
import { Type } from '../../files/schema-types.ts'
import type { RequestLimits } from '../limits.ts'
import type { ModelRegistry, ServedModel } from '../models.ts'
import { chatBody, thinkModeOf, toTurns } from '../openai/chat-schema.ts'
import { type Dialect, get, json, post, type Route } from '../route.ts'
import { Maybe } from '../schema.ts'
import { PLAIN_SSE } from '../stream-form.ts'
import { renderChat } from '../template.ts'
import { completionRoute, LLAMA_DEFAULTS } from './completion.ts'

const TYPES: Partial<Record<ErrorCode, string>> = {
  unauthorized: 'authentication_error',
  forbidden: 'permission_error',
  not_found: 'not_found_error',
  model_not_loaded: 'unavailable_error',
}

export function llamaDialect(limits: RequestLimits): Dialect {
  return {
    name: 'llama.cpp',
    about: 'The server of llama.cpp',
    stream: PLAIN_SSE,
    keyHeaders: ['x-api-key'],
    routes: [completionRoute(limits), ...serverRoutes(limits)],
    renderError: renderLlamaError,
  }
}

function renderLlamaError({ code, status, message, param }: SkeinError): object {
  const type = TYPES[code] ?? (status >= 500 ? 'server_error' : 'invalid_request_error')
  return { error: { code: status, message, type, param: param ?? null } }
}

/** The same as src/api/template.ts, in the language in which llama.cpp gives templates. */
const TEMPLATE =
  "{% for message in messages %}{{ {'system': 'System: ', 'user': 'User: ', 'assistant': 'Assistant: '}[message['role']] + message['content'] + '\\n\\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"

/** GET /props and /slots, POST /apply-template: what llama.cpp's clients ask of a server before they send a prompt. */
function serverRoutes(limits: RequestLimits): Route[] {
  const { messages, enable_think } = chatBody(limits).properties
  const body = Type.Object({ model: Maybe(Type.String()), messages, enable_think })
  return [
    get('/props', 'What is served, as llama.cpp describes it', ({ models, query }) =>
      json(propsOf(models.get(query.model), limits)),
    ),
    get('/slots', 'How many slots are busy, as llama.cpp lists them', ({ models, query }) =>
      json(slotsOf(models.get(query.model))),
    ),
    post('/apply-template', 'A conversation as the prompt that it becomes', body, ({ body }) => {
      const prompt = renderChat(toTurns(body.messages), thinkModeOf(body.enable_think))
      return Promise.resolve(json({ prompt }))
    }),
    get('/v1/health', 'Whether a model can answer', ({ models }) => health(models)),
  ]
}

function health(models: ModelRegistry) {
  const isReady = models.list().some(({ state }) => state === 'ready')
  if (isReady) return json({ status: 'ok' })
  const message = 'no model is ready; GET /health says why'
  return json({ error: { code: 503, message, type: 'unavailable_error' } }, 503)
}

function propsOf({ id, client }: ServedModel, limits: RequestLimits): object {
  const { info } = client
  const { temperature, topK, topP, minP } = LLAMA_DEFAULTS
  return {
    default_generation_settings: {
      n_ctx: info.maxPromptTokens,
      params: {
        temperature,
        top_k: topK,
        top_p: topP,
        min_p: minP,
        n_predict: limits.defaultChatTokens,
        repeat_penalty: 1,
        presence_penalty: 0,
        frequency_penalty: 0,
      },
    },
    total_slots: info.numSlots,
    model_alias: id,
    model_path: id,
    modalities: { vision: false, audio: false },
    chat_template: TEMPLATE,
    bos_token: '',
    eos_token: '<|endoftext|>',
    build_info: 'skein',
  }
}

/** Slots are listed without their requests, which are other callers' business. */
function slotsOf({ client }: ServedModel): object {
  const { numSlots, freeSlots } = client.stats
  return Array.from({ length: numSlots }, (_slot, id) => ({
    id,
    n_ctx: client.info.maxPromptTokens,
    is_processing: id < numSlots - freeSlots,
  }))
}
