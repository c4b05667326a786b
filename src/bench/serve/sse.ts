/**
 * Server-sent events from bytes that arrive in pieces of any size: a piece may end within a line, a line end or a
 * character. Keeps to the WHATWG rules, but for one leniency: an event without its closing blank line counts when the
 * stream ends (conRWKV sends its last one so). Only `data` is read.
 */
export class SseParser {
  readonly #decoder = new TextDecoder()
  /** An unfinished line. */
  #pending = ''
  /** Data lines of the event that is being read; null before the first. */
  #data: string | null = null

  /** The data of the events that these bytes complete. */
  push(bytes: Uint8Array): string[] {
    return this.#read(this.#decoder.decode(bytes, { stream: true }))
  }

  /** What the end of the stream completes. */
  end(): string[] {
    return this.#read(`${this.#decoder.decode()}\n\n`)
  }

  #read(text: string): string[] {
    const events: string[] = []
    this.#pending += text
    // A carriage return at the very end may be half of a CRLF: it waits for what follows.
    const lines = this.#pending.split(/\r\n|\n|\r(?!$)/)
    this.#pending = lines.pop() ?? ''
    for (const line of lines) this.#takeLine(line, events)
    return events
  }

  #takeLine(line: string, events: string[]): void {
    if (line === '') {
      if (this.#data !== null) events.push(this.#data)
      this.#data = null
      return
    }
    const match = /^data(?:: ?(.*))?$/s.exec(line)
    if (!match) return
    const value = match[1] ?? ''
    this.#data = this.#data === null ? value : `${this.#data}\n${value}`
  }
}
