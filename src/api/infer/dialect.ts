/**
 * The dialect of RWKV-Infer: its chat, and FastAPI's errors. The chat has OpenAI's messages with sampling in `params`, names
 * for the speakers, and other defaults. Replies are OpenAI's chat completions, of which RWKV-Infer's are a part.
 */

import { PLAIN_REQUEST } from '../../engine/messages.ts'
import { invalid, notImplemented, type SkeinError } from '../../errors.ts'
import { type Static, Type } from '../../files/schema-types.ts'
import { plainForm } from '../chat/reply.ts'
import { boundariesAt, encodePrompt } from '../encode.ts'
import { checkFields } from '../fields.ts'
import type { RequestLimits } from '../limits.ts'
import type { LiveCalls } from '../live-calls.ts'
import { type ServedModel, weighted } from '../models.ts'
import { type Chat, replyOf } from '../openai/chat.ts'
import { chatBody, toTurns } from '../openai/chat-schema.ts'
import { UNREAD } from '../openai/parameters.ts'
import {
  cacheOf,
  checkCombinations,
  filled,
  oneMaxTokens,
  present,
  type SamplingDefaults,
  toSampling,
  toStop,
} from '../openai/sampling.ts'
import { type Call, type Dialect, post, type Route } from '../route.ts'
import { BoundedInteger, Matching, Maybe } from '../schema.ts'
import { refuseSession } from '../sessions/use.ts'
import { layoutOf, renderTurns, turnEnds } from '../template.ts'
import { adminRoutes } from './admin.ts'

export function inferDialect(limits: RequestLimits, live: LiveCalls): Dialect {
  return {
    name: 'rwkv_infer',
    about: 'RWKV-Infer',
    routes: [...inferChatRoutes(limits, live), ...adminRoutes()],
    renderError: renderDetail,
    statusOf,
  }
}

/** The error of RWKV-Infer's routes: FastAPI's. What a file made fail is its 500, whatever was wrong with the file. */
export function renderDetail(error: SkeinError): object {
  return { detail: error.message }
}

export function statusOf({ code }: SkeinError): number | undefined {
  const isFile = code === 'unsupported_weights' || code === 'corrupt_weights'
  return isFile || code === 'state_incompatible' ? 500 : undefined
}

const DEFAULTS: SamplingDefaults & { readonly maxTokens: number } = {
  maxTokens: 1024,
  topP: 0.3,
  presencePenalty: 0.5,
  frequencyPenalty: 0.5,
  penaltyDecay: 0.996,
}

/** Names of speakers become heads of turns. */
const Name = Matching('^[\\p{L}\\p{N}][\\p{L}\\p{N} _.-]{0,31}$', 'a name of 1 to 32 letters, digits, spaces and "_.-"')

function inferChatRoutes(limits: RequestLimits, live: LiveCalls): readonly Route[] {
  const body = inferBody(limits)
  const summary = 'Answer a conversation, with the defaults of RWKV-Infer'
  const read = Object.keys(body.properties)
  const chat = (path: string) =>
    post(path, summary, body, async (call) => {
      const merged = { ...call, body: mergedOf(call.body) }
      checkFields(merged.body, { ...UNREAD, read }, call.warn)
      return replyOf({ ...(await prepare(merged)), path, live }, call.body.stream === true)
    })
  return [chat('/chat/completions'), { ...chat('/v1/chat/completions'), access: 'password', claims: isInferChat }]
}

