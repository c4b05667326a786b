/** llama.cpp's own routes; its OpenAI routes are those of the OpenAI dialect, which has /infill in its list, too. */

import { PLAIN_REQUEST, type TokenText } from '../../engine/messages.ts'
import type { ErrorCode, SkeinError } from '../../errors.ts'
import { concatTokens } from '../../files/bytes.ts'
import { type Static, Type } from '../../files/schema-types.ts'
import { runAll } from '../answers.ts'
import { checkPrompt, encodePrompt } from '../encode.ts'
import { WRITTEN } from '../json-around.ts'
import type { RequestLimits } from '../limits.ts'
import type { ModelRegistry, ServedModel } from '../models.ts'
import { chatBody, thinkModeOf, toTurns } from '../openai/chat-schema.ts'
import { type Fill, fimPrompt, toFill } from '../openai/fim.ts'
import { chatLogprob, Scores } from '../openai/logprobs.ts'
import { UNREAD as OPENAI_UNREAD } from '../openai/parameters.ts'
import { checkLogprobs, type SamplingDefaults, samplingFields, toSampling, toStop } from '../openai/sampling.ts'
import { type Call, type Dialect, get, json, longJson, post, type Reply, type Route } from '../route.ts'
import { BoundedInteger, Maybe } from '../schema.ts'
import { PLAIN_SSE } from '../stream-form.ts'
import { renderChat } from '../template.ts'
import { type CompletionBody, completionBody, constraintOf, maxTokensOf, samplingFieldsOf, UNREAD } from './body.ts'

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

const LLAMA_DEFAULTS: SamplingDefaults = { temperature: 0.8, topK: 40, topP: 0.95, minP: 0.05, penaltyDecay: 1 }

function completionRoute(limits: RequestLimits): Route {
  const summary = 'Continue a prompt, as llama.cpp does'
  return post('/completion', summary, completionBody(limits), async (call) => replyOf(await prepare(call)), UNREAD)
}

async function replyOf(job: Job): Promise<Reply> {
  return job.body.stream === true ? { kind: 'events', events: streamed(job) } : await whole(job)
}

interface Job extends Fill {
  readonly body: { readonly stream?: boolean | null; readonly return_tokens?: boolean | null }
}

async function prepare(call: Call<CompletionBody>): Promise<Job> {
  const { body, limits, signal, tenant } = call
  const model = call.models.get(body.model)
  const fields = samplingFieldsOf(body)
  const constraint = constraintOf(body)
  const maxTokens = maxTokensOf(body, limits)
  const logprobs = body.n_probs ? body.n_probs : null
  checkLogprobs({ stream: body.stream ?? false }, { numAnswers: 1, maxTokens, logprobs }, limits)
  const request = {
    ...PLAIN_REQUEST,
    id: `cmpl-${call.id}`,
    prompt: await promptOf(call, model),
    maxTokens,
    sampling: toSampling(fields, model, LLAMA_DEFAULTS),
    stop: toStop(fields, [], model, limits),
    logprobs,
    tenant,
    cache: 'use',
    ...(constraint === null ? {} : { constraint }),
  } as const
  return { body, model, request, signal }
}

/** Text and tokens mixed as the client likes. */
async function promptOf({ body: { prompt }, signal }: Call<CompletionBody>, model: ServedModel): Promise<Int32Array> {
  if (typeof prompt === 'string') return encodePrompt(model, prompt, 'prompt', signal)
  const parts: Int32Array[] = []
  for (const part of prompt) {
    if (typeof part === 'number') parts.push(Int32Array.of(part))
    else if (part !== '') parts.push(await encodePrompt(model, part, 'prompt', signal))
  }
  return checkPrompt(concatTokens(parts), model, 'prompt')
}

async function whole(job: Job): Promise<Reply> {
  const text: string[] = []
  const tokens: number[] = []
  const scores = new Scores('llama')
  let last: object = {}
  for await (const piece of pieces(job)) {
    text.push(piece.content)
    tokens.push(...piece.tokens)
    await scores.add(piece.logprobs)
    last = piece.rest
  }
  const reply = { ...objectOf(job, text.join(''), tokens, WRITTEN), ...last }
  return job.request.logprobs === null ? json(reply) : longJson(reply, [await scores.json()])
}

