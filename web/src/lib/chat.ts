/** Chat and raw completions as streams of parts. */
import { request } from './api.ts'
import { readChunks } from './sse.ts'
import { bodyOf, type Chunk, type Part, partOf, type Settings, toolsOf } from './wire.ts'

export interface Message {
  readonly role: 'system' | 'user' | 'assistant' | 'tool'
  readonly content: string
  readonly tool_calls?: readonly object[]
}

/** "": the server chooses among the model's workers; else the path to one worker's gateway. */
export interface Target {
  readonly base: string
  readonly model: string
}

export interface SessionUse {
  readonly id: string
  readonly from: number
  readonly ttl_seconds: number
  /** `keep`: a stopped answer becomes a turn with its text so far. */
  readonly on_cancel: 'keep'
}

export function streamChat(
  target: Target,
  messages: readonly Message[],
  settings: Settings,
  session: SessionUse,
  abort: AbortSignal,
): AsyncGenerator<Part> {
  const { think, alternatives } = settings
  const tools = toolsOf(settings.tools)
  return stream(
    `${target.base}/v1/chat/completions`,
    {
      ...head(target),
      messages,
      ...bodyOf(settings),
      session,
      ...(tools.length > 0 ? { tools } : {}),
      ...(think === 'auto' ? {} : { enable_think: think === 'on' }),
      ...(alternatives > 0 ? { logprobs: true, top_logprobs: alternatives } : {}),
    },
    abort,
  )
}

export function streamCompletion(
  target: Target,
  prompt: string,
  settings: Settings,
  abort: AbortSignal,
): AsyncGenerator<Part> {
  const { alternatives } = settings
  const body = { max_tokens: 256, ...bodyOf(settings) }
  return stream(
    `${target.base}/v1/completions`,
    { ...head(target), prompt, ...body, ...(alternatives > 0 ? { logprobs: alternatives } : {}) },
    abort,
  )
}

function head({ model }: Target): object {
  return { model, stream: true, stream_options: { include_usage: true } }
}

async function* stream(path: string, body: object, abort: AbortSignal): AsyncGenerator<Part> {
  const reply = await request(path, { body, signal: abort })
  for await (const chunk of readChunks(reply.body!)) yield partOf(chunk as Chunk) // the server's own shape
}
