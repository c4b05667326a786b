/**
 * POST /v1/chat/completions: messages to one prompt, and the engine's events to a chat completion, whole or in chunks.
 */
import type { EngineEvent, GenerateRequest, SessionPosition } from '../../engine/messages.ts'
import { runAll } from '../answers.ts'
import { boundariesAt, encodePrompt } from '../encode.ts'
import type { RequestLimits } from '../limits.ts'
import type { LiveCalls, LiveHandle } from '../live-calls.ts'
import type { ServedModel } from '../models.ts'
import { type Call, json, post, type Reply, type Route } from '../route.ts'
import {
  checkSession,
  encodeTurn,
  type SessionFields,
  sessionUse,
  wirePosition,
} from '../sessions/use.ts'
import { CHAT_STOPS, renderChat, type ThinkMode, type Turn, turnEnds } from '../template.ts'
import { ChatChoice } from './chat-choice.ts'
import {
  type ChatBody,
  chatBody,
  chatLogprobs,
  chatMaxTokens,
  thinkModeOf,
  toTurns,
} from './chat-schema.ts'
import { refuseUnread } from './parameters.ts'
import { cacheOf, checkCombinations, checkLogprobs, toSampling, toStop } from './sampling.ts'
import { systemFingerprint, usageOf } from './usage.ts'

/** Of the fields that not every route reads. */
const READ = [
  'messages',
  'best_of',
  'stream_options',
  'max_completion_tokens',
  'logprobs',
  'top_logprobs',
  'enable_think',
]

export function chatRoute(limits: RequestLimits, live: LiveCalls): Route {
  const summary = 'Answer a conversation'
  const path = '/v1/chat/completions'
  const route = post(path, summary, chatBody(limits), async (call) => {
    return replyOf({ ...(await prepare(call)), path, live }, call.body.stream === true)
  })
  // Dialects that share this path send their key in the body.
  return { ...route, access: 'password' }
}

export async function replyOf(chat: LiveChat, isStream: boolean): Promise<Reply> {
  if (isStream) return { kind: 'events', events: streamed(chat) }
  return json(await whole(chat))
}

type PromptEvent = Extract<EngineEvent, { type: 'prompt' }>

/** A chat call that has been checked and turned into what the engine needs. */
export interface Chat {
  readonly model: ServedModel
  readonly request: GenerateRequest
  readonly think: ThinkMode
  /** Tokens that a stream gathers before it sends them. */
  readonly chunkTokens: number
  readonly includeUsage: boolean
  readonly created: number
  readonly signal: AbortSignal
  /** What the client calls it; absent: as its reply does. */
  readonly name?: string | undefined
}

/** One that can be ended by its name. */
interface LiveChat extends Chat {
  readonly path: string
  readonly live: LiveCalls
}

function enter({ live, path, request, model, signal, name = request.id }: LiveChat): LiveHandle {
  const { tenant = '', n: numRows } = request
  const call = { id: name, tenant, path, model: model.id, numRows, canPause: false }
  return live.enter({ ...call, startedAt: Date.now() }, signal)
}

async function prepare(call: Call<ChatBody>): Promise<Chat> {
  const { body, limits, signal } = call
  refuseUnread(body, READ)
  checkCombinations(body)
  checkSession(body)
  const model = call.models.get(body.model)
  const think = thinkModeOf(body.enable_think)
  // Everything cheap is refused before the prompt is tokenised.
  const settings = {
    n: body.n ?? 1,
    maxTokens: chatMaxTokens(body, limits),
    sampling: toSampling(body, model),
    stop: toStop(body, CHAT_STOPS, model, limits),
    logprobs: chatLogprobs(body),
    promptLogprobs: null,
    tenant: call.tenant,
    cache: cacheOf(body),
  }
  checkLogprobs(body, { ...settings, numAnswers: settings.n }, limits)
  const turns = toTurns(body.messages)
  const id = `chatcmpl-${call.id}`
  return {
    model,
    request: { id, ...settings, ...(await promptOf(call, model, turns, think)) },
    think,
    chunkTokens: 1,
    includeUsage: body.stream_options?.include_usage === true,
    created: call.now,
    signal,
  }
}

