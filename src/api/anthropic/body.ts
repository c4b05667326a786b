/** The body of a message request, what its fields ask of the answer, and its messages of blocks as a conversation. */
import { invalid } from '../../errors.ts'
import { type Static, Type } from '../../files/schema-types.ts'
import type { Constraint } from '../../grammar/constraint.ts'
import { checkSchema } from '../../grammar/json-schema.ts'
import {
  type Conversation,
  choiceOfNone,
  MAX_TOOLS,
  type Message,
  refuseTwins,
  type Thinking,
  type Tool,
  type ToolCall,
  type ToolChoice,
  thinking,
  thinkingOf,
} from '../chat/conversation.ts'
import { notRead, type UnreadFields } from '../fields.ts'
import type { RequestLimits } from '../limits.ts'
import { present } from '../openai/sampling.ts'
import type { Call } from '../route.ts'
import { AnyObject, Bounded, BoundedInteger, Maybe, OneOf, urgencyFields } from '../schema.ts'

/** A part of a message; which fields it has depends on its type. */
const Block = Type.Object({
  type: Type.String(),
  text: Maybe(Type.String()),
  id: Maybe(Type.String()),
  name: Maybe(Type.String()),
  input: Maybe(AnyObject),
  tool_use_id: Maybe(Type.String()),
  content: Maybe(
    OneOf(
      'a string or a list of blocks',
      Type.String(),
      Type.Array(Type.Object({ type: Type.String(), text: Maybe(Type.String()) })),
    ),
  ),
  is_error: Maybe(Type.Boolean()),
})

const Blocks = OneOf('a string or a list of blocks', Type.String(), Type.Array(Block))

/** What the prompt is made of; all that is needed to count its tokens. */
export function promptFields(limits: RequestLimits) {
  return {
    model: Type.String(),
    messages: Type.Array(Type.Object({ role: Type.String(), content: Blocks }), {
      minItems: 1,
      maxItems: limits.messages,
    }),
    system: Maybe(Blocks),
    tools: Maybe(
      Type.Array(
        Type.Object({
          type: Maybe(Type.String()),
          name: Type.String(),
          description: Maybe(Type.String()),
          input_schema: Maybe(AnyObject),
          strict: Maybe(Type.Boolean()),
        }),
        { maxItems: MAX_TOOLS },
      ),
    ),
    tool_choice: Maybe(
      Type.Object({
        type: Type.String(),
        name: Maybe(Type.String()),
        disable_parallel_tool_use: Maybe(Type.Boolean()),
      }),
    ),
    thinking: Maybe(
      Type.Object({
        type: Type.String(),
        budget_tokens: Maybe(Type.Integer({ minimum: 0 })),
        display: Maybe(Type.String()),
      }),
    ),
    output_config: Maybe(Type.Object({ effort: Maybe(Type.String()), format: Maybe(Format) })),
    output_format: Maybe(Format),
  }
}

const Format = Type.Object({ type: Type.String(), schema: Maybe(AnyObject) })

export function messageBody(limits: RequestLimits) {
  return Type.Object({
    ...promptFields(limits),
    max_tokens: BoundedInteger(1, 2 ** 31 - 1),
    stream: Maybe(Type.Boolean()),
    stop_sequences: Maybe(Type.Array(Type.String(), { maxItems: limits.stops })),
    temperature: Maybe(Bounded(0, 1000)),
    top_k: Maybe(BoundedInteger(-1, 2 ** 31 - 1)),
    ...urgencyFields(),
    top_p: Maybe(Bounded(0, 1)),
  })
}

export type MessageBody = Static<ReturnType<typeof messageBody>>
type PromptBody = Pick<
  MessageBody,
  'model' | 'messages' | 'system' | 'tools' | 'tool_choice' | 'thinking' | 'output_config' | 'output_format'
>
type WireBlock = Static<typeof Block>

export const UNREAD: UnreadFields = {
  harmless: [
    'betas',
    // Prompts that begin alike are found without being told where.
    'cache_control',
    'inference_geo',
    'metadata',
    'service_tier',
    'speed',
    'user_profile_id',
    'workspace_id',
  ],
  refused: { container: [], mcp_servers: [[]], thread: [] },
  instead: { thread: 'send all messages' },
}

/** An upper bound as any other: one beyond the server's is the server's. */
export function maxTokensOf(
  { max_tokens: asked }: MessageBody,
  { maxTokens: most }: RequestLimits,
  { warn }: Pick<Call, 'warn'>,
): number {
  if (asked > most) warn(`max_tokens: this server answers with at most ${most} tokens`)
  return Math.min(asked, most)
}

export function thinkingFor({ thinking: asked, output_config }: PromptBody, { warn }: Pick<Call, 'warn'>): Thinking {
  const effort = output_config?.effort ?? null
  if (!present(asked)) {
    if (effort !== null) warn('output_config.effort was ignored: it needs `thinking`')
    return thinking('none')
  }
  if (asked.type === 'disabled') return thinking('closed')
  if (asked.type !== 'enabled' && asked.type !== 'adaptive')
    throw invalid('thinking.type', 'expected "enabled", "adaptive" or "disabled"')
  if (present(asked.budget_tokens))
    warn('thinking.budget_tokens was ignored: a thought ends by itself; send output_config.effort')
  if (effort === null) return thinking('open')
  const known = thinkingOf(effort === 'max' ? 'xhigh' : effort)
  if (known !== null) return known
  throw invalid('output_config.effort', 'expected "low", "medium", "high", "xhigh" or "max"')
}

export function constraintOf({ output_config, output_format }: PromptBody): Constraint | null {
  const format = output_config?.format ?? output_format
  if (!present(format)) return null
  if (format.type !== 'json_schema' || !present(format.schema))
    throw invalid('output_config.format', 'expected {"type": "json_schema", "schema": {…}}')
  return { type: 'schema', schema: format.schema }
}

function toolsOf({ tools }: PromptBody): Tool[] {
  const all = (tools ?? []).map(({ type, name, description, input_schema: schema, strict }, i) => {
    if (present(type) && type !== 'custom')
      throw notRead(`tools[${i}].type`, 'this server runs no tools of its own; send custom ones')
    if (strict === true && present(schema)) checkSchema(schema, `tools[${i}].input_schema`)
    return { name, description: description ?? '', parameters: schema ?? { type: 'object' } }
  })
  refuseTwins(all)
  return all
}

function choiceOf({ tool_choice, tools }: PromptBody): ToolChoice {
  const { type = 'auto', name } = tool_choice ?? {}
  if (!present(tools) || tools.length === 0) return choiceOfNone(type)
  if (type === 'auto' || type === 'none') return type
  if (type === 'any') return 'required'
  if (type !== 'tool' || !present(name))
    throw invalid('tool_choice', 'expected a type auto, any, none, or tool with a name')
  if (tools.some((tool) => tool.name === name)) return { name }
  throw invalid('tool_choice.name', 'it is none of `tools`')
}

export function conversationOf(body: PromptBody): Conversation {
  const { system, messages, tool_choice } = body
  const said = textOf(system ?? '', 'system')
  const rest = messages.flatMap((message, i) => messagesOf(message, `messages[${i}]`))
  if (rest.at(-1)?.role === 'assistant')
    throw notRead(`messages[${messages.length - 1}].role`, 'end with a user message: an answer is not continued here')
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
  if (texts.length > 0 || messages.length === 0) messages.push({ role: 'user', content: texts.join('\n') })
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
