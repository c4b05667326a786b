/** Converts settings to request fields, and streamed chunks to what they add. */

import { SAMPLING_ROWS, type SamplingUsualField } from '../../../src/sampling.ts'
import { t } from './i18n.ts'

/** Settings that are numbers. */
export type NumberName = SamplingUsualField | 'max_tokens' | 'seed'

export const FORMATS = ['text', 'json', 'schema', 'regex', 'grammar'] as const

/** All settings of a request; null leaves the choice to the server. */
export interface Settings extends Readonly<Record<NumberName, number | null>> {
  /** One per line; \n stands for a line end. */
  readonly stop: string
  /** Token ids. */
  readonly banned_tokens: string
  /** "id: bias", one per line. */
  readonly logit_bias: string
  readonly ignore_eos: boolean
  readonly think: 'auto' | 'on' | 'off'
  /** The required form of answers. */
  readonly format: (typeof FORMATS)[number]
  /** The schema, the expression or the grammar. */
  readonly form: string
  /** A JSON list of functions. */
  readonly tools: string
  /** Alternatives per token; 0: none, and no probabilities. */
  readonly alternatives: number
}

export const DEFAULTS: Settings = {
  ...nothingSet(),
  stop: '',
  banned_tokens: '',
  logit_bias: '',
  ignore_eos: false,
  think: 'auto',
  format: 'text',
  form: '',
  tools: '',
  alternatives: 0,
}

function nothingSet(): Record<NumberName, null> {
  const names = [...SAMPLING_ROWS.flatMap(([, { fields }]) => fields.slice(0, 1)), 'max_tokens', 'seed']
  // NumberName is the union of these.
  return Object.fromEntries(names.map((name) => [name, null])) as Record<NumberName, null>
}

/** Objects keep the order of their names. */
const NUMBERS = Object.keys(nothingSet()) as NumberName[]

/** Fields that both routes share. */
export function bodyOf(settings: Settings): Record<string, unknown> {
  const body: Record<string, unknown> = {}
  for (const name of NUMBERS) if (settings[name] !== null) body[name] = settings[name]
  const stop = lines(settings.stop).map((line) => line.replaceAll('\\n', '\n'))
  const banned = settings.banned_tokens.match(/\d+/g)?.map(Number) ?? []
  const bias = lines(settings.logit_bias).map((line) => line.split(/[:=\s]+/, 2))
  if (stop.length > 0) body.stop = stop
  if (banned.length > 0) body.banned_tokens = banned
  if (bias.length > 0) {
    body.logit_bias = Object.fromEntries(bias.map(([id, value]) => [id, Number(value)]))
  }
  if (settings.ignore_eos) body.ignore_eos = true
  return { ...body, ...formatOf(settings) }
}

function formatOf({ format, form }: Settings): Record<string, unknown> {
  if (format === 'json') return { response_format: { type: 'json_object' } }
  if (format === 'text' || form.trim() === '') return {}
  const field = { schema: 'guided_json', regex: 'guided_regex', grammar: 'guided_grammar' }[format]
  return { [field]: form }
}

/** In OpenAI's form; bare functions are accepted, too. Throws if the text is not a list of functions. */
export function toolsOf(text: string): readonly object[] {
  if (text.trim() === '') return []
  const list: unknown = JSON.parse(text)
  if (!Array.isArray(list)) throw new Error(t('A list of functions was expected'))
  return list.map((one: object) => ('function' in one ? one : { type: 'function', function: one }))
}

function lines(text: string): string[] {
  return text.split('\n').filter((line) => line.trim() !== '')
}

export interface TokenView {
  readonly token: string
  readonly logprob: number
  readonly top: readonly { readonly token: string; readonly logprob: number }[]
}

/** A function call by the model; its arguments arrive in pieces. */
export interface ToolCall {
  readonly index: number
  readonly name: string
  readonly arguments: string
}

/** Appends each piece to its call, or starts a new call. */
export function withToolCalls(calls: readonly ToolCall[], pieces: readonly ToolCall[]): readonly ToolCall[] {
  const all = [...calls]
  for (const piece of pieces) {
    const at = all.findIndex(({ index }) => index === piece.index)
    if (at < 0) {
      all.push(piece)
      continue
    }
    const { index, name, arguments: given } = all[at]!
    all[at] = { index, name: name + piece.name, arguments: given + piece.arguments }
  }
  return all
}