function inferBody(limits: RequestLimits) {
  const { logprobs: _logprobs, top_logprobs: _top, enable_think: _think, ...shared } = chatBody(limits).properties
  const fields = { ...shared, n: Maybe(BoundedInteger(1, 1)) }
  const own = {
    system_name: Maybe(Name),
    user_name: Maybe(Name),
    assistant_name: Maybe(Name),
    // Not read by RWKV-Infer either.
    half_life: Maybe(Type.Number()),
    mrss_gatingweight: Maybe(Type.Array(Type.Number({ minimum: 0 }), { maxItems: 64 })),
  }
  const { messages: _messages, model: _model, stream: _stream, ...rest } = fields
  // The body's own fields were read before this route was called.
  const { priority: _priority, timeout: _timeout, ...sampling } = rest
  return Type.Object({
    ...fields,
    ...own,
    params: Maybe(Type.Object({ ...sampling, ...own })),
    delete_ragprompt: Maybe(Type.Boolean()),
    // How much of the messages is new: found out here by comparing.
    minimum_gen_count: Maybe(Type.Integer()),
  })
}

type InferBody = Static<ReturnType<typeof inferBody>>
type MergedBody = Omit<InferBody, 'params'>

/** Names of the speakers, and those that they have anyway. */
const NAMES = [
  ['system_name', 'System'],
  ['user_name', 'User'],
  ['assistant_name', 'Assistant'],
] as const

function isInferChat(body: unknown): boolean {
  if (typeof body !== 'object' || body === null) return false
  const { messages, params, mrss_gatingweight, contents, ...rest } = body as Record<string, unknown>
  // RWKV-Runner sends the names beside the messages.
  const hasName = NAMES.some(([field, name]) => {
    const given = rest[field]
    return typeof given === 'string' && given !== name
  })
  const isOurs = present(params) || present(mrss_gatingweight) || hasName
  return filled(messages) && isOurs && !filled(contents)
}

async function prepare(call: Call<MergedBody>): Promise<Chat> {
  const { body, limits, signal, tenant } = call
  refuseSession(body, 'use /v1/chat/completions without params')
  if (body.delete_ragprompt === true)
    throw notImplemented('delete_ragprompt', 'leave the messages out of the history instead')
  checkCombinations(body)
  const model = call.models.get(body.model)
  const layout = layoutOf({ system: body.system_name, user: body.user_name, assistant: body.assistant_name })
  const turns = toTurns(body.messages.map(withoutRag))
  const { heads } = layout
  const text = renderTurns(turns, heads.assistant, layout)
  const prompt = await encodePrompt(model, text, 'messages', signal)
  return {
    model,
    request: {
      ...PLAIN_REQUEST,
      id: `chatcmpl-${call.id}`,
      prompt,
      boundaries: boundariesAt(prompt, model.tokenizer, turnEnds(turns, layout)),
      maxTokens: oneMaxTokens(body, limits) ?? DEFAULTS.maxTokens,
      sampling: toSampling(body, model, DEFAULTS),
      stop: toStop(body, [`\n\n${heads.user}`, `\n\n${heads.system}`], model, limits),
      tenant,
      cache: cacheOf(body),
      ...mixtureOf(body, model),
    },
    form: plainForm('none'),
    chunkTokens: 1,
    includeUsage: body.stream_options?.include_usage === true,
    created: call.now,
    signal,
  }
}

/** Weights of a mixture for this request alone. */
function mixtureOf({ mrss_gatingweight: weights }: MergedBody, { mixture }: ServedModel) {
  if (!present(weights)) return {}
  if (mixture === undefined) throw invalid('mrss_gatingweight', 'the model that was asked for is no mixture of states')
  const states = mixture.states.map(({ startState }) => startState)
  return { mixture: weighted(states, weights, 'mrss_gatingweight') }
}

/** Fields beside `params` take precedence over those in it. */
function mergedOf({ params, ...outer }: InferBody): MergedBody {
  const given = Object.entries(outer).filter(([, value]) => present(value))
  // Two names of one thing.
  const isLimited = present(outer.max_tokens) || present(outer.max_completion_tokens)
  const limits = isLimited ? { max_tokens: null, max_completion_tokens: null } : {}
  return { ...params, ...limits, ...Object.fromEntries(given) } as MergedBody
}

/** Retrieved text is the system's. */
function withoutRag(message: InferBody['messages'][number]): InferBody['messages'][number] {
  return message.role === 'rag' ? { ...message, role: 'system' } : message
}
