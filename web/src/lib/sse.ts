/** Server-sent events out of a byte stream, as the HTML standard reads them. Knows nothing of what they mean. */
import { ApiError } from './errors.ts'

export interface ServerEvent {
  /** "message" where the stream names none. */
  readonly event: string
  readonly data: string
}

/** Feed it text as it comes; it hands out the events that are whole. */
export class SseParser {
  #rest = ''
  #event = ''
  #data: string[] = []

  push(text: string): ServerEvent[] {
    const events: ServerEvent[] = []
    // A carriage return at the very end may be half of a line end.
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

/** What comes after the last blank line is lost, as the standard has it: an event is whole or was never sent. */
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

/** Browsers have words of their own for it: "network error", "Load failed". An AbortError is the reader's own doing. */
function brokenOff(thrown: unknown): never {
  if (thrown instanceof DOMException) throw thrown
  throw new ApiError(0, 'the connection to the server broke off', 'unreachable', null)
}
