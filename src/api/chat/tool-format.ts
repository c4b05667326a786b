/** How tools, calls and results look to the model; here as G1 models were trained. Knows no turns and no stream. */
import { parsedJson } from '../../files/bytes.ts'
import type { Constraint, JsonSchema } from '../../grammar/constraint.ts'
import { checkSchema, loosened } from '../../grammar/json-schema.ts'
import { CHAT_LAYOUT, CHAT_STOPS, chatTail, type Layout, type ThinkMode, type Turn } from '../template.ts'
import type { Conversation, Tool, ToolCall } from './conversation.ts'

/** What a model was taught. */
export interface ToolFormat {
  /** Of conversations with tools. */
  readonly layout: Layout
  readonly stops: readonly string[]
  /** How an answer begins there that was asked to begin like this. */
  modeOf(asked: ThinkMode): ThinkMode
  tail(mode: ThinkMode): string
  /** System texts that follow each other are one turn. */
  readonly joinsSystems: boolean
  /** The part of the system's text that tells of the tools. */
  list(conversation: Conversation): string
  calls(calls: readonly ToolCall[]): string
  /** Of the calls of one answer. */
  results(contents: readonly string[]): readonly Turn[]
  /** What begins a call. */
  readonly opening: string
  readonly closing: string
  /** Behind the colons and commas of a call. */
  readonly space: '' | ' '
}

/** What G1 models were trained on: a list in the system's text, calls between ```json and ```, results as texts of the user. */
export const G1_TOOLS: ToolFormat = {
  layout: CHAT_LAYOUT,
  stops: CHAT_STOPS,
  modeOf: (asked) => asked,
  tail: chatTail,
  joinsSystems: false,
  list: ({ tools, choice }) => {
    const order = ORDERS[choice === 'auto' ? 0 : 1]
    return `Tools:\n[\n${tools.map((tool) => toolLine(tool)).join(',\n')}\n]\n${order}`
  },
  calls: (calls) =>
    calls
      .map(({ name, arguments: json }) => {
        return `\`\`\`json\n{"name":${JSON.stringify(name)},"arguments":${compact(json)}}\n\`\`\``
      })
      .join('\n'),
  results: (contents) => {
    const told = contents.map((content) => `${RESULT_HEAD}${withoutBlankLines(content)}`)
    return [{ role: 'user', content: told.join('\n') }]
  },
  opening: '```json',
  closing: '```',
  space: '',
}

/** Where the model may answer, too, and where it has to call. */
export const ORDERS = [
  'Return only a JSON function call, or answer where no function is needed.',
  'Return only a JSON function call.',
] as const
export const RESULT_HEAD = 'Function output:\n'

/** The models know `arguments`, one entry each; which of them may be left out is said where not all are needed. */
function toolLine({ name, description, parameters }: Tool): string {
  const { properties = {}, required = [], ...rest } = parameters === true ? {} : parameters || {}
  const isPlain = Object.keys(rest).every((keyword) => PLAIN.includes(keyword))
  const said = withoutBlankLines(description)
  const about = said === '' ? {} : { description: said }
  if (!isPlain) return JSON.stringify({ name, ...about, arguments: parameters })
  const names = Object.keys(properties as object)
  const needed = (required as readonly string[]).filter((one) => names.includes(one))
  const must = needed.length === names.length ? {} : { required: needed }
  return JSON.stringify({ name, ...about, arguments: properties, ...must })
}

/** Keywords of a schema of arguments that say nothing which a model needs to read. */
const PLAIN = ['type', 'additionalProperties', '$schema', 'title', 'description']

/** On one line, as trained; what is no JSON stays as it is. */
function compact(json: string): string {
  const value = parsedJson(json)
  return value === undefined ? withoutBlankLines(json) || '{}' : JSON.stringify(value)
}

/** As texts were cleaned for training: a blank line ends a turn there. */
function withoutBlankLines(text: string): string {
  return text
    .replaceAll('\r\n', '\n')
    .replaceAll(/\n{2,}/g, '\n')
    .trim()
}

/** What a call between opening and closing may be. */
export function callOf(tool: Tool, format: ToolFormat): Constraint {
  return sequence(text(callBegin(tool.name, format)), argumentsOf(tool), text('}'))
}

export function callBegin(name: string, { space }: ToolFormat): string {
  return `{"name":${space}${JSON.stringify(name)},${space}"arguments":${space}`
}

export function argumentsOf({ parameters }: Tool): Constraint {
  return { type: 'schema', schema: objectOf(parameters) }
}

/** Arguments are an object, also where the schema does not say so; any where no answer can be held to the rest of it. */
function objectOf(parameters: JsonSchema): JsonSchema {
  if (typeof parameters === 'boolean') return ANY
  try {
    return checkSchema(loosened({ type: 'object', ...parameters }), 'parameters')
  } catch {
    return ANY
  }
}

const ANY = { type: 'object' }

export function text(value: string): Constraint {
  return { type: 'text', text: value }
}

export function sequence(...parts: Constraint[]): Constraint {
  return { type: 'sequence', parts }
}
