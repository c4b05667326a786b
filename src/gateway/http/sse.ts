/**
 * Writes the event streams of answers; those of the management API are in management/streams.ts. It pulls events only as fast as
 * the client reads: when the socket holds more than a bound it waits for drain or close, and gives up on a client that
 * leaves it full. The form of an event is the dialect's.
 */
import type { ServerResponse } from 'node:http'
import { Socket } from 'node:net'
import type { StreamForm } from '../../api/stream-form.ts'

export interface StreamBounds {
  readonly streamBufferBytes: number
  readonly streamStallMs: number
}

export const STREAM_HEADERS = {
  'cache-control': 'no-cache, no-transform',
  // Proxies of the nginx family would hold the stream back otherwise.
  'x-accel-buffering': 'no',
} as const

export class EventStream {
  readonly #response: ServerResponse
  readonly #headers: () => Readonly<Record<string, string>>
  readonly #form: StreamForm
  readonly #bounds: StreamBounds

  /** `headers` are asked for when the first event is there. The response has been hijacked, or will be before `open`; whoever owns it aborts the source when it closes. */
  constructor(
    response: ServerResponse,
    headers: () => Readonly<Record<string, string>>,
    form: StreamForm,
    bounds: StreamBounds,
  ) {
    this.#response = response
    this.#headers = headers
    this.#form = form
    this.#bounds = bounds
  }

  /** Commits to status 200; from here on an error can only be an event. */
  open(): void {
    if (!this.#response.headersSent) {
      const type = { 'content-type': this.#form.type }
      this.#response.writeHead(200, { ...this.#headers(), ...STREAM_HEADERS, ...type })
      this.#response.flushHeaders()
    }
  }

  /** Tells proxies and timeouts that we are alive, in a way that clients skip. */
  keepAlive(): void {
    if (!this.#response.destroyed) this.#response.write(this.#form.beat)
  }

  /** Writes `first`, all that follow, and the end. Throws what the source throws; the caller then fails the stream. */
  async write(first: object | null, rest: AsyncIterator<object>): Promise<void> {
    this.open()
    try {
      if (first !== null) this.#event(first)
      await this.#pump(rest)
      if (this.#form.end !== '') this.#write(this.#form.end)
      this.#end()
    } finally {
      await rest.return?.()
    }
  }

  /** Ends the stream with an error event and no end. */
  fail(error: object): void {
    // What is written after the end would begin the connection's next reply.
    if (this.#response.writableEnded) return
    this.#event(error)
    this.#end()
  }

  /** A client that does not take the last bytes either is cut off like any other. */
  #end(): void {
    const response = this.#response
    if (response.destroyed) return
    response.end()
    const timer = setTimeout(() => this.#cut(), this.#bounds.streamStallMs)
    const done = () => clearTimeout(timer)
    response.once('finish', done)
    response.once('close', done)
  }

  /** Without the politeness of a close, during which the kernel would keep what nobody reads for minutes. */
  #cut(): void {
    const { socket } = this.#response
    if (socket instanceof Socket) socket.resetAndDestroy()
    else this.#response.destroy()
  }

  async #pump(events: AsyncIterator<object>): Promise<void> {
    while (!this.#response.destroyed) {
      if (this.#response.writableLength > this.#bounds.streamBufferBytes) await this.#drained()
      const { value, done } = await events.next()
      if (done) return
      this.#event(value)
    }
  }

  #event(event: object): void {
    this.#write(this.#form.frame(event))
  }

  /**
   * A chunk of HTTP/1.1 as one string. `response.write` would make four pieces of it, which take four times the memory
   * while they wait and a third more time.
   */
  #write(text: string): void {
    const response = this.#response
    if (response.destroyed) return
    const { socket } = response
    // Without a socket, an earlier request of this connection is still being answered; tests have other ones.
    const isDirect = socket instanceof Socket && response.chunkedEncoding
    if (isDirect) socket.write(`${Buffer.byteLength(text).toString(16)}\r\n${text}\r\n`)
    else response.write(text)
  }

  /** Resolves on drain or close; a client that has not read for `streamStallMs` is cut off, which closes. */
  #drained(): Promise<void> {
    const response = this.#response
    const { socket } = response
    if (response.destroyed) return Promise.resolve()
    return new Promise((resolve) => {
      const timer = setTimeout(() => this.#cut(), this.#bounds.streamStallMs)
      const done = () => {
        clearTimeout(timer)
        for (const source of [response, socket]) source?.off('drain', done)
        response.off('close', done)
        resolve()
      }
      // Whichever was written to.
      for (const source of [response, socket]) source?.on('drain', done)
      response.on('close', done)
    })
  }
}