async function* streamed(job: Job): AsyncGenerator<object> {
  for await (const { content, tokens, logprobs, rest } of pieces(job)) {
    const scores = logprobs.map((score) => ({ id: score.token, ...chatLogprob(score) }))
    yield { ...objectOf(job, content, tokens, scores), ...rest }
  }
}

function objectOf(
  { body, request }: Job,
  content: string,
  tokens: readonly number[],
  scores: readonly object[] | string,
): object {
  return {
    index: 0,
    content,
    tokens: body.return_tokens === true || body.stream === true ? tokens : [],
    ...(request.logprobs === null ? {} : { completion_probabilities: scores }),
  }
}

interface Piece {
  readonly content: string
  readonly tokens: readonly number[]
  readonly logprobs: readonly TokenText[]
  readonly rest: object
}

async function* pieces({ model, request, signal }: Job): AsyncGenerator<Piece> {
  const began = performance.now()
  let readAt = began
  let cached = 0
  const numRead = request.prompt.length
  for await (const { event } of runAll(model.client, [request], signal)) {
    if (event.type === 'prompt') {
      readAt = performance.now()
      cached = event.cachedTokens ?? 0
    } else if (event.type === 'text') {
      const { text: content, tokens, logprobs } = event
      yield { content, tokens, logprobs: logprobs ?? [], rest: { stop: false } }
    } else {
      const { reason, matched, completionTokens } = event
      const answerMs = performance.now() - readAt
      const isWord = typeof matched === 'string'
      const rest = {
        stop: true,
        id_slot: -1,
        model: model.id,
        tokens_predicted: completionTokens,
        tokens_evaluated: numRead,
        tokens_cached: cached,
        truncated: false,
        stop_type: reason === 'length' ? 'limit' : isWord ? 'word' : 'eos',
        stopping_word: isWord ? matched : '',
        timings: timingsOf(numRead - cached, readAt - began, completionTokens, answerMs),
      }
      yield { content: '', tokens: [], logprobs: [], rest }
    }
  }
}

/** `ms` of reading the prompt and of answering. */
function timingsOf(numRead: number, readMs: number, numDrawn: number, answerMs: number): object {
  const perSecond = (tokens: number, ms: number) => (ms > 0 ? (1000 * tokens) / ms : 0)
  return {
    prompt_n: numRead,
    prompt_ms: readMs,
    prompt_per_token_ms: numRead > 0 ? readMs / numRead : 0,
    prompt_per_second: perSecond(numRead, readMs),
    predicted_n: numDrawn,
    predicted_ms: answerMs,
    predicted_per_token_ms: numDrawn > 0 ? answerMs / numDrawn : 0,
    predicted_per_second: perSecond(numDrawn, answerMs),
  }
}

/**
 * POST /infill: what editors' plugins for code completion speak. Fields that bound the time of a call or choose a slot
 * promise nothing about the text and are accepted; those of samplers we do not have are refused.
 */
export function infillRoute(limits: RequestLimits): Route {
  const summary = 'Fill in between input_prefix and input_suffix'
  const handle = async (call: Call<InfillBody>) => {
    const fill = await toFill(call, infillPrompt(call.body), {
      defaults: LLAMA_DEFAULTS,
      maxTokens: maxTokensOf(call.body, limits),
      param: 'input_prefix',
    })
    return replyOf({ ...fill, body: call.body })
  }
  const harmless = [...OPENAI_UNREAD.harmless, ...UNREAD.harmless]
  return post('/infill', summary, infillBody(limits), handle, { ...OPENAI_UNREAD, harmless })
}

type InfillBody = Static<ReturnType<typeof infillBody>>

function infillBody(limits: RequestLimits) {
  const file = Type.Object({ filename: Maybe(Type.String()), text: Type.String() })
  return Type.Object({
    ...samplingFields(limits),
    n: Maybe(BoundedInteger(1, 1)),
    input_prefix: Maybe(Type.String()),
    input_suffix: Maybe(Type.String()),
    prompt: Maybe(Type.String()),
    input_extra: Maybe(Type.Array(file, { maxItems: limits.prompts })),
    n_predict: Maybe(BoundedInteger(-1, limits.maxTokens)),
  })
}

/** Other files come first, as text the model has read; `prompt` is the beginning of the middle. */
function infillPrompt(body: InfillBody): string {
  const extra = (body.input_extra ?? []).map(({ text }) => `${text}\n\n`).join('')
  return extra + fimPrompt((body.input_prefix ?? '') + (body.prompt ?? ''), body.input_suffix ?? '')
}
