/**
 * One chat completion of a server as a stream of pieces. This is a client of the public API: it knows the JSON, not the
 * engine.
 */
import { SkeinError } from '../../errors.ts'
import { SAMPLING_ROWS, type SamplingName } from '../../sampling.ts'
import { GIVE_KEY, noAnswer, noReason } from '../remote.ts'

export interface ChatMessage {
  readonly role: 'system' | 'user' | 'assistant' | 'tool'
  readonly content: string
  /** Only in messages of the assistant. */
  readonly tool_calls?: readonly ToolCall[]
  /** Only in messages of a tool: the call that this is the result of. */
  readonly tool_call_id?: string
}

export interface ToolCall {
  readonly id: string
  readonly type: 'function'
  /** `arguments` is JSON text. */
  readonly function: { readonly name: string; readonly arguments: string }
}

export interface ChatRequest {
  readonly url: string
  /** Absent: the server's only model. */
  readonly model: string | undefined
  readonly apiKey: string | undefined
  readonly messages: readonly ChatMessage[]
  /** As the API takes them; empty for none. */
  readonly tools: readonly unknown[]
  readonly isThinking: boolean
  readonly maxTokens: number | undefined
  readonly sampling: Partial<Record<SamplingName, number>>
  readonly signal: AbortSignal
}

type ChatPiece =
  | { readonly type: 'text' | 'thought'; readonly text: string }
  /** The last piece: the calls that the model makes, and the number of tokens. */
  | { readonly type: 'end'; readonly calls: readonly ToolCall[]; readonly tokens: number }

interface Chunk {
  readonly choices?: readonly {
    readonly delta?: {
      readonly content?: string | null
      readonly reasoning_content?: string | null
      readonly tool_calls?: readonly CallPiece[]
    }
  }[]
  readonly usage?: { readonly completion_tokens?: number } | null
  readonly error?: { readonly message?: string }
}

interface CallPiece {
  readonly index: number
  readonly id?: string
  readonly function?: { readonly name?: string; readonly arguments?: string }
}

interface Failure {
  readonly error?: { readonly message?: string; readonly param?: string | null }
}

export async function* streamChat(request: ChatRequest): AsyncIterable<ChatPiece> {
  const response = await post(request)
  const calls: ToolCall[] = []
  let tokens = 0
  for await (const data of serverSentEvents(response)) {
    if (data === '[DONE]') break
    // The server is Skein or speaks the same API. Bodies of other shapes yield nothing.
    const chunk = JSON.parse(data) as Chunk
    if (chunk.error) throw new SkeinError('internal', chunk.error.message ?? 'the stream failed')
    const delta = chunk.choices?.[0]?.delta
    if (delta?.reasoning_content) yield { type: 'thought', text: delta.reasoning_content }
    if (delta?.content) yield { type: 'text', text: delta.content }
    for (const piece of delta?.tool_calls ?? []) addTo(calls, piece)
    tokens = chunk.usage?.completion_tokens ?? tokens
  }
  yield { type: 'end', calls, tokens }
}

function addTo(calls: ToolCall[], { index, id, function: called }: CallPiece): void {
  const begun = calls[index]
  calls[index] = {
    id: id ?? begun?.id ?? `call_${index}`,
    type: 'function',
    function: {
      name: (begun?.function.name ?? '') + (called?.name ?? ''),
      arguments: (begun?.function.arguments ?? '') + (called?.arguments ?? ''),
    },
  }
}

async function post(request: ChatRequest): Promise<Response> {
  const { url, apiKey, messages, tools, isThinking, signal } = request
  const body = {
    model: request.model,
    messages,
    stream: true,
    stream_options: { include_usage: true },
    ...(tools.length > 0 ? { tools } : {}),
    max_tokens: request.maxTokens ?? 512,
    ...samplingFields(request.sampling),
    ...(isThinking ? { enable_think: true } : {}),
  }
  const headers = { 'content-type': 'application/json', ...(apiKey ? { authorization: `Bearer ${apiKey}` } : {}) }
  const target = `${url}/v1/chat/completions`
  const sent = fetch(target, { method: 'POST', headers, body: JSON.stringify(body), signal })
  const response = await sent.catch((error: unknown) => {
    if (signal.aborted) throw error
    throw noAnswer(url, error, 'start one with `skein serve`, or name a checkpoint: `skein chat FILE`')
  })
  if (!response.ok) throw await failureOf(response, Boolean(apiKey))
  return response
}

/** Field names of the API, with the terminal's defaults. */
function samplingFields(given: ChatRequest['sampling']): Record<string, number> {
  const rows = SAMPLING_ROWS.flatMap(([name, { fields, ownDefault }]) => {
    const value = given[name] ?? ownDefault
    return value === undefined || fields[0] === undefined ? [] : [[fields[0], value] as const]
  })
  return Object.fromEntries(rows)
}

async function failureOf(response: Response, isKeyGiven: boolean): Promise<SkeinError> {
  const body = (await response.json().catch(() => null)) as Failure | null
  const message = body?.error?.message ?? noReason(response)
  if (response.status === 401) return new SkeinError('unauthorized', isKeyGiven ? message : `${message} ${GIVE_KEY}`)
  if (body?.error?.param === 'model') return new SkeinError('not_found', `${message} (give one with --model-name)`)
  if (response.status === 404 && body?.error)
    return new SkeinError('not_found', `${response.url} is no address of Skein: ${message}`)
  return new SkeinError('invalid_request', message)
}

async function* serverSentEvents(response: Response): AsyncIterable<string> {
  const decoder = new TextDecoder()
  let pending = ''
  for await (const bytes of response.body ?? []) {
    pending += decoder.decode(bytes, { stream: true })
    const lines = pending.split('\n')
    pending = lines.pop() ?? ''
    for (const line of lines) if (line.startsWith('data: ')) yield line.slice(6)
  }
}
