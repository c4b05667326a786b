/** What callers of the library give with a text or a conversation, looked at as a request's body is (../files/given.ts). */
import { anything, type Check, checkOptions, flag, list, number, object, text, whole, wrong } from '../files/given.ts'
import { SAMPLING_ROWS } from '../sampling.ts'
import {
  type Conversation,
  type Message,
  noTools,
  refuseTwins,
  type Tool,
  type ToolChoice,
} from './chat/conversation.ts'

const OF_TEXTS: Readonly<Record<string, Check>> = {
  ...Object.fromEntries(SAMPLING_ROWS.map(([name, { min, max }]) => [name, number(min, max)])),
  seed: (value) => (typeof value === 'bigint' ? null : whole(0)(value)),
  maxTokens: whole(0),
  stop: (value) => (typeof value === 'string' ? null : list(value)),
  signal: object,
}
const OF_RAW_TEXTS = { ...OF_TEXTS, startState: text, onTokens: anything }
const OF_CHATS = {
  ...OF_TEXTS,
  ...{ tools: list, toolChoice: anything, schema: object, think: flag },
  ...{ session: text, from: whole(0), ifVersion: whole(0) },
}
const ROLES: readonly string[] = ['system', 'user', 'assistant', 'tool']
const TOOL: { readonly [K in keyof Tool]: Check } = { name: text, description: text, parameters: object }

export function checkTextOptions(options: object): void {
  checkOptions(options, OF_RAW_TEXTS)
}

export function checkChatOptions(options: object): void {
  checkOptions(options, OF_CHATS)
}

export function conversationOf(
  messages: string | readonly Message[],
  tools: readonly Tool[],
  toolChoice: ToolChoice,
): Conversation {
  const all = typeof messages === 'string' ? [{ role: 'user', content: messages } as const] : messages
  if (all.length === 0) throw wrong('messages', 'must have at least 1 item')
  for (const [i, { role, content }] of all.entries()) {
    if (!ROLES.includes(role)) throw wrong(`messages[${i}].role`, `expected one of ${ROLES.join(', ')}`)
    if (typeof content !== 'string') throw wrong(`messages[${i}].content`, 'expected a string')
  }
  for (const [i, tool] of tools.entries()) {
    checkOptions(tool, TOOL, `tools[${i}].`)
    for (const name of Object.keys(TOOL))
      if (!(name in tool)) throw wrong(`tools[${i}].${name}`, 'missing; it is required')
  }
  refuseTwins(tools)
  return { messages: all, tools, choice: choiceOf(toolChoice, tools), parallel: true }
}

function choiceOf(choice: ToolChoice, tools: readonly Tool[]): ToolChoice {
  if (tools.length === 0) {
    if (choice === 'auto' || choice === 'none') return 'none'
    throw noTools()
  }
  if (choice === 'auto' || choice === 'none' || choice === 'required') return choice
  if (tools.some(({ name }) => name === choice?.name)) return choice
  throw wrong('toolChoice', 'expected "auto", "none", "required", or {"name": …} of one of the tools')
}
