/**
 * Conversations with tools as vllm-rwkv tells them: heads of Markdown with a line of their own, a tool's parameters as its
 * schema, calls marked and fenced, results as turns. Thoughts are there as always; an answer begins with one, which may be empty.
 */
import { parsedJson } from '../../files/bytes.ts'
import { CHAT_STOPS, escapeOf, type Layout, type ThinkMode } from '../template.ts'
import type { Tool } from './conversation.ts'
import type { ToolFormat } from './tool-format.ts'

/** The heads of this form, and those that any chat may forge. */
const FORGED =
  /(?<=^|[\n\r\v\f\u0085\u2028\u2029])(?= *(?:(?:system|user|assistant|human|bot)[ \t]*[:：]|### *(?:system|user|assistant|tool output)\b))/giu
const ESCAPED =
  /(?<=^|[\n\r\v\f\u0085\u2028\u2029]) (?= *(?:(?:system|user|assistant|human|bot)[ \t]*[:：]|### *(?:system|user|assistant|tool output)\b))/giu

export const MARKDOWN_LAYOUT: Layout = {
  heads: { system: '### System', user: '### User', assistant: '### Assistant', tool: '### Tool Output' },
  gap: '\n',
  between: '\n',
  ...escapeOf(FORGED, ESCAPED),
}

const { heads } = MARKDOWN_LAYOUT

const TAILS: Readonly<Record<ThinkMode, string>> = {
  none: heads.assistant,
  open: `${heads.assistant}\n<think`,
  closed: `${heads.assistant}\n<think></think`,
  done: `${heads.assistant}\n<think></think>\n`,
}

/** What ends the list. */
const ORDER = `To call one of these tools, write exactly this format:
**Tool Call:**
\`\`\`json
{"name": "tool_name", "arguments": {"key": "value"}}
\`\`\`
Do not invent tool call IDs or write tool outputs yourself.`

export const MARKDOWN_TOOLS: ToolFormat = {
  layout: MARKDOWN_LAYOUT,
  stops: [...CHAT_STOPS, ...[heads.user, heads.system, heads.tool].map((head) => `\n${head}`)],
  modeOf: (asked) => (asked === 'none' ? 'closed' : asked),
  tail: (mode) => TAILS[mode],
  joinsSystems: true,
  list: ({ tools }) => [...tools.map(toolOf), ORDER].join('\n'),
  calls: (calls) =>
    calls
      .map(({ name, arguments: given }) => `**Tool Call:**\n${fenced({ name, arguments: jsonOrText(given || '{}') })}`)
      .join('\n'),
  results: (contents) => contents.map((content) => ({ role: 'tool', content: fenced(jsonOrText(content)) })),
  opening: '**Tool Call:**\n```json',
  closing: '```',
  space: ' ',
}

function toolOf({ name, description, parameters }: Tool): string {
  const about = description === '' ? '' : `**Description:** ${description}\n`
  return `### \`${name}\`\n${about}**Parameters:**\n${fenced(parameters)}`
}

function fenced(value: unknown): string {
  return `\`\`\`json\n${JSON.stringify(value, null, 2)}\n\`\`\``
}

/** What is no JSON is a string of it. */
function jsonOrText(json: string): unknown {
  const value = parsedJson(json)
  return value === undefined ? json : value
}

const ABOUT = '**Description:** '
const SCHEMA = '**Parameters:**\n```json\n'
const END = '\n```\n'
/** Of lines that look like the first of a list. */
const MOST_STARTS = 16

/** The inverse: null where the system's text ends with no list. */
export function readMarkdownList(
  content: string,
): { readonly content: string; readonly tools: readonly Tool[] } | null {
  if (!content.endsWith(`\n${ORDER}`)) return null
  const text = content.slice(0, -ORDER.length)
  const starts = [...text.matchAll(/^### `/gm)].slice(0, MOST_STARTS)
  for (const { index } of starts) {
    const tools = toolsIn(text.slice(index))
    if (tools !== null) return { content: text.slice(0, index).replace(/\n$/, ''), tools }
  }
  return null
}

/** Null unless all of the text is tools. */
function toolsIn(text: string): Tool[] | null {
  const tools: Tool[] = []
  let rest = text
  while (rest !== '') {
    const [head, name] = /^### `([^`\n]+)`\n/.exec(rest) ?? []
    const at = rest.indexOf(SCHEMA)
    const end = rest.indexOf(END, at + SCHEMA.length - 1)
    if (head === undefined || at < 0 || end < 0) return null
    const about = rest.slice(head.length, at)
    if (about !== '' && !about.startsWith(ABOUT)) return null
    const parameters = jsonOrText(rest.slice(at + SCHEMA.length, end))
    if (typeof parameters === 'string') return null
    const description = about.slice(ABOUT.length, -1)
    // A schema is what a tool was told with.
    tools.push({ name: name!, description, parameters: parameters as Tool['parameters'] })
    rest = rest.slice(end + END.length)
  }
  return tools
}

/** The inverse of a result; text that is none stays as it is. */
export function readMarkdownResult(content: string): string {
  const inner = /^```json\n(.*)\n```$/s.exec(content)?.[1]
  if (inner === undefined) return content
  const value = jsonOrText(inner)
  return typeof value === 'string' ? value : JSON.stringify(value)
}
