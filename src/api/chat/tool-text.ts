/** The inverse of tool-format.ts: tools, calls and results out of texts that a model has read and written. */
import type { JsonSchema } from '../../grammar/constraint.ts'
import type { Tool } from './conversation.ts'
import { readMarkdownList } from './markdown-tools.ts'
import { ORDERS, RESULT_HEAD } from './tool-format.ts'
import { ToolSplitter } from './tool-splitter.ts'

interface ToolList {
  /** Of the system's text, what is not the list. */
  readonly content: string
  readonly tools: readonly Tool[]
}

/** Null where the system's text ends with none. */
export function readToolList(content: string): ToolList | null {
  return readG1List(content) ?? readMarkdownList(content)
}

function readG1List(content: string): ToolList | null {
  const order = ORDERS.find((one) => content.endsWith(`\n]\n${one}`))
  if (order === undefined) return null
  const found = /^(?:(.*)\n)?Tools:\n\[\n(.*)$/s.exec(content.slice(0, -`\n]\n${order}`.length))
  if (found === null) return null
  try {
    const tools = found[2]!.split(',\n').map((line) => toolOf(JSON.parse(line)))
    return { content: found[1] ?? '', tools }
  } catch {
    // A text that reads like a list, and is none.
    return null
  }
}

interface WrittenTool {
  readonly name: string
  readonly description?: string
  readonly arguments: JsonSchema
  readonly required?: readonly string[]
}

function toolOf({ name, description = '', arguments: given, required }: WrittenTool): Tool {
  // A schema's `type` is a word; an argument of that name would be a schema.
  if (typeof given === 'boolean' || typeof given.type === 'string') return { name, description, parameters: given }
  const needed = required ?? Object.keys(given)
  return { name, description, parameters: { type: 'object', properties: given, required: needed } }
}

/** What an answer says, and the calls of these tools in it. */
export function callsIn(answer: string, tools: readonly Tool[]) {
  if (tools.length === 0) return { text: answer, calls: [] }
  const names = tools.map(({ name }) => name)
  const splitter = new ToolSplitter(names, false)
  let text = ''
  const calls: { name: string; arguments: string }[] = []
  for (const piece of [...splitter.push(answer), ...splitter.end()]) {
    if (piece.type === 'text') text += piece.text
    else if (piece.type === 'call') calls.push({ name: piece.name, arguments: '' })
    else calls.at(-1)!.arguments += piece.text
  }
  return { text, calls }
}

/** Of so many calls; null where the user's text is none. */
export function resultsIn(content: string, numCalls: number): readonly string[] | null {
  if (numCalls === 0 || !content.startsWith(RESULT_HEAD)) return null
  const parts = content.slice(RESULT_HEAD.length).split(`\n${RESULT_HEAD}`)
  // A result that has such a line in it.
  const last = parts.slice(numCalls - 1).join(`\n${RESULT_HEAD}`)
  return parts.length <= numCalls ? parts : [...parts.slice(0, numCalls - 1), last]
}
