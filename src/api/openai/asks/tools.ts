/** Tools, choices, calls and results of OpenAI's chats, as conversations of any dialect have them. */

import { invalid, SkeinError } from '../../../errors.ts'
import { type Static, Type } from '../../../files/schema-types.ts'
import { checkSchema } from '../../../grammar/json-schema.ts'
import {
  type Conversation,
  choiceOfNone,
  MAX_TOOLS,
  type Message,
  refuseTwins,
  type Tool,
  type ToolCall,
  type ToolChoice,
} from '../../chat/conversation.ts'
import { Maybe } from '../../schema.ts'
import type { WireMessage } from '../chat-schema.ts'
import { textOf, toTurn } from '../chat-schema.ts'
import { unsupported } from '../parameters.ts'
import { present } from '../sampling.ts'

const FunctionTool = Type.Object({
  name: Type.String({ pattern: '^[a-zA-Z0-9_.:-]{1,64}$', description: 'letters, digits, "_", "-"' }),
  description: Maybe(Type.String()),
  parameters: Maybe(Type.Unknown()),
  strict: Maybe(Type.Boolean()),
})

export function toolFields() {
  return {
    tools: Maybe(
      Type.Array(Type.Object({ type: Type.String(), function: Maybe(FunctionTool) }), { maxItems: MAX_TOOLS }),
    ),
    tool_choice: Maybe(Type.Unknown()),
    parallel_tool_calls: Maybe(Type.Boolean()),
  }
}

export type ToolFields = Static<ReturnType<typeof Type.Object<ReturnType<typeof toolFields>>>>

export function conversationOf(body: ToolFields & { readonly messages: readonly WireMessage[] }): Conversation {
  const tools = (body.tools ?? []).map((tool, i) => toolOf(tool, `tools[${i}]`))
  refuseTwins(tools)
  const names = tools.map(({ name }) => name)
  return {
    messages: body.messages.map(toMessage),
    tools,
    choice: choiceOf(body.tool_choice, names),
    parallel: body.parallel_tool_calls !== false,
  }
}

function toolOf({ type, function: tool }: NonNullable<ToolFields['tools']>[number], at: string): Tool {
  if (type !== 'function' || !present(tool)) {
    const message = `${at}: this server runs no tools of its own; expected {"type": "function", "function": {…}}`
    throw new SkeinError('unsupported_parameter', message, { param: 'tools' })
  }
  const { name, description, parameters, strict } = tool
  if (present(parameters) && (typeof parameters !== 'object' || Array.isArray(parameters)))
    throw invalid(`${at}.function.parameters`, 'expected a JSON Schema: an object')
  if (strict === true) checkSchema(parameters, `${at}.function.parameters`)
  // Looked at above.
  const schema = (parameters ?? { type: 'object', properties: {} }) as Tool['parameters']
  return { name, description: description ?? '', parameters: schema }
}

function choiceOf(choice: unknown, names: readonly string[]): ToolChoice {
  if (names.length === 0) return choiceOfNone(choice)
  if (!present(choice)) return 'auto'
  if (choice === 'auto' || choice === 'none' || choice === 'required') return choice
  const name = nameOf(choice)
  if (name === null) {
    const expected = 'expected "auto", "none", "required" or {"type": "function", "function": {"name": …}}'
    throw invalid('tool_choice', expected)
  }
  if (names.includes(name)) return { name }
  throw invalid('tool_choice', `${JSON.stringify(name)} is none of the tools`)
}

function nameOf(choice: unknown): string | null {
  if (typeof choice !== 'object' || choice === null) return null
  const { type, function: named } = choice as { type?: unknown; function?: { name?: unknown } }
  return type === 'function' && typeof named?.name === 'string' ? named.name : null
}

function toMessage(message: WireMessage, i: number): Message {
  const at = `messages[${i}]`
  if (message.role === 'tool') return { role: 'tool', content: textOf(message, at) }
  const { tool_calls: calls } = message
  if (message.role !== 'assistant' || !present(calls) || calls.length === 0) return toTurn(message, i)
  const turn = toTurn({ ...message, tool_calls: null }, i)
  return {
    role: 'assistant',
    content: turn.content,
    calls: calls.map((call, j) => callOf(call, `${at}.tool_calls[${j}]`)),
  }
}

function callOf(call: unknown, at: string): ToolCall {
  const { id, function: called } = (call ?? {}) as { id?: unknown; function?: { name?: unknown; arguments?: unknown } }
  const { name, arguments: json } = called ?? {}
  if (typeof name !== 'string') throw unsupported(at, 'send calls of functions, with their names')
  return {
    id: typeof id === 'string' ? id : '',
    name,
    arguments: typeof json === 'string' ? json : JSON.stringify(json ?? {}),
  }
}
