/**
 * Hands a request to a node and its answer back, byte by byte as it comes, over connections that are kept. It decides nothing:
 * it says how far a request came.
 */
import { Agent, request as ask, type IncomingHttpHeaders, type IncomingMessage } from 'node:http'
import { request as askOverTls, Agent as TlsAgent } from 'node:https'

export interface Outgoing {
  readonly method: string
  /** Path and query, as the client spelt them. */
  readonly path: string
  readonly headers: Readonly<Record<string, string | string[]>>
  readonly body: Uint8Array | null
  /**
   * Over a connection of its own: one that is kept may be to a process that has just ended, and what is lost on it may have
   * been seen.
   */
  readonly isAlone?: boolean
}

/** A request without an answer. */
export class NotAnswered extends Error {
  /** No connection was made: the node has seen nothing of it. */
  readonly isUnseen: boolean

  constructor(isUnseen: boolean, cause: unknown) {
    super(cause instanceof Error ? cause.message : String(cause), { cause })
    this.isUnseen = isUnseen
  }
}

/** How long a node may take to accept a connection: one on a machine that has gone says nothing at all. */
const CONNECT_MS = 3000
const UNSEEN = ['ECONNREFUSED', 'EHOSTUNREACH', 'ENETUNREACH', 'ENOTFOUND', 'EAI_AGAIN', 'ETIMEDOUT']
const KEEP = {
  keepAlive: true,
  keepAliveMsecs: 15_000,
  maxFreeSockets: 256,
  scheduling: 'lifo',
} as const

export class Forwarder {
  readonly #plain = new Agent(KEEP)
  readonly #tls = new TlsAgent(KEEP)

  /** The head of the answer; its body is the message. Rejects with NotAnswered. */
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

/** Of a connection and not of a request (RFC 9110), or made anew by whoever sends. */
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
/** Of the client and the gateway alone: keys, and what pages send. */
const OF_CLIENT = ['authorization', 'cookie', 'origin', 'referer']

/** The client's headers as a node may see them. `keyHeaders`: those that may hold a key. */
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

/** A node's headers as the client may see them. */
export function headersToClient(headers: IncomingHttpHeaders): Record<string, string | string[]> {
  const dropped = new Set(OF_CONNECTION.filter((name) => name !== 'content-length'))
  return Object.fromEntries(
    Object.entries(headers).flatMap(([name, value]) =>
      value === undefined || dropped.has(name) ? [] : [[name, value]],
    ),
  )
}

/** A short body in one piece; what is longer is no error of ours and is cut. */
export async function shortBody(message: IncomingMessage, most = 64 * 1024): Promise<Buffer> {
  const parts: Buffer[] = []
  let size = 0
  for await (const part of message) {
    // Nobody has set an encoding.
    const bytes = part as Buffer
    size += bytes.length
    if (size > most) break
    parts.push(bytes)
  }
  return Buffer.concat(parts)
}
