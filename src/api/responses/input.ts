/** Input items to the conversation that every dialect makes. Thoughts of earlier answers are not part of the prompt. */
import { invalid } from '../../errors.ts'
import type { Conversation, Message, ToolCall } from '../chat/conversation.ts'
import { notRead } from '../fields.ts'
import { present } from '../openai/sampling.ts'
import { choiceOf, type ResponseBody, toolsOf, type WireItem, type WireParts } from './body.ts'

/** Gives the item that a client refers to. */
export type FindItem = (id: string, param: string) => Promise<WireItem>

export async function conversationOf(body: ResponseBody, find: FindItem): Promise<Conversation> {
  const { input, instructions, parallel_tool_calls } = body
  const messages: Message[] = []
  if (present(instructions) && instructions !== '') messages.push({ role: 'system', content: instructions })
  if (typeof input === 'string') messages.push({ role: 'user', content: input })
  else {
    for (const [i, item] of input.entries()) {
      const at = `input[${i}]`
      const isReference = item.type === 'item_reference'
      addItem(messages, isReference ? await find(item.id ?? '', `${at}.id`) : item, at)
    }
  }
  return { messages, tools: toolsOf(body), choice: choiceOf(body), parallel: parallel_tool_calls !== false }
}

function addItem(messages: Message[], item: WireItem, at: string): void {
  const { type = 'message', role, content, call_id, name, arguments: written, output } = item
  switch (type) {
    case null:
    case 'message': {
      messages.push({ role: roleOf(role, `${at}.role`), content: textOf(content, `${at}.content`) })
      return
    }
    case 'function_call': {
      if (!present(name)) throw invalid(`${at}.name`, 'missing; it is required')
      addCall(messages, { id: call_id ?? '', name, arguments: written ?? '{}' })
      return
    }
    case 'function_call_output':
      messages.push({ role: 'tool', content: textOf(output, `${at}.output`) })
      return
    case 'reasoning':
      return
    default:
      throw notRead(`${at}.type`, `items of type ${JSON.stringify(type.slice(0, 40))} are not read`)
  }
}

/** Calls belong to the answer that they follow. */
function addCall(messages: Message[], call: ToolCall): void {
  const last = messages.at(-1)
  if (last?.role !== 'assistant') messages.push({ role: 'assistant', content: '', calls: [call] })
  else messages[messages.length - 1] = { ...last, calls: [...(last.calls ?? []), call] }
}

function roleOf(role: string | null | undefined, param: string): 'system' | 'user' | 'assistant' {
  if (role === 'developer') return 'system'
  if (role === 'system' || role === 'user' || role === 'assistant') return role
  throw invalid(param, 'expected system, developer, user or assistant')
}

const TEXTS = ['input_text', 'output_text', 'text', 'summary_text']

function textOf(parts: WireParts | null | undefined, at: string): string {
  if (!present(parts)) return ''
  if (typeof parts === 'string') return parts
  const texts = parts.map(({ type, text, refusal }, i) => {
    if (type === 'refusal') return refusal ?? ''
    if (TEXTS.includes(type) && present(text)) return text
    const name = JSON.stringify(type.slice(0, 40))
    throw notRead(`${at}[${i}].type`, `parts of type ${name} are not read; send text`)
  })
  return texts.join('')
}