export interface Usage {
  readonly prompt: number
  readonly completion: number
  readonly cached: number
}

/** What a chunk adds; absent fields add nothing. */
export interface Part {
  readonly reasoning?: string
  readonly content?: string
  readonly toolCalls?: readonly ToolCall[]
  readonly tokens?: readonly TokenView[]
  readonly finish?: string
  readonly usage?: Usage
  /** The turn that the answer became. */
  readonly turn?: number
}

/** docs/api.md has the shapes: OpenAI's, with `session` and `reasoning_content`. */
export interface Chunk {
  readonly choices: readonly {
    readonly text?: string
    readonly delta?: {
      readonly content?: string | null
      readonly reasoning_content?: string
      readonly tool_calls?: readonly {
        readonly index: number
        readonly function?: { readonly name?: string; readonly arguments?: string }
      }[]
    }
    readonly logprobs?: ChatLogprobs | TextLogprobs | null
    readonly finish_reason: string | null
  }[]
  readonly usage?: {
    readonly prompt_tokens: number
    readonly completion_tokens: number
    readonly prompt_tokens_details?: { readonly cached_tokens: number }
  } | null
  readonly session?: { readonly turn: number }
}

interface ChatLogprobs {
  readonly content: readonly {
    readonly token: string
    readonly logprob: number
    readonly top_logprobs: readonly { readonly token: string; readonly logprob: number }[]
  }[]
}

interface TextLogprobs {
  readonly tokens: readonly string[]
  readonly token_logprobs: readonly (number | null)[]
  readonly top_logprobs: readonly (Readonly<Record<string, number>> | null)[]
}

export function partOf({ choices, usage, session }: Chunk): Part {
  const [choice] = choices
  const tokens = tokensOf(choice?.logprobs)
  const content = choice?.delta?.content ?? choice?.text
  const toolCalls = (choice?.delta?.tool_calls ?? []).map(({ index, function: called }) => ({
    index,
    name: called?.name ?? '',
    arguments: called?.arguments ?? '',
  }))
  return {
    ...(toolCalls.length > 0 ? { toolCalls } : {}),
    ...(content ? { content } : {}),
    ...(choice?.delta?.reasoning_content ? { reasoning: choice.delta.reasoning_content } : {}),
    ...(tokens.length > 0 ? { tokens } : {}),
    ...(choice?.finish_reason ? { finish: choice.finish_reason } : {}),
    ...(session ? { turn: session.turn } : {}),
    ...(usage
      ? {
          usage: {
            prompt: usage.prompt_tokens,
            completion: usage.completion_tokens,
            cached: usage.prompt_tokens_details?.cached_tokens ?? 0,
          },
        }
      : {}),
  }
}

function tokensOf(logprobs: ChatLogprobs | TextLogprobs | null | undefined): TokenView[] {
  if (!logprobs) return []
  if ('content' in logprobs) {
    return logprobs.content.map(({ token, logprob, top_logprobs }) => ({ token, logprob, top: top_logprobs }))
  }
  return logprobs.tokens.map((token, i) => ({
    token,
    logprob: logprobs.token_logprobs[i] ?? 0,
    top: Object.entries(logprobs.top_logprobs[i] ?? {})
      .map(([token, logprob]) => ({ token, logprob }))
      .sort((a, b) => b.logprob - a.logprob),
  }))
}

export interface Split {
  readonly thought: string
  /** The thought is not complete. */
  readonly isThinking: boolean
  readonly answer: string
}

/** Splits off a thought that the model wrote by itself: such an answer begins with <think>. */
export function splitThought(text: string): Split {
  const begin = /^\s*<think>/.exec(text)
  if (begin === null) return { thought: '', isThinking: false, answer: text }
  const rest = text.slice(begin[0].length)
  const end = rest.indexOf('</think>')
  if (end < 0) return { thought: rest.trim(), isThinking: true, answer: '' }
  const answer = rest.slice(end + '</think>'.length).trimStart()
  return { thought: rest.slice(0, end).trim(), isThinking: false, answer }
}
