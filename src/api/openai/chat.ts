/**
 * POST /v1/chat/completions: messages to one prompt, and the engine's events to a chat completion, whole or in chunks.
 */

import type { SessionPosition } from '../../engine/messages.ts'
import { Type } from '../../files/schema-types.ts'
import { prepareChat } from '../chat/prepare.ts'
import {
  enterChat,
  type LiveOptions,
  liveReply,
  type PreparedChat,
  type PromptRead,
  replyEvents,
} from '../chat/reply.ts'
import type { RequestLimits } from '../limits.ts'
import type { LiveCalls } from '../live-calls.ts'
import { type Call, json, longJson, post, type Reply, type Route } from '../route.ts'
import { checkSession, sessionUse, wirePosition } from '../sessions/use.ts'
import { writerOf } from '../stream-form.ts'
import { constraintOf, type FormatFields, formatFields } from './asks/formats.ts'
import { type ThinkingFields, thinkingFields, thinkingOfBody } from './asks/thinking.ts'
import { conversationOf, type ToolFields, toolFields } from './asks/tools.ts'
import { ChatChoice } from './chat-choice.ts'
import {
  type ChatBody,
  chatBody,
  chatLogprobs,
  PREDICTION_FIELDS,
  type PredictionFields,
  textOf,
} from './chat-schema.ts'
import { UNREAD } from './parameters.ts'
import { cacheOf, checkCombinations, checkLogprobs, oneMaxTokens, toSampling, toStop } from './sampling.ts'
import { allGuesses, systemFingerprint, usageOf } from './usage.ts'

export function chatRoute(limits: RequestLimits, live: LiveCalls): Route {
  const summary = 'Answer a conversation'
  const path = '/v1/chat/completions'
  const own = { ...toolFields(), ...formatFields(), ...thinkingFields(), ...PREDICTION_FIELDS }
  const body = Type.Object({ ...chatBody(limits).properties, ...own })
  const handle = async (call: Call<OwnBody>) =>
    replyOf({ ...(await prepare(call)), path, live }, call.body.stream === true)
  const route = post(path, summary, body, handle, UNREAD)
  // Dialects that share this path send their key in the body.
  return { ...route, access: 'password' }
}

export async function replyOf(chat: LiveChat, isStream: boolean): Promise<Reply> {
  if (isStream) return { kind: 'events', events: streamed(chat) }
  return await whole(chat)
}

/** A chat call that has been checked and turned into what the engine needs. */
export interface Chat extends PreparedChat {
  /** Tokens that a stream gathers before it sends them. */
  readonly chunkTokens: number
  readonly includeUsage: boolean
  readonly created: number
  readonly signal: AbortSignal
  readonly name?: LiveOptions['name']
}

type LiveChat = Chat & LiveOptions

type OwnBody = ChatBody & ToolFields & FormatFields & ThinkingFields & PredictionFields

async function prepare(call: Call<OwnBody>): Promise<Chat> {
  const { body, limits, signal } = call
  checkCombinations(body, true)
  checkSession(body)
  const model = call.models.get(body.model)
  // Everything cheap is refused before the prompt is tokenised.
  const settings = {
    n: body.n ?? 1,
    maxTokens: oneMaxTokens(body, limits) ?? limits.defaultChatTokens,
    sampling: toSampling(body, model),
    stop: toStop(body, [], model, limits),
    logprobs: chatLogprobs(body),
    isGathered: body.stream !== true,
    tenant: call.tenant,
    cache: cacheOf(body),
  }
  checkLogprobs(body, { ...settings, numAnswers: settings.n }, limits)
  const prepared = await prepareChat(conversationOf(body), {
    ...settings,
    id: `chatcmpl-${call.id}`,
    model,
    thinking: thinkingOfBody(body),
    constraint: constraintOf(body),
    session: sessionUse(body),
    prediction: body.prediction ? textOf(body.prediction, 'prediction') : null,
    param: 'messages',
    signal,
  })
  return {
    ...prepared,
    chunkTokens: 1,
    includeUsage: body.stream_options?.include_usage === true,
    created: call.now,
    signal,
  }
}

async function whole(chat: LiveChat): Promise<Reply> {
  const choices = choicesOf(chat, true)
  let read: PromptRead | null = null
  let position: SessionPosition | null = null
  for await (const event of liveReply(chat, chat)) {
    if (event.type === 'prompt') read = event
    else if (event.type === 'pieces') {
      const choice = choices[event.index]!
      choice.add(event)
      if (event.logprobs !== null) await choice.scores?.add(event.logprobs)
    } else {
      choices[event.index]!.finish(event)
      position = event.session
    }
  }
  const reply = {
    ...headOf(chat, 'chat.completion'),
    choices: choices.map((choice) => choice.message()),
    usage: usageOfAll(chat, read, choices),
    ...(position === null ? {} : { session: wirePosition(position) }),
  }
  const scores = choices.flatMap((choice) => choice.scores ?? [])
  return scores.length === 0 ? json(reply) : longJson(reply, await Promise.all(scores.map((one) => one.json())))
}

async function* streamed(chat: LiveChat): AsyncGenerator<object> {
  const choices = choicesOf(chat, false)
  const head = headOf(chat, 'chat.completion.chunk')
  const chunk = (choice: object) => ({ ...head, choices: [choice], ...(chat.includeUsage ? { usage: null } : {}) })
  const writers = choices.map((choice) => writerOf((text) => chunk(choice.textDelta(text))))
  let read: PromptRead | null = null
  const handle = enterChat(chat, chat)
  try {
    for await (const event of replyEvents(chat, handle.signal)) {
      if (event.type === 'prompt') {
        read = event
        for (const choice of choices) yield chunk(choice.role())
        continue
      }
      const choice = choices[event.index]!
      if (event.type === 'pieces') {
        const text = choice.plainText(event)
        if (text !== null) yield writers[event.index]!(text)
        else for (const delta of choice.add(event)) yield chunk(delta)
        continue
      }
      const last = event.session === null ? {} : { session: wirePosition(event.session) }
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

function usageOfAll({ request }: Chat, read: PromptRead | null, choices: readonly ChatChoice[]): object {
  const completion = choices.reduce((sum, choice) => sum + choice.completionTokens, 0)
  const reasoning = choices.reduce((sum, choice) => sum + choice.reasoningTokens, 0)
  const prompt = read?.promptTokens ?? request.prompt.length
  const guesses = allGuesses(choices, request.prediction !== undefined)
  return usageOf(prompt, completion, reasoning, read?.cachedTokens ?? 0, guesses)
}
