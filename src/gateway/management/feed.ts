/**
 * A stream of server-sent events to one watcher. A watcher that reads slowly misses what can be missed, one that does not
 * read at all is cut off: no more than a bound is ever kept for it.
 */
import type { ServerResponse } from 'node:http'
import { SSE } from '../../api/stream-form.ts'
import { STREAM_HEADERS, type StreamBounds } from '../http/sse.ts'

const HEADERS = { ...STREAM_HEADERS, 'content-type': SSE.type }

const BEAT_MS = 15_000

export class Feed {
  readonly #response: ServerResponse
  readonly #bounds: StreamBounds
  readonly #beat: NodeJS.Timeout
  #isFullSince: number | null = null

  constructor(
    response: ServerResponse,
    headers: Readonly<Record<string, string>>,
    bounds: StreamBounds,
  ) {
    this.#response = response
    this.#bounds = bounds
    response.writeHead(200, { ...headers, ...HEADERS })
    this.#beat = setInterval(() => this.#write(': \n\n'), BEAT_MS)
    response.once('close', () => clearInterval(this.#beat))
  }

  get isOver(): boolean {
    return this.#response.destroyed || this.#response.writableEnded
  }

  /** False when the watcher has too much before it and this was left out. */
  send(event: { readonly type: string }): boolean {
    const { type, ...rest } = event
    return this.#write(`event: ${type}\ndata: ${JSON.stringify(rest)}\n\n`)
  }

  onClose(listener: () => void): void {
    this.#response.once('close', listener)
  }

  end(): void {
    if (!this.isOver) this.#response.end()
  }

  #write(text: string): boolean {
    if (this.isOver) return false
    if (this.#response.writableLength <= this.#bounds.streamBufferBytes) {
      this.#isFullSince = null
      this.#response.write(text)
      return true
    }
    this.#isFullSince ??= performance.now()
    const isStuck = performance.now() - this.#isFullSince > this.#bounds.streamStallMs
    if (isStuck) this.#response.destroy()
    return false
  }
}
