/**
 * Forwards a request to a node over keep-alive connections and streams the answer back. It makes no decisions; it
 * reports how far a request got.
 */
import { Agent, request as ask, type IncomingHttpHeaders, type IncomingMessage } from 'node:http'
import { request as askOverTls, Agent as TlsAgent } from 'node:https'

export interface Outgoing {
  readonly method: string
  /** Path and query, as the client wrote them. */
  readonly path: string
  readonly headers: Readonly<Record<string, string | string[]>>
  readonly body: Uint8Array | null
  /**
   * Uses a new connection: a kept one may lead to a process that has just ended, and it would be unknown whether the
   * request was seen.
   */
  readonly isAlone?: boolean
}

/** The request got no answer. */
export class NotAnswered extends Error {
  /** No connection was made, so the node has not seen the request. */
  readonly isUnseen: boolean

  constructor(isUnseen: boolean, cause: unknown) {
    super(cause instanceof Error ? cause.message : String(cause), { cause })
    this.isUnseen = isUnseen
  }
}

/** Time that a node may take to accept a connection. A machine that is gone does not refuse, it stays silent. */
const CONNECT_MS = 3000
const UNSEEN = ['ECONNREFUSED', 'EHOSTUNREACH', 'ENETUNREACH', 'ENOTFOUND', 'EAI_AGAIN', 'ETIMEDOUT']
const KEEP = { keepAlive: true, keepAliveMsecs: 15_000, maxFreeSockets: 256, scheduling: 'lifo' } as const

export class Forwarder {
  readonly #plain = new Agent(KEEP)
  readonly #tls = new TlsAgent(KEEP)

  /** Resolves with the head of the answer; the message is its body. Rejects with NotAnswered. */
  send(
    url: string,
    { method, path, headers, body, isAlone = false }: Outgoing,
    signal?: AbortSignal,
  ): Promise<IncomingMessage> {
    const at = new URL(url)
    const isTls = at.protocol === 'https:'
    return new Promise((resolve, reject) => {
      const request = (isTls ? askOverTls : ask)({
        agent: isAlone ? false : isTls ? this.#tls : this.#plain,
        host: at.hostname.replace(/^\[|\]$/g, ''),
        port: at.port || (isTls ? 443 : 80),
        method,
        path,
        headers: { ...headers, ...lengthOf(method, body) },
        ...(signal === undefined ? {} : { signal }),
      })
      let isConnected = false
      request.once('socket', (socket) => {
        if (!socket.connecting) {
          isConnected = true
          return
        }
        const timer = setTimeout(() => {
          const error = new Error(`${at.host} did not accept a connection in ${CONNECT_MS} ms`)
          request.destroy(Object.assign(error, { code: 'ETIMEDOUT' }))
        }, CONNECT_MS)
        const done = () => clearTimeout(timer)
        socket.once('connect', () => {
          isConnected = true
          done()
        })
        socket.once('close', done)
      })
      request.once('response', resolve)
      request.once('error', (error: NodeJS.ErrnoException) => {
        reject(new NotAnswered(!isConnected && UNSEEN.includes(error.code ?? ''), error))
      })
      request.end(body ?? undefined)
    })
  }

  close(): void {
    this.#plain.destroy()
    this.#tls.destroy()
  }
}

function lengthOf(method: string, body: Uint8Array | null): Record<string, string> {
  if (body !== null) return { 'content-length': String(body.byteLength) }
  return method === 'POST' ? { 'content-length': '0' } : {}
}

/** Headers of a connection, not of a request (RFC 9110), or that the sender sets itself. */
const OF_CONNECTION = [
  'connection',
  'keep-alive',
  'proxy-connection',
  'transfer-encoding',
  'te',
  'trailer',
  'upgrade',
  'expect',
  'host',
  'content-length',
]
/** Headers between the client and the gateway only: keys, and what pages send. */
const OF_CLIENT = ['authorization', 'cookie', 'origin', 'referer']

/** The client's headers for a node. `keyHeaders`: headers that may hold a key. */
export function headersToNode(
  headers: IncomingHttpHeaders,
  keyHeaders: readonly string[],
): Record<string, string | string[]> {
  const dropped = new Set([...OF_CONNECTION, ...OF_CLIENT, ...keyHeaders])
  return Object.fromEntries(
    Object.entries(headers).flatMap(([name, value]) =>
      value === undefined || dropped.has(name) || name.startsWith('x-skein-') ? [] : [[name, value]],
    ),
  )
}

export function headersToClient(headers: IncomingHttpHeaders): Record<string, string | string[]> {
  const dropped = new Set(OF_CONNECTION.filter((name) => name !== 'content-length'))
  return Object.fromEntries(
    Object.entries(headers).flatMap(([name, value]) =>
      value === undefined || dropped.has(name) ? [] : [[name, value]],
    ),
  )
}

const SHORT_BYTES = 64 * 1024

/** Reads a short body; longer ones are no error of Skein and are cut. */
export async function shortBody(message: IncomingMessage): Promise<Buffer> {
  const parts: Buffer[] = []
  let size = 0
  for await (const part of message) {
    // No encoding is set, so parts are bytes.
    const bytes = part as Buffer
    size += bytes.length
    if (size > SHORT_BYTES) break
    parts.push(bytes)
  }
  return Buffer.concat(parts)
}
