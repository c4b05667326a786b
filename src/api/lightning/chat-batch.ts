/**
 * POST /v3/chat/completions: a conversation, or a list of questions with a row each, through the chat template.
 * The original kept only the first user message; here the system text and the history count.
 */
import { type Static, Type } from '../../files/schema-types.ts'
import { boundariesAt, encodePrompts } from '../encode.ts'
import type { RequestLimits } from '../limits.ts'
import type { LiveCalls } from '../live-calls.ts'
import type { ServedModel } from '../models.ts'
import { MaybeMessages, toTurns } from '../openai/chat-schema.ts'
import { filled } from '../openai/sampling.ts'
import type { Call, Route } from '../route.ts'
import { Maybe } from '../schema.ts'
import { refuseSession } from '../sessions/use.ts'
import { CHAT_STOPS, renderTurns, type Turn, turnEnds } from '../template.ts'
import { batchReply } from './batch.ts'
import { answering, Contents, contentsOf, lightningFields, modelOf, SHORT, settingsOf } from './body.ts'
import { labelOf, planFor, STATE_ROUTE } from './contents.ts'

/** The endings of this route, byte for byte; its clients see the ">" that follows an open one. */
const TAILS = { open: 'Assistant: <think', closed: 'Assistant: <think>\n</think>' } as const

function chatBatchBody(limits: RequestLimits) {
  return Type.Object({
    ...lightningFields(limits),
    messages: MaybeMessages(limits),
    contents: Maybe(Contents(limits)),
    enable_think: Maybe(Type.Boolean()),
  })
}

type ChatBatchBody = Static<ReturnType<typeof chatBatchBody>>

export function chatBatchRoute(limits: RequestLimits, live: LiveCalls): Route {
  const path = '/v3/chat/completions'
  const summary = 'Answer a conversation, or a list of questions'
  return answering(path, summary, chatBatchBody(limits), async (call) => {
    const conversations = conversationsOf(call.body)
    const model = modelOf(call)
    refuseSession(call.body, STATE_ROUTE)
    const settings = settingsOf(call.body, SHORT, model, call.limits, CHAT_STOPS)
    const tail = call.body.enable_think === true ? TAILS.open : TAILS.closed
    const rendered = await renderAll(call, model, conversations, tail)
    const plan = planFor(call, { path, model, settings, family: SHORT, prompts: rendered })
    const label = labelOf(call.body, 'rwkv7-batch-v3')
    return await batchReply(plan, live, label, call.body.stream === true)
  })
}

interface Conversation {
  readonly turns: readonly Turn[]
  /** Field that a complaint about it names. */
  readonly param: string
}

/** As in the original, messages count only where there are no contents. */
function conversationsOf({ messages, contents }: ChatBatchBody): readonly Conversation[] {
  if (filled(messages) && !filled(contents)) return [{ turns: toTurns(messages), param: 'messages' }]
  return contentsOf({ contents: contents ?? null }).map((content, i) => ({
    turns: [{ role: 'user', content }],
    param: `contents[${i}]`,
  }))
}

async function renderAll(call: Call, model: ServedModel, conversations: readonly Conversation[], tail: string) {
  const texts = conversations.map(({ turns }) => renderTurns(turns, tail))
  const paramOf = (i: number) => conversations[i]!.param
  const all = await encodePrompts(model, texts, paramOf, call.signal)
  return all.map((tokens, i) => {
    const ends = turnEnds(conversations[i]!.turns)
    return { tokens, boundaries: boundariesAt(tokens, model.tokenizer, ends) }
  })
}
