/** Messages of blocks to the conversation that every dialect makes. Thoughts of earlier answers are not part of the prompt. */
import type { Conversation, Message, ToolCall } from '../chat/conversation.ts'
import { notRead } from '../fields.ts'
import { invalid, present } from '../openai/sampling.ts'
import { choiceOf, type PromptBody, toolsOf, type WireBlock } from './body.ts'

export function conversationOf(body: PromptBody): Conversation {
  const { system, messages, tool_choice } = body
  const said = textOf(system ?? '', 'system')
  const rest = messages.flatMap((message, i) => messagesOf(message, `messages[${i}]`))
  if (rest.at(-1)?.role === 'assistant') {
    throw notRead(`messages[${messages.length - 1}].role`, 'end with a user message: an answer is not continued here')
  }
  return {
    messages: said === '' ? rest : [{ role: 'system', content: said }, ...rest],
    tools: toolsOf(body),
    choice: choiceOf(body),
    parallel: tool_choice?.disable_parallel_tool_use !== true,
  }
}

type WireMessage = PromptBody['messages'][number]

function messagesOf({ role, content }: WireMessage, at: string): Message[] {
  if (role === 'assistant') return [answerOf(content, at)]
  if (role === 'system') return [{ role, content: textOf(content, `${at}.content`) }]
  if (role !== 'user') throw invalid(`${at}.role`, 'expected user, assistant or system')
  if (typeof content === 'string') return [{ role, content }]
  return userMessages(content, at)
}

/** Results of tools are messages of their own; the texts between them are what the user says. */
function userMessages(blocks: readonly WireBlock[], at: string): Message[] {
  const messages: Message[] = []
  const texts: string[] = []
  for (const [i, block] of blocks.entries()) {
    const param = `${at}.content[${i}]`
    if (block.type === 'tool_result') messages.push({ role: 'tool', content: resultOf(block, param) })
    else texts.push(textOf([block], `${at}.content`, i))
  }
  if (texts.length > 0 || messages.length === 0) {
    messages.push({ role: 'user', content: texts.join('\n') })
  }
  return messages
}

function resultOf({ content, is_error }: WireBlock, param: string): string {
  const text = textOf(content ?? '', `${param}.content`)
  return is_error === true ? `Error: ${text}` : text
}

const THOUGHTS = ['thinking', 'redacted_thinking']

function answerOf(content: WireMessage['content'], at: string): Message {
  if (typeof content === 'string') return { role: 'assistant', content }
  const calls: ToolCall[] = []
  const texts: string[] = []
  for (const [i, block] of content.entries()) {
    const { type, id, name, input } = block
    if (THOUGHTS.includes(type)) continue
    if (type !== 'tool_use') texts.push(textOf([block], `${at}.content`, i))
    else if (present(name)) {
      calls.push({ id: id ?? '', name, arguments: JSON.stringify(input ?? {}) })
    } else throw invalid(`${at}.content[${i}].name`, 'missing; it is required')
  }
  return { role: 'assistant', content: texts.join('\n'), calls }
}

/** `first` is the place of the first block in the list that the client sent. */
function textOf(content: string | readonly Pick<WireBlock, 'type' | 'text'>[], at: string, first = 0): string {
  if (typeof content === 'string') return content
  const texts = content.map(({ type, text }, i) => {
    if (type === 'text' && present(text)) return text
    const param = `${at}[${first + i}]`
    throw notRead(`${param}.type`, `${JSON.stringify(type.slice(0, 40))} blocks are not read; send text`)
  })
  return texts.join('\n')
}
