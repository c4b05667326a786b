/**
 * The APIs that a load can speak: the body that asks for answers, and the meaning of an answer's JSON. It knows nothing
 * of connections and times. Bodies of other servers may lack any field.
 */
import { isObject } from '../../files/bytes.ts'
import type { Prompt } from './prompts.ts'

export const ENDPOINTS = ['completions', 'chat', 'lightning', 'lightning-big'] as const
export type EndpointName = (typeof ENDPOINTS)[number]

export interface AskSettings {
  /** Undefined: the field is left out. */
  readonly model: string | undefined
  readonly isStream: boolean
  readonly ignoreEos: boolean
  readonly temperature: number
  /** rwkv_lightning accepts the key here as well. */
  readonly password: string | undefined
  /** Fields to add or to replace. */
  readonly extra: Readonly<Record<string, unknown>>
}

export interface Piece {
  readonly answer: number
  /** New text; may be empty. */
  readonly text: string
  readonly isEnd: boolean
}

export interface Usage {
  readonly inputTokens: number
  /** Input tokens that the server had cached; null if it does not say. */
  readonly cachedTokens: number | null
  readonly outputTokens: number
}

/** The content of a stream's event, or of a whole reply. */
interface Said {
  readonly pieces: readonly Piece[]
  readonly usage: Usage | null
  readonly error: string | null
}

export interface Endpoint {
  readonly path: string
  readonly takesBatch: boolean
  body(prompts: readonly Prompt[], settings: AskSettings): object
}

const openAi = (settings: AskSettings, prompt: Prompt) => ({
  model: settings.model,
  max_tokens: prompt.maxTokens,
  temperature: settings.temperature,
  stream: settings.isStream,
  ...(settings.isStream ? { stream_options: { include_usage: true } } : {}),
  ...(settings.ignoreEos ? { ignore_eos: true } : {}),
  ...settings.extra,
})

/** rwkv_lightning: one length for all rows, an event per token, no usage. */
const lightning = (prompts: readonly Prompt[], settings: AskSettings) => ({
  contents: prompts.map(({ text }) => text),
  max_tokens: Math.max(...prompts.map(({ maxTokens }) => maxTokens)),
  temperature: settings.temperature,
  stream: settings.isStream,
  chunk_size: 1,
  ...(settings.model === undefined ? {} : { model: settings.model }),
  ...(settings.password === undefined ? {} : { password: settings.password }),
  // Its default stops would end an answer, too.
  ...(settings.ignoreEos ? { ignore_eos: true, stop_tokens: [] } : {}),
  ...settings.extra,
})

const TABLE: Readonly<Record<EndpointName, Endpoint>> = {
  completions: {
    path: '/v1/completions',
    takesBatch: false,
    body: ([prompt], settings) => ({ prompt: prompt!.text, ...openAi(settings, prompt!) }),
  },
  chat: {
    path: '/v1/chat/completions',
    takesBatch: false,
    body: ([prompt], settings) => {
      return { messages: [{ role: 'user', content: prompt!.text }], ...openAi(settings, prompt!) }
    },
  },
  lightning: { path: '/v1/chat/completions', takesBatch: true, body: lightning },
  'lightning-big': { path: '/big_batch/completions', takesBatch: true, body: lightning },
}

export function endpointOf(name: EndpointName): Endpoint {
  return TABLE[name]
}

/** Whether the data marks the end of a stream; RWKV-Infer writes a list. */
export function isDone(data: string): boolean {
  return data === '[DONE]' || data === '["[DONE]"]'
}

/** Reads an event of a stream or a whole reply; null if it is no JSON object. */
export function readReply(json: unknown): Said | null {
  const reply = objectOf(json)
  if (reply === null) return null
  const choices = Array.isArray(reply.choices) ? reply.choices.map(objectOf) : []
  const pieces = choices.map((choice) => ({
    answer: typeof choice?.index === 'number' ? choice.index : 0,
    text: textOf(choice),
    isEnd: typeof choice?.finish_reason === 'string',
  }))
  return { pieces, usage: usageOf(objectOf(reply.usage)), error: errorOf(reply.error) }
}

type Fields = Readonly<Record<string, unknown>>

function objectOf(json: unknown): Fields | null {
  return isObject(json) ? json : null
}

/** Users wait for thought and answer tokens alike. */
function textOf(choice: Fields | null | undefined): string {
  const message = objectOf(choice?.delta) ?? objectOf(choice?.message)
  return [message?.reasoning_content, message?.content, choice?.text]
    .filter((part) => typeof part === 'string')
    .join('')
}

function usageOf(usage: Fields | null): Usage | null {
  const [inputTokens, outputTokens] = [usage?.prompt_tokens, usage?.completion_tokens]
  if (typeof inputTokens !== 'number' || typeof outputTokens !== 'number') return null
  const cached = objectOf(usage?.prompt_tokens_details)?.cached_tokens
  return { inputTokens, cachedTokens: typeof cached === 'number' ? cached : null, outputTokens }
}

/** Accepts an error as OpenAI's object, as text, or in any other shape. */
export function errorOf(error: unknown): string | null {
  if (error === undefined || error === null) return null
  if (typeof error === 'string') return error
  const message = objectOf(error)?.message
  return typeof message === 'string' ? message : JSON.stringify(error)
}
