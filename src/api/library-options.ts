/** What callers of the library give with a text or a conversation, looked at as a request's body is (../files/given.ts). */
import { invalid } from '../errors.ts'
import { anything, type Check, checkGiven, flag, listOf, number, object, text, whole } from '../files/given.ts'
import { SAMPLING_ROWS } from '../sampling.ts'
import {
  type Conversation,
  choiceOfNone,
  type Message,
  refuseTwins,
  type Tool,
  type ToolChoice,
} from './chat/conversation.ts'

const OF_TEXTS: Readonly<Record<string, Check>> = {
  ...Object.fromEntries(SAMPLING_ROWS.map(([name, { int, min, max }]) => [name, number(min, max, int !== undefined)])),
  seed: (value) => (typeof value === 'bigint' && value >= 0n ? null : whole(0)(value)),
  maxTokens: whole(0),
  stop: (value) =>
    typeof value === 'string' || listOf(text)(value) === null ? null : 'a string, or a list of strings',
  signal: object,
}
const OF_RAW_TEXTS = { ...OF_TEXTS, startState: text, onTokens: anything }
const OF_CHATS = {
  ...OF_TEXTS,
  ...{ tools: listOf(object), toolChoice: anything, schema: object, think: flag },
  ...{ session: text, from: whole(0), ifVersion: whole(0) },
}
const ROLES: readonly string[] = ['system', 'user', 'assistant', 'tool']
const TOOL: { readonly [K in keyof Tool]: Check } = { name: text, description: text, parameters: object }

export function checkTextOptions(options: object): void {
  checkGiven(options, OF_RAW_TEXTS)
}

export function checkChatOptions(options: object): void {
  checkGiven(options, OF_CHATS)
}

export function conversationOf(
  messages: string | readonly Message[],
  tools: readonly Tool[],
  toolChoice: ToolChoice,
): Conversation {
  const all = typeof messages === 'string' ? [{ role: 'user', content: messages } as const] : messages
  const expected = listOf(object)(all)
  if (expected !== null) throw invalid('messages', `expected a text, or ${expected}`)
  if (all.length === 0) throw invalid('messages', 'must have at least 1 item')
  for (const [i, { role, content }] of all.entries()) {
    if (!ROLES.includes(role)) throw invalid(`messages[${i}].role`, `expected one of ${ROLES.join(', ')}`)
    if (typeof content !== 'string') throw invalid(`messages[${i}].content`, 'expected a string')
  }
  for (const [i, tool] of tools.entries()) checkGiven(tool, TOOL, `tools[${i}].`, Object.keys(TOOL))
  refuseTwins(tools)
  return { messages: all, tools, choice: choiceOf(toolChoice, tools), parallel: true }
}

function choiceOf(choice: ToolChoice, tools: readonly Tool[]): ToolChoice {
  if (tools.length === 0) return choiceOfNone(choice)
  if (choice === 'auto' || choice === 'none' || choice === 'required') return choice
  if (tools.some(({ name }) => name === choice?.name)) return choice
  throw invalid('toolChoice', 'expected "auto", "none", "required", or {"name": …} of one of the tools')
}
