/**
 * A conversation with tools, as every dialect hands it over, and what is asked of the answer. It knows neither the wire nor
 * the prompt: prepare.ts makes a request of it, reply.ts reads the answer.
 */
import { invalid } from '../../errors.ts'
import { parsedJson } from '../../files/bytes.ts'
import type { JsonSchema } from '../../grammar/constraint.ts'
import type { ThinkMode } from '../template.ts'

export interface Tool {
  readonly name: string
  /** '' for none. */
  readonly description: string
  /** Schema of the object of its arguments. */
  readonly parameters: JsonSchema
}

/** Of a request: each becomes a part of the prompt. */
export const MAX_TOOLS = 256

/** Calls could not be told apart. */
export function refuseTwins(tools: readonly Tool[]): void {
  const names = new Set<string>()
  for (const { name } of tools) {
    if (names.has(name)) throw invalid('tools', `two of them are called ${JSON.stringify(name)}`)
    names.add(name)
  }
}

/** Of a request without tools, which may choose no call. */
export function choiceOfNone(choice: unknown): 'none' {
  if (choice === undefined || choice === null || choice === 'auto' || choice === 'none') return 'none'
  throw invalid('tool_choice', 'there are no tools to choose from; send them as `tools`')
}

export interface ToolCall {
  readonly id: string
  readonly name: string
  /** JSON, as the model wrote it. */
  readonly arguments: string
}

/** The arguments as a value; an answer that was cut off may have half of an object. */
export function argumentsIn(written: string): unknown {
  return parsedJson(written) ?? {}
}

export type Message =
  | { readonly role: 'system' | 'user'; readonly content: string }
  | {
      readonly role: 'assistant'
      readonly content: string
      /** Absent: none. */
      readonly calls?: readonly ToolCall[] | undefined
    }
  /** The result of a call; those of one answer follow each other. */
  | { readonly role: 'tool'; readonly content: string }

export type ToolChoice = 'auto' | 'none' | 'required' | { readonly name: string }

export interface Conversation {
  readonly messages: readonly Message[]
  readonly tools: readonly Tool[]
  readonly choice: ToolChoice
  /** An answer may have several calls, where the model is free to call at all. */
  readonly parallel: boolean
  /** The model has read the list of these tools in an earlier turn. */
  readonly areToolsTold?: boolean
}

export function plainConversation(messages: readonly Message[]): Conversation {
  return { messages, tools: [], choice: 'none', parallel: true }
}

/** Whether the model thinks first, and how much: the words that models were trained to see behind the user's last text. */
export interface Thinking {
  readonly mode: ThinkMode
  readonly hint: '' | ' (think)' | ' (think a bit)' | ' (think a lot)'
}

export function thinking(mode: ThinkMode): Thinking {
  return { mode, hint: '' }
}

/** How much thought a word of other APIs asks for. Null: no such word. */
export function thinkingOf(effort: string): Thinking | null {
  return Object.hasOwn(EFFORTS, effort) ? EFFORTS[effort]! : null
}

const EFFORTS: Readonly<Record<string, Thinking>> = {
  none: thinking('closed'),
  minimal: thinking('closed'),
  low: { mode: 'open', hint: ' (think a bit)' },
  medium: { mode: 'open', hint: ' (think)' },
  high: { mode: 'open', hint: ' (think a lot)' },
  xhigh: { mode: 'open', hint: ' (think a lot)' },
}
