/**
 * Writes the event streams of answers; management/streams.ts writes those of the management API. Events are pulled only
 * as fast as the client reads: if the socket holds more than a limit, the stream waits for drain or close, and a client
 * that leaves it full is cut off. The dialect defines the form of an event.
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
  // Proxies like nginx would buffer the stream otherwise.
  'x-accel-buffering': 'no',
} as const

export class EventStream {
  readonly #response: ServerResponse
  readonly #headers: () => Readonly<Record<string, string>>
  readonly #form: StreamForm
  readonly #bounds: StreamBounds
  /** Chunks that leave together. */
  #text = ''

  /** `headers` is called at the first event. The response is hijacked before `open`; its owner aborts the source. */
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

  /** Commits to status 200; from here on errors can only be events. */
  open(): void {
    if (!this.#response.headersSent) {
      leaving.join(this.#response.socket)
      const type = { 'content-type': this.#form.type }
      this.#response.writeHead(200, { ...this.#headers(), ...STREAM_HEADERS, ...type })
      this.#response.flushHeaders()
    }
  }

  /** Shows proxies and timeouts that the stream is alive, in a form that clients skip. */
  keepAlive(): void {
    if (!this.#response.destroyed) this.#response.write(this.#form.beat)
  }

  /**
   * Writes `first`, all following events, and the end. Rethrows an error of the source; the caller then calls `fail`.
   */
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

  /** Ends the stream with an error event instead of the normal end. */
  fail(error: object): void {
    // Anything written after the end would become part of the connection's next reply.
    if (this.#response.writableEnded) return
    this.#event(error)
    this.#end()
  }

  /** Writes what has gathered. */
  flush(): void {
    const text = this.#text
    this.#text = ''
    if (text !== '' && !this.#response.destroyed) this.#response.socket?.write(text)
  }

  /** A client that does not read the last bytes is cut off like any other. */
  #end(): void {
    const response = this.#response
    if (response.destroyed) return
    leaving.join(response.socket)
    this.flush()
    response.end()
    const timer = setTimeout(() => cut(response), this.#bounds.streamStallMs)
    const done = () => clearTimeout(timer)
    response.once('finish', done)
    response.once('close', done)
  }

  async #pump(events: AsyncIterator<object>): Promise<void> {
    while (!this.#response.destroyed) {
      if (this.#text.length > this.#bounds.streamBufferBytes) this.flush()
      if (this.#response.writableLength > this.#bounds.streamBufferBytes)
        await drained(this.#response, this.#bounds.streamStallMs)
      const { value, done } = await events.next()
      if (done) return
      this.#event(value)
    }
  }

  #event(event: object): void {
    this.#write(this.#form.frame(event))
  }

  /**
   * Makes an HTTP/1.1 chunk, as one string. `response.write` would make four pieces of it, which take four times the
   * memory while they wait and a third more time.
   */
  #write(text: string): void {
    const response = this.#response
    if (response.destroyed) return
    const { socket } = response
    // There is no socket while an earlier request of the connection is being answered; tests have other sockets.
    if (!(socket instanceof Socket && response.chunkedEncoding)) {
      response.write(text)
      return
    }
    if (this.#text === '') leaving.add(this)
    this.#text += `${Buffer.byteLength(text).toString(16)}\r\n${text}\r\n`
  }
}

/** Resolves on drain or close. A client that has not read for `stallMs` is cut off, which closes. */
export function drained(response: ServerResponse, stallMs: number): Promise<void> {
  const { socket } = response
  if (response.destroyed) return Promise.resolve()
  return new Promise((resolve) => {
    const timer = setTimeout(() => cut(response), stallMs)
    const done = () => {
      clearTimeout(timer)
      for (const source of [response, socket]) source?.off('drain', done)
      response.off('close', done)
      resolve()
    }
    // The one that was written to emits it.
    for (const source of [response, socket]) source?.on('drain', done)
    response.on('close', done)
  })
}

/** Resets the connection: after a normal close the kernel would keep unread bytes for minutes. */
function cut(response: ServerResponse): void {
  const { socket } = response
  if (socket instanceof Socket) socket.resetAndDestroy()
  else response.destroy()
}

/**
 * What is written until the turn's promises are settled leaves then, each stream's in one call of the system: the headers with the
 * first event, what one step has for several choices, and the last text with the end of the stream. One callback for all: a token's
 * own, with a socket corked for it, would take as long as what made it.
 */
class Leaving {
  #streams: EventStream[] = []
  #corked: Socket[] = []

  add(stream: EventStream): void {
    this.#soon()
    this.#streams.push(stream)
  }

  /** Also what Node writes there itself. */
  join(socket: Socket | null): void {
    if (!(socket instanceof Socket) || socket.writableCorked > 0) return
    this.#soon()
    socket.cork()
    this.#corked.push(socket)
  }

  #soon(): void {
    if (this.#streams.length + this.#corked.length === 0) process.nextTick(() => this.#leave())
  }

  #leave(): void {
    const [streams, corked] = [this.#streams, this.#corked]
    ;[this.#streams, this.#corked] = [[], []]
    for (const stream of streams) stream.flush()
    for (const socket of corked) socket.uncork()
  }
}

const leaving = new Leaving()
