/** POST /api/chat: a conversation as one prompt, the answer in objects of Ollama's shape. */
import { invalid } from '../../errors.ts'
import { type Static, Type } from '../../files/schema-types.ts'
import {
  argumentsIn,
  type Conversation,
  MAX_TOOLS,
  type Message,
  refuseTwins,
  type Tool,
  type ToolCall,
} from '../chat/conversation.ts'
import { prepareChat } from '../chat/prepare.ts'
import type { PreparedChat } from '../chat/reply.ts'
import type { UnreadFields } from '../fields.ts'
import type { RequestLimits } from '../limits.ts'
import type { LiveCalls } from '../live-calls.ts'
import { type Call, json, post, type Reply, type Route } from '../route.ts'
import { AnyObject, Maybe } from '../schema.ts'
import { chatSettings, checkOptions, refuseImages, sharedFields } from './body.ts'
import { modelOf } from './models.ts'
import { type Part, replyOf } from './reply.ts'

const PATH = '/api/chat'

export const UNREAD_CHAT: UnreadFields = {
  // There is no window that a prompt would have to be cut or shifted for.
  harmless: ['truncate', 'shift'],
  refused: {},
}

const WireCall = Type.Object({
  id: Maybe(Type.String()),
  function: Type.Object({ name: Type.String(), arguments: Maybe(AnyObject) }),
})

function chatBody(limits: RequestLimits) {
  return Type.Object({
    ...sharedFields(limits),
    messages: Maybe(
      Type.Array(
        Type.Object({
          role: Type.String(),
          content: Maybe(Type.String()),
          images: Maybe(Type.Array(Type.Unknown())),
          tool_calls: Maybe(Type.Array(WireCall)),
        }),
        { maxItems: limits.messages },
      ),
    ),
    tools: Maybe(
      Type.Array(
        Type.Object({
          function: Type.Object({
            name: Type.String(),
            description: Maybe(Type.String()),
            parameters: Maybe(AnyObject),
          }),
        }),
        { maxItems: MAX_TOOLS },
      ),
    ),
  })
}

type ChatBody = Static<ReturnType<typeof chatBody>>

export function chatRoute(limits: RequestLimits, live: LiveCalls): Route {
  const body = chatBody(limits)
  const handle = async (call: Call<ChatBody>): Promise<Reply> => {
    const head = { model: call.body.model }
    if ((call.body.messages ?? []).length === 0) {
      modelOf(call.models, call.body.model)
      return loaded(call, { message: { role: 'assistant', content: '' } })
    }
    const chat = await prepare(call)
    const where = { live, path: PATH, signal: call.signal }
    return await replyOf(chat, where, call.body.stream !== false, (part, rest) => ({
      ...head,
      created_at: new Date().toISOString(),
      ...messageWith(part),
      ...rest,
    }))
  }
  return post(PATH, 'Answer a conversation, as Ollama does', body, handle, UNREAD_CHAT)
}

/** A request without a question loads the model; here it is loaded already. */
export function loaded(
  { body }: Call<{ readonly model: string; readonly keep_alive?: unknown }>,
  empty: object,
): Reply {
  const reason = body.keep_alive === 0 || body.keep_alive === '0' ? 'unload' : 'load'
  return json({ model: body.model, created_at: new Date().toISOString(), ...empty, done: true, done_reason: reason })
}

async function prepare(call: Call<ChatBody>): Promise<PreparedChat> {
  const { body, limits } = call
  checkOptions(body.options ?? {}, limits, call)
  const model = modelOf(call.models, body.model)
  return await prepareChat(conversationOf(body), { ...chatSettings(call, model), param: 'messages' })
}

function conversationOf({ messages, tools }: ChatBody): Conversation {
  const all = (tools ?? []).map(
    ({ function: { name, description, parameters } }): Tool => ({
      name,
      description: description ?? '',
      parameters: parameters ?? { type: 'object', properties: {} },
    }),
  )
  refuseTwins(all)
  return {
    messages: (messages ?? []).map((message, i) => messageOf(message, `messages[${i}]`)),
    tools: all,
    choice: all.length === 0 ? 'none' : 'auto',
    parallel: true,
  }
}

function messageOf(
  { role, content, images, tool_calls }: NonNullable<ChatBody['messages']>[number],
  at: string,
): Message {
  refuseImages(images, `${at}.images`)
  const text = content ?? ''
  if (role === 'system' || role === 'user' || role === 'tool') return { role, content: text }
  if (role !== 'assistant') throw invalid(`${at}.role`, 'expected system, user, assistant or tool')
  const calls = (tool_calls ?? []).map(
    ({ id, function: { name, arguments: given } }, i): ToolCall => ({
      id: id ?? `call_${i}`,
      name,
      arguments: JSON.stringify(given ?? {}),
    }),
  )
  return { role, content: text, calls }
}

function messageWith({ reasoning, text, calls }: Part): object {
  return {
    message: {
      role: 'assistant',
      content: text,
      ...(reasoning === '' ? {} : { thinking: reasoning }),
      ...(calls.length === 0 ? {} : { tool_calls: calls.map(wireCall) }),
    },
  }
}

/** Without its id: Zed takes a call with nothing beside the function, and results follow their calls in order. */
function wireCall({ name, arguments: written }: ToolCall): object {
  return { function: { name, arguments: argumentsIn(written) } }
}
