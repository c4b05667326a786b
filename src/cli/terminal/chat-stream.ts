/** One chat completion of a server as a stream of pieces. A client of the public API: knows its JSON, not the engine. */
import { SkeinError } from '../../errors.ts'
import { SAMPLING_ROWS, type SamplingName } from '../../sampling.ts'

export interface ChatMessage {
  readonly role: 'system' | 'user' | 'assistant'
  readonly content: string
}

export interface ChatRequest {
  readonly url: string
  /** Absent: the only one that the server has. */
  readonly model: string | undefined
  readonly apiKey: string | undefined
  readonly messages: readonly ChatMessage[]
  readonly isThinking: boolean
  readonly maxTokens: number | undefined
  readonly sampling: Partial<Record<SamplingName, number>>
  readonly signal: AbortSignal
}

interface ChatPiece {
  readonly isThought: boolean
  readonly text: string
}

/** The parts of a chunk that are read here. */
interface Chunk {
  readonly choices?: readonly {
    readonly delta?: {
      readonly content?: string | null
      readonly reasoning_content?: string | null
    }
  }[]
  readonly error?: { readonly message?: string }
}

interface Failure {
  readonly error?: { readonly message?: string; readonly param?: string | null }
}

export async function* streamChat(request: ChatRequest): AsyncIterable<ChatPiece> {
  const response = await post(request)
  for await (const data of serverSentEvents(response)) {
    if (data === '[DONE]') return
    // The server is ours or speaks the same API; a body of another shape simply yields nothing.
    const chunk = JSON.parse(data) as Chunk
    if (chunk.error) throw new SkeinError('internal', chunk.error.message ?? 'the stream failed')
    const delta = chunk.choices?.[0]?.delta
    if (delta?.reasoning_content) yield { isThought: true, text: delta.reasoning_content }
    if (delta?.content) yield { isThought: false, text: delta.content }
  }
}

async function post(request: ChatRequest): Promise<Response> {
  const { url, apiKey, messages, isThinking, signal } = request
  const body = {
    model: request.model,
    messages,
    stream: true,
    max_tokens: request.maxTokens ?? 512,
    ...samplingFields(request.sampling),
    ...(isThinking ? { enable_think: true } : {}),
  }
  const headers = {
    'content-type': 'application/json',
    ...(apiKey ? { authorization: `Bearer ${apiKey}` } : {}),
  }
  const target = `${url}/v1/chat/completions`
  const sent = fetch(target, { method: 'POST', headers, body: JSON.stringify(body), signal })
  const response = await sent.catch((error: unknown) => {
    if (signal.aborted) throw error
    throw new SkeinError(
      'model_not_loaded',
      `no server answers at ${url}; start one with \`skein serve\`, or name a checkpoint: \`skein chat FILE\``,
    )
  })
  if (!response.ok) throw await failureOf(response)
  return response
}

/** By the usual names of the API, with the defaults of the terminal. */
function samplingFields(given: ChatRequest['sampling']): Record<string, number> {
  const rows = SAMPLING_ROWS.flatMap(([name, { fields, ownDefault }]) => {
    const value = given[name] ?? ownDefault
    return value === undefined || fields[0] === undefined ? [] : [[fields[0], value] as const]
  })
  return Object.fromEntries(rows)
}

async function failureOf(response: Response): Promise<SkeinError> {
  const body = (await response.json().catch(() => null)) as Failure | null
  const message = body?.error?.message ?? `the server answered ${response.status}`
  if (response.status === 401)
    return new SkeinError('unauthorized', `${message} (give the key with --api-key)`)
  if (body?.error?.param === 'model')
    return new SkeinError('not_found', `${message} (give one with --model-name)`)
  if (response.status === 404)
    return new SkeinError('not_found', `${response.url} is no address of Skein: ${message}`)
  return new SkeinError('invalid_request', message)
}

/** The data lines of an event stream. */
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
