/** The dialect of Anthropic: /v1/messages and its count of tokens, streams of named events, and its own header for the key. */
import type { SkeinError } from '../../errors.ts'
import { Type } from '../../files/schema-types.ts'
import { prepareChat, renderConversation, toolFormatOf } from '../chat/prepare.ts'
import { type ChoiceEnd, type LiveOptions, liveReply, type PreparedChat, type PromptRead } from '../chat/reply.ts'
import { encodePrompt } from '../encode.ts'
import { checkFields } from '../fields.ts'
import type { RequestLimits } from '../limits.ts'
import type { LiveCalls } from '../live-calls.ts'
import { toSampling, toStop } from '../openai/sampling.ts'
import { type Call, type Dialect, json, post, type Reply, type Route } from '../route.ts'
import { NAMED_SSE } from '../stream-form.ts'
import { renderTurns } from '../template.ts'
import {
  constraintOf,
  conversationOf,
  type MessageBody,
  maxTokensOf,
  messageBody,
  promptFields,
  thinkingFor,
  UNREAD,
} from './body.ts'
import { Content } from './content.ts'

/** `ping` is the event that its clients skip. */
const STREAM = { ...NAMED_SSE, beat: NAMED_SSE.frame({ type: 'ping' }) }

export function anthropicDialect(limits: RequestLimits, live: LiveCalls): Dialect {
  return {
    name: 'anthropic',
    about: 'Anthropic Messages',
    stream: STREAM,
    keyHeaders: ['x-api-key'],
    routes: [messagesRoute(limits, live), countRoute(limits)],
    renderError: renderAnthropicError,
  }
}

const TYPES: Readonly<Record<number, string>> = {
  401: 'authentication_error',
  403: 'permission_error',
  404: 'not_found_error',
  413: 'request_too_large',
  429: 'rate_limit_error',
  503: 'overloaded_error',
  504: 'timeout_error',
}

/** Anthropic's client sends all messages again, without `thread`, where it reads this. */
const NO_THREADS = { details: { error_code: 'thread_unsupported_request', unsupported: ['thread'] } }

function renderAnthropicError({ status, message, param }: SkeinError): object {
  const type = TYPES[status] ?? (status >= 500 ? 'api_error' : 'invalid_request_error')
  return { type: 'error', error: { type, message, ...(param === 'thread' ? NO_THREADS : {}) } }
}

const PATH = '/v1/messages'

function messagesRoute(limits: RequestLimits, live: LiveCalls): Route {
  const body = messageBody(limits)
  const summary = 'Answer a conversation, as Anthropic does'
  const handle = async (call: Call<MessageBody>): Promise<Reply> => {
    const chat = await prepare(call)
    const where = { live, path: PATH, signal: call.signal }
    const message = new Message(chat, call.body)
    if (call.body.stream === true) return { kind: 'events', events: streamed(chat, where, message) }
    return json(await whole(chat, where, message))
  }
  return post(PATH, summary, body, handle, UNREAD)
}

function countRoute(limits: RequestLimits): Route {
  const body = Type.Object(promptFields(limits))
  const read = Object.keys(messageBody(limits).properties)
  const summary = 'How many tokens the prompt of a message has'
  return post(`${PATH}/count_tokens`, summary, body, async (call): Promise<Reply> => {
    const { body, models, signal } = call
    checkFields(body, { ...UNREAD, read }, call.warn)
    const model = models.get(body.model)
    const conversation = conversationOf(body)
    const { turns, tail, layout } = renderConversation(
      conversation,
      thinkingFor(body, call),
      constraintOf(body),
      toolFormatOf(model),
    )
    const prompt = await encodePrompt(model, renderTurns(turns, tail, layout), 'messages', signal)
    return json({ input_tokens: prompt.length })
  })
}

async function prepare(call: Call<MessageBody>): Promise<PreparedChat> {
  const { body, limits, signal, tenant } = call
  const model = call.models.get(body.model)
  const { temperature = null, top_k = null, top_p = null, stop_sequences = null } = body
  const fields = { temperature, top_k, top_p, stop: stop_sequences }
  return await prepareChat(conversationOf(body), {
    id: `msg_${call.id}`,
    maxTokens: maxTokensOf(body, limits, call),
    sampling: toSampling(fields, model),
    stop: toStop(fields, [], model, limits),
    isGathered: body.stream !== true,
    tenant,
    model,
    thinking: thinkingFor(body, call),
    constraint: constraintOf(body),
    param: 'messages',
    signal,
  })
}

async function whole(chat: PreparedChat, where: LiveOptions, message: Message): Promise<object> {
  for await (const event of liveReply(chat, where)) {
    if (event.type === 'prompt') message.begin(event)
    else if (event.type === 'pieces') message.content.add(event.pieces)
    else message.finish(event)
  }
  return message.whole()
}

async function* streamed(chat: PreparedChat, where: LiveOptions, message: Message): AsyncGenerator<object> {
  for await (const event of liveReply(chat, where)) {
    if (event.type === 'prompt') yield message.begin(event)
    else if (event.type === 'pieces') yield* message.content.add(event.pieces)
    else yield* message.finish(event)
  }
}

class Message {
  readonly content: Content
  readonly #id: string
  readonly #model: string
  readonly #stops: readonly string[]
  #usage = usageOf({ promptTokens: 0, cachedTokens: 0 }, 0)
  #read: Pick<PromptRead, 'promptTokens' | 'cachedTokens'> = { promptTokens: 0, cachedTokens: 0 }
  #stop: { readonly stop_reason: string | null; readonly stop_sequence: string | null } = {
    stop_reason: null,
    stop_sequence: null,
  }

  constructor({ request }: PreparedChat, { model, stop_sequences, thinking }: MessageBody) {
    this.content = new Content(thinking?.display !== 'omitted')
    this.#id = request.id
    this.#model = model
    this.#stops = stop_sequences ?? []
  }

  begin(read: PromptRead): object {
    this.#read = read
    this.#usage = usageOf(read, 0)
    return { type: 'message_start', message: this.whole() }
  }

  finish({ pieces, reason, matched, completionTokens }: ChoiceEnd): object[] {
    const last = [...this.content.add(pieces), ...this.content.close()]
    this.#usage = usageOf(this.#read, completionTokens)
    this.#stop = stopOf(reason, matched, this.#stops)
    return [...last, { type: 'message_delta', delta: this.#stop, usage: this.#usage }, { type: 'message_stop' }]
  }

  whole(): object {
    return {
      id: this.#id,
      type: 'message',
      role: 'assistant',
      model: this.#model,
      content: this.content.blocks(),
      ...this.#stop,
      usage: this.#usage,
    }
  }
}

function stopOf(reason: ChoiceEnd['reason'], matched: ChoiceEnd['matched'], stops: readonly string[]) {
  if (reason === 'calls') return { stop_reason: 'tool_use', stop_sequence: null }
  if (reason === 'length') return { stop_reason: 'max_tokens', stop_sequence: null }
  return typeof matched === 'string' && stops.includes(matched)
    ? { stop_reason: 'stop_sequence', stop_sequence: matched }
    : { stop_reason: 'end_turn', stop_sequence: null }
}

/** What a kept state had read already is counted apart. */
function usageOf(
  { promptTokens, cachedTokens }: Pick<PromptRead, 'promptTokens' | 'cachedTokens'>,
  completionTokens: number,
) {
  return {
    input_tokens: promptTokens - cachedTokens,
    cache_creation_input_tokens: 0,
    cache_read_input_tokens: cachedTokens,
    output_tokens: completionTokens,
  }
}
