/** The body of a chat completion, and how its messages become turns of the template. */

import { invalid, notImplemented } from '../../errors.ts'
import { type Static, Type } from '../../files/schema-types.ts'
import type { RequestLimits } from '../limits.ts'
import { BoundedInteger, Maybe, OneOf } from '../schema.ts'
import { sessionFields } from '../sessions/use.ts'
import type { Role, ThinkMode, Turn } from '../template.ts'
import { unsupported } from './parameters.ts'
import { present, samplingFields, TokenLimit } from './sampling.ts'

/** rwkv_lightning's clients send bare strings, too. */
const ContentPart = OneOf(
  'a string or an object with a type',
  Type.String(),
  Type.Object({ type: Type.String(), text: Maybe(Type.String()) }),
)

const Content = OneOf('a string or a list of content parts', Type.String(), Type.Array(ContentPart))

const Message = Type.Object({
  role: Type.String(),
  content: Maybe(Content),
  tool_calls: Maybe(Type.Array(Type.Unknown())),
  function_call: Maybe(Type.Unknown()),
  audio: Maybe(Type.Unknown()),
})

/** For routes where another field can replace messages: an empty list counts as absent. */
export function MaybeMessages(limits: RequestLimits) {
  return Maybe(Type.Array(Message, { maxItems: limits.messages }))
}

export function chatBody(limits: RequestLimits) {
  return Type.Object({
    ...samplingFields(limits),
    ...sessionFields(),
    messages: Type.Array(Message, { minItems: 1, maxItems: limits.messages }),
    max_tokens: Maybe(TokenLimit(limits)),
    max_completion_tokens: Maybe(TokenLimit(limits)),
    logprobs: Maybe(Type.Boolean()),
    top_logprobs: Maybe(BoundedInteger(0, limits.topLogprobs)),
    enable_think: Maybe(Type.Boolean()),
  })
}

/** OpenAI's field for the expected answer. */
export const PREDICTION_FIELDS = { prediction: Maybe(Type.Object({ type: Type.Literal('content'), content: Content })) }

export interface PredictionFields {
  readonly prediction?: Static<(typeof PREDICTION_FIELDS)['prediction']>
}

export type ChatBody = Static<ReturnType<typeof chatBody>>
export type WireMessage = ChatBody['messages'][number]

const ROLES: Readonly<Record<string, Role>> = {
  system: 'system',
  developer: 'system',
  user: 'user',
  assistant: 'assistant',
}

/** `name`, `refusal` and `reasoning_content` of a message are not part of the prompt and are not read. */
export function toTurns(messages: readonly WireMessage[]): Turn[] {
  return messages.map(toTurn)
}

export function toTurn(message: WireMessage, i: number): Turn {
  const at = `messages[${i}]`
  const role = Object.hasOwn(ROLES, message.role) ? ROLES[message.role]! : refuseRole(message, at)
  for (const field of ['tool_calls', 'function_call', 'audio'] as const) {
    const value = message[field]
    if (!present(value) || (Array.isArray(value) && value.length === 0)) continue
    throw unsupported(`${at}.${field}`, 'send its text as `content`')
  }
  // An answer may have called tools alone.
  if (role !== 'assistant' && !present(message.content)) throw invalid(`${at}.content`, 'missing; expected a string')
  return { role, content: textOf(message, at) }
}

function refuseRole({ role }: WireMessage, at: string): never {
  const param = `${at}.role`
  if (role === 'tool' || role === 'function') throw unsupported(param, 'send the result of the tool as a user message')
  throw invalid(param, `got ${JSON.stringify(role.slice(0, 40))}; expected system, developer, user, assistant or tool`)
}

export function textOf({ content }: Pick<WireMessage, 'content'>, at: string): string {
  if (!present(content)) return ''
  if (typeof content === 'string') return content
  return content
    .map((part, i) => {
      if (typeof part === 'string') return part
      const param = `${at}.content[${i}]`
      if (part.type !== 'text') {
        const type = JSON.stringify(part.type.slice(0, 40))
        throw notImplemented(param, `parts of type ${type} are not supported; this model reads text only`)
      }
      if (!present(part.text)) throw invalid(`${param}.text`, 'missing; expected a string')
      return part.text
    })
    .join('')
}

export function thinkModeOf(enableThink: boolean | null | undefined): ThinkMode {
  if (!present(enableThink)) return 'none'
  return enableThink ? 'open' : 'closed'
}

/** null: none. */
export function chatLogprobs(body: ChatBody): number | null {
  if (body.logprobs === true) return body.top_logprobs ?? 0
  if (present(body.top_logprobs) && body.top_logprobs > 0) throw invalid('top_logprobs', 'it needs "logprobs": true')
  return null
}
