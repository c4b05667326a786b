/** The body of a response request, and what its fields ask of the answer. */

import { invalid } from '../../errors.ts'
import { type Static, Type } from '../../files/schema-types.ts'
import { ANY_OBJECT, type Constraint } from '../../grammar/constraint.ts'
import { checkSchema } from '../../grammar/json-schema.ts'
import {
  choiceOfNone,
  MAX_TOOLS,
  refuseTwins,
  type Thinking,
  type Tool,
  type ToolChoice,
  thinking,
  thinkingOf,
} from '../chat/conversation.ts'
import { notRead, type UnreadFields } from '../fields.ts'
import type { RequestLimits } from '../limits.ts'
import { present } from '../openai/sampling.ts'
import type { Call } from '../route.ts'
import { AnyObject, Bounded, BoundedInteger, Matching, Maybe, OneOf, urgencyFields } from '../schema.ts'

const Parts = OneOf(
  'a string or a list of parts',
  Type.String(),
  Type.Array(Type.Object({ type: Type.String(), text: Maybe(Type.String()), refusal: Maybe(Type.String()) })),
)

/** A message, or another item; which fields it has depends on its type. */
const Item = Type.Object({
  type: Maybe(Type.String()),
  id: Maybe(Type.String()),
  role: Maybe(Type.String()),
  content: Maybe(Parts),
  call_id: Maybe(Type.String()),
  name: Maybe(Type.String()),
  arguments: Maybe(Type.String()),
  output: Maybe(Parts),
})

export function responseBody(limits: RequestLimits) {
  return Type.Object({
    model: Maybe(Type.String()),
    input: OneOf(
      'a string or a list of items',
      Type.String(),
      Type.Array(Item, { minItems: 1, maxItems: limits.messages }),
    ),
    instructions: Maybe(Type.String()),
    previous_response_id: Maybe(Matching('^resp_[0-9a-f]{32}$', 'the id of a response of this server')),
    store: Maybe(Type.Boolean()),
    stream: Maybe(Type.Boolean()),
    max_output_tokens: Maybe(BoundedInteger(1, limits.maxTokens)),
    temperature: Maybe(Bounded(0, 1000)),
    top_p: Maybe(Bounded(0, 1)),
    reasoning: Maybe(
      Type.Object({
        effort: Maybe(Type.String()),
        summary: Maybe(Type.String()),
        generate_summary: Maybe(Type.String()),
      }),
    ),
    text: Maybe(
      Type.Object({
        format: Maybe(Type.Object({ type: Type.String(), schema: Maybe(AnyObject) })),
        verbosity: Maybe(Type.String()),
      }),
    ),
    tools: Maybe(
      Type.Array(
        Type.Object({
          type: Type.String(),
          name: Maybe(Type.String()),
          description: Maybe(Type.String()),
          parameters: Maybe(AnyObject),
          strict: Maybe(Type.Boolean()),
        }),
        { maxItems: MAX_TOOLS },
      ),
    ),
    tool_choice: Maybe(
      OneOf(
        '"none", "auto", "required" or {"type": "function", "name": …}',
        Type.String(),
        Type.Object({ type: Type.String(), name: Maybe(Type.String()) }),
      ),
    ),
    parallel_tool_calls: Maybe(Type.Boolean()),
    metadata: Maybe(AnyObject),
    include: Maybe(Type.Array(Type.String())),
    ...urgencyFields(),
  })
}

export type ResponseBody = Static<ReturnType<typeof responseBody>>
export type WireItem = Static<typeof Item>
export type WireParts = Static<typeof Parts>

export const UNREAD: UnreadFields = {
  harmless: [
    'prompt_cache_key',
    'prompt_cache_options',
    'prompt_cache_retention',
    'safety_identifier',
    'service_tier',
    // It only asks for padding.
    'stream_options',
    'user',
  ],
  refused: {
    background: [false],
    context_management: [[]],
    conversation: [],
    max_tool_calls: [],
    moderation: [],
    prompt: [],
    top_logprobs: [0],
    truncation: ['disabled'],
  },
  instead: {
    conversation: 'use `previous_response_id`',
    top_logprobs: 'use /v1/chat/completions',
    truncation: 'a prompt is never cut here; leave it out',
  },
}

/** Answers have no more to include than they have already. */
const NOTHING_TO_INCLUDE = ['reasoning.encrypted_content']

export function checkBody({ include, text, reasoning }: ResponseBody, { warn }: Pick<Call, 'warn'>): void {
  for (const [i, value] of (include ?? []).entries()) {
    if (NOTHING_TO_INCLUDE.includes(value)) continue
    const instead = value === 'message.output_text.logprobs' ? 'use /v1/chat/completions' : 'leave it out'
    throw notRead(`include[${i}]`, instead)
  }
  if (present(text?.verbosity) && text.verbosity !== 'medium')
    throw notRead('text.verbosity', 'say in the instructions how long the answer is to be')
  if (present(reasoning?.summary ?? reasoning?.generate_summary))
    warn('reasoning.summary was ignored: the reasoning item has the whole thought')
}

export function thinkingFor({ reasoning }: ResponseBody): Thinking {
  const effort = reasoning?.effort
  if (!present(effort)) return thinking('none')
  const asked = thinkingOf(effort)
  if (asked !== null) return asked
  throw invalid('reasoning.effort', 'expected "none", "minimal", "low", "medium", "high" or "xhigh"')
}

export function constraintOf({ text }: ResponseBody): Constraint | null {
  const format = text?.format
  if (!present(format) || format.type === 'text') return null
  if (format.type === 'json_object') return ANY_OBJECT
  if (format.type === 'json_schema' && present(format.schema)) return { type: 'schema', schema: format.schema }
  throw invalid('text.format', 'expected a type text, json_object, or json_schema with a `schema`')
}

export function toolsOf({ tools }: ResponseBody): Tool[] {
  const all = (tools ?? []).map(({ type, name, description, parameters, strict }, i) => {
    if (type !== 'function') throw notRead(`tools[${i}].type`, 'this server runs no tools of its own; send functions')
    if (!present(name)) throw invalid(`tools[${i}].name`, 'missing; it is required')
    if (strict === true && present(parameters)) checkSchema(parameters, `tools[${i}].parameters`)
    return { name, description: description ?? '', parameters: parameters ?? { type: 'object' } }
  })
  refuseTwins(all)
  return all
}

export function choiceOf({ tool_choice: choice, tools }: ResponseBody): ToolChoice {
  if ((tools ?? []).length === 0) return choiceOfNone(choice)
  if (!present(choice)) return 'auto'
  if (choice === 'none' || choice === 'auto' || choice === 'required') return choice
  if (typeof choice === 'string' || choice.type !== 'function')
    throw invalid('tool_choice', 'expected "none", "auto", "required" or a function by name')
  const { name } = choice
  if (present(name) && tools!.some((tool) => tool.name === name)) return { name }
  throw invalid('tool_choice.name', 'it is none of `tools`')
}