/** In a session only what is new is sent; it begins the next turn. */
export async function promptOf(
  { body, signal }: Pick<Call<SessionFields>, 'body' | 'signal'>,
  model: ServedModel,
  turns: readonly Turn[],
  think: ThinkMode,
): Promise<Pick<GenerateRequest, 'prompt' | 'promptAtBeginning' | 'boundaries' | 'session'>> {
  const text = renderChat(turns, think)
  const session = sessionUse(body)
  if (session === null) {
    const prompt = await encodePrompt(model, text, 'messages', signal)
    return { prompt, boundaries: boundariesAt(prompt, model.tokenizer, turnEnds(turns)) }
  }
  return { ...(await encodeTurn(model, text, 'messages', signal)), session }
}

async function whole(chat: LiveChat): Promise<object> {
  const choices = choicesOf(chat, true)
  let read: PromptEvent | null = null
  let position: SessionPosition | null = null
  const handle = enter(chat)
  try {
    for await (const { event } of runAll(chat.model.client, [chat.request], handle.signal)) {
      if (event.type === 'prompt') read = event
      if (event.type === 'text') choices[event.index]!.add(event)
      if (event.type !== 'finish') continue
      choices[event.index]!.finish(event)
      position = event.session ?? null
    }
  } catch (thrown) {
    throw handle.failureOf(thrown)
  } finally {
    handle.leave()
  }
  return {
    ...headOf(chat, 'chat.completion'),
    choices: choices.map((choice) => choice.message()),
    usage: usageOfAll(chat, read, choices),
    ...(position === null ? {} : { session: wirePosition(position) }),
  }
}

async function* streamed(chat: LiveChat): AsyncGenerator<object> {
  const choices = choicesOf(chat, false)
  const head = headOf(chat, 'chat.completion.chunk')
  const chunk = (choice: object) => ({
    ...head,
    choices: [choice],
    ...(chat.includeUsage ? { usage: null } : {}),
  })
  let read: PromptEvent | null = null
  const handle = enter(chat)
  try {
    for await (const { event } of runAll(chat.model.client, [chat.request], handle.signal)) {
      if (event.type === 'prompt') {
        read = event
        for (const choice of choices) yield chunk(choice.role())
        continue
      }
      const choice = choices[event.index]!
      if (event.type === 'text') {
        for (const delta of choice.add(event)) yield chunk(delta)
        continue
      }
      const last = event.session === undefined ? {} : { session: wirePosition(event.session) }
      for (const delta of choice.finish(event)) yield { ...chunk(delta), ...last }
    }
  } catch (thrown) {
    throw handle.failureOf(thrown)
  } finally {
    handle.leave()
  }
  if (chat.includeUsage) yield { ...head, choices: [], usage: usageOfAll(chat, read, choices) }
}

function choicesOf(chat: Chat, isKept: boolean): ChatChoice[] {
  return Array.from({ length: chat.request.n }, (_, i) => new ChatChoice(i, chat, isKept))
}

function headOf({ request, created, model }: Chat, object: string) {
  const fingerprint = systemFingerprint(model.client.info.model.fingerprint)
  return { id: request.id, object, created, model: model.id, system_fingerprint: fingerprint }
}

function usageOfAll(
  { request }: Chat,
  read: PromptEvent | null,
  choices: readonly ChatChoice[],
): object {
  const completion = choices.reduce((sum, choice) => sum + choice.completionTokens, 0)
  const reasoning = choices.reduce((sum, choice) => sum + choice.reasoningTokens, 0)
  const prompt = read?.contextTokens ?? request.prompt.length
  return usageOf(prompt, completion, reasoning, read?.cachedTokens ?? 0)
}
