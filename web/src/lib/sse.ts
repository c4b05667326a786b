/** Parses server-sent events from a byte stream, as the HTML standard does. */
import { ApiError, errorOf } from './errors.ts'

export interface ServerEvent {
  /** "message" if the stream names no event. */
  readonly event: string
  readonly data: string
}

/** Takes text as it arrives and returns the complete events. */
export class SseParser {
  #rest = ''
  #event = ''
  #data: string[] = []

  push(text: string): ServerEvent[] {
    const events: ServerEvent[] = []
    // A carriage return at the end may be the first half of a line end.
    const lines = (this.#rest + text).split(/\r\n|\n|\r(?!$)/)
    this.#rest = lines.pop()!
    for (const line of lines) {
      const event = this.#line(line)
      if (event !== null) events.push(event)
    }
    return events
  }

  #line(line: string): ServerEvent | null {
    if (line === '') return this.#dispatch()
    const colon = line.indexOf(':')
    const field = colon < 0 ? line : line.slice(0, colon)
    const value = colon < 0 ? '' : line.slice(colon + 1).replace(/^ /, '')
    if (field === 'event') this.#event = value
    if (field === 'data') this.#data.push(value)
    return null
  }

  #dispatch(): ServerEvent | null {
    const event = { event: this.#event || 'message', data: this.#data.join('\n') }
    const isEmpty = this.#data.length === 0
    this.#event = ''
    this.#data = []
    return isEmpty ? null : event
  }
}

/** Text after the last blank line is dropped, as the standard says: only complete events count. */
export async function* readEvents(body: ReadableStream<Uint8Array>): AsyncGenerator<ServerEvent, void, undefined> {
  const parser = new SseParser()
  const decoder = new TextDecoder()
  const reader = body.getReader()
  try {
    for (;;) {
      const { done, value } = await reader.read().catch(brokenOff)
      if (done) return
      yield* parser.push(decoder.decode(value, { stream: true }))
    }
  } finally {
    await reader.cancel().catch(() => {})
  }
}

/** The objects of a stream that ends with [DONE]; throws an error that comes in their place. */
export async function* readChunks(body: ReadableStream<Uint8Array>): AsyncGenerator<unknown, void, undefined> {
  const events = readEvents(body)
  let isDone = false
  try {
    for (;;) {
      const { value, done } = await events.next()
      if (done) throw errorOf(500, 'the stream broke off')
      isDone = value.data === '[DONE]'
      if (isDone) return
      const chunk: unknown = JSON.parse(value.data)
      if (typeof chunk === 'object' && chunk !== null && 'error' in chunk) throw errorOf(500, value.data)
      yield chunk
    }
  } finally {
    if (isDone) void readOn(events)
    else await events.return()
  }
}

/** To the end of the reply: cancelled before it, the connection would be lost, and shown as a failure by the browser. */
async function readOn(events: AsyncGenerator<ServerEvent>): Promise<void> {
  try {
    while (!(await events.next()).done);
  } catch {
    // The answer is there.
  }
}

/** Replaces the browsers' own texts ("network error", "Load failed"). An AbortError comes from the caller itself. */
function brokenOff(thrown: unknown): never {
  if (thrown instanceof DOMException) throw thrown
  throw new ApiError(0, 'the connection to the server broke off', 'unreachable', null)
}
