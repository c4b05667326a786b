/** Begins connections and requests in turn, and closes replies that share a connection when it goes. It knows no route. */
import type { IncomingMessage, ServerResponse } from 'node:http'
import { type AddressInfo, type Server, Socket } from 'node:net'
import type { FastifyInstance } from 'fastify'
import { renderOpenAiError } from '../../api/openai/errors.ts'
import { openLibrary } from '../../backend/ffi.ts'
import { SkeinError } from '../../errors.ts'
import { Turns } from '../../threads/turns.ts'

/** Call this before the app listens, and before any hook that replies. */
export function setUpConnections(app: FastifyInstance): void {
  acceptInTurn(app.server)
  requestInTurn(app.server)
  // Every reply of a lost connection is closed. With pipelined requests Node closes only the reply that is being sent, so
  // the others would be generated to their end.
  app.addHook('onRequest', (request, { raw }, done) => {
    const replies = repliesOf(request.raw.socket)
    replies.add(raw)
    raw.once('close', () => replies.delete(raw))
    done()
  })
}

/** Accepting so many connections, with the first request of each, takes some milliseconds. */
const AT_ONCE = 16

/**
 * Accepts a few connections per turn of the event loop, one address after the other: setting up a thousand at once
 * would hold up all streams. Connections that wait are not read. Call this after all other listeners for connections
 * are in place, because they are called from here.
 */
export function acceptInTurn(server: Server): void {
  const waiting = new Map<string, Socket[]>()
  const serving = server.listeners('connection')
  let isScheduled = false
  const begin = (socket: Socket) => {
    if (socket.destroyed) return
    for (const serve of serving) serve.call(server, socket)
    socket.resume()
  }
  const beginSome = () => {
    isScheduled = false
    for (let i = 0; i < AT_ONCE && waiting.size > 0; i++) {
      const [address, sockets] = waiting.entries().next().value!
      begin(sockets.shift()!)
      // Moves the address to the end of the queue.
      waiting.delete(address)
      if (sockets.length > 0) waiting.set(address, sockets)
    }
    if (waiting.size > 0) schedule()
  }
  const schedule = () => {
    if (!isScheduled) setImmediate(beginSome)
    isScheduled = true
  }
  server.removeAllListeners('connection')
  server.on('connection', (socket: Socket) => {
    // It may be reset while it waits. After that, the server's own listener handles errors as well.
    socket.on('error', () => {})
    const { remoteAddress = '' } = socket
    const sockets = waiting.get(remoteAddress)
    if (sockets === undefined) waiting.set(remoteAddress, [socket])
    else sockets.push(socket)
    schedule()
  })
  // HTTP servers do not take this option of net.Server at creation, but it is read for each connection.
  Object.assign(server, { pauseOnConnect: true })
}

/** Requests of one connection that have not begun. */
const MOST_WAITING = 64

/**
 * Begins requests for a few milliseconds per turn of the event loop: a thousand open connections may each send one at the same
 * moment. Requests without a body, like a check whether the server lives, do not wait for those with one. Of a connection that
 * sends many at once, one waits in the line, and the next joins its end. A connection that sends too many is closed: to make
 * them, and to end them when it goes, would take longer than anything else here.
 */
export function requestInTurn(server: Server): void {
  const [short, others] = [new Turns(), new Turns()]
  const serving = server.listeners('request')
  const waiting = new WeakMap<Socket, { count: number; last: Promise<void> | null }>()
  server.removeAllListeners('request')
  server.on('request', (request: IncomingMessage, reply: ServerResponse) => {
    const { socket, method } = request
    const own = waiting.get(socket) ?? { count: 0, last: null }
    waiting.set(socket, own)
    if (own.count === MOST_WAITING) {
      ignoreRequests(socket)
      socket.destroy()
      return
    }
    own.count++
    const line = method === 'GET' || method === 'HEAD' ? short : others
    const begin = () =>
      line.do(() => {
        own.count--
        // The client may have left in the meantime.
        if (socket.destroyed) return
        for (const serve of serving) serve.call(server, request, reply)
      })
    own.last = own.last?.then(begin) ?? begin()
  })
}

/** What a parser's callback returns for a request after which the connection is no longer HTTP. */
const NO_MORE_HTTP = 2

/** Else what has arrived with them, up to 64 KB, is parsed to its end whatever becomes of the connection. */
function ignoreRequests(socket: Socket): void {
  // Not in Node's public interface, but there since Node's first releases.
  const { parser } = socket as { parser?: { onIncoming?: unknown } | null }
  if (parser?.onIncoming !== undefined) parser.onIncoming = () => NO_MORE_HTTP
}

/**
 * Unfinished replies of all apps by connection: the proxy of a worker is an app of its own on the server's connections.
 */
const unclosed = new WeakMap<object, Set<ServerResponse>>()

/** Outside of the hook, because the listener would otherwise keep its reply alive as long as the connection. */
function repliesOf(socket: Socket): Set<ServerResponse> {
  const known = unclosed.get(socket)
  if (known !== undefined) return known
  const replies = new Set<ServerResponse>()
  unclosed.set(socket, replies)
  socket.once('close', () => replies.forEach(closeUnsent))
  return replies
}

/** Closes a reply that has no socket yet. Node closes the others itself. */
function closeUnsent(reply: ServerResponse): void {
  if (reply.socket !== null || reply.destroyed || reply.writableFinished) return
  reply.destroy()
  reply.emit('close')
}

/**
 * Cuts off a client that does not read its reply, like that of a stream. The time runs from when the reply gets the
 * connection to its last byte, because pipelined replies wait for those before them.
 */
export function cutOffIfNotTaken(reply: ServerResponse, stallMs: number): void {
  const begin = (socket: unknown) => {
    if (!(socket instanceof Socket)) return
    socket.setTimeout(stallMs)
    // Added before Node's own listener, which sets the timeout of idle connections.
    reply.prependOnceListener('finish', () => socket.setTimeout(0))
  }
  if (reply.socket === null) reply.once('socket', begin)
  else begin(reply.socket)
}

const REFUSED: Readonly<Record<string, readonly [status: string, message: string]>> = {
  ERR_HTTP_REQUEST_TIMEOUT: ['408 Request Timeout', 'the request took too long to arrive'],
  HPE_HEADER_OVERFLOW: ['431 Request Header Fields Too Large', 'the headers are larger than this server accepts'],
}

/** Answers a connection whose bytes never became a request: headers too large, too slow, or not HTTP. */
export function answerClientError(error: Error & { code?: string }, socket: Socket): void {
  if (error.code === 'ECONNRESET' || socket.destroyed) return
  const [status, message] = REFUSED[error.code ?? ''] ?? ['400 Bad Request', 'not a valid request']
  const body = JSON.stringify(renderOpenAiError(new SkeinError('invalid_request', message)))
  const head = `HTTP/1.1 ${status}\r\ncontent-type: application/json\r\nconnection: close\r\n`
  if (socket.writable) {
    socket.write(`${head}content-length: ${Buffer.byteLength(body)}\r\n\r\n${body}`)
  }
  socket.destroy()
}

/** The address of a server that listens. */
export function urlOf(app: FastifyInstance, host: string): string {
  // A listening TCP server has an address object; only pipes have a string.
  const { port } = app.server.address() as AddressInfo
  const name = host === '0.0.0.0' || host === '::' ? '127.0.0.1' : host
  return `http://${name.includes(':') ? `[${name}]` : name}:${port}`
}

/** What `listen` threw, in our words where it is the address; `prefix` makes a flag of what names it. */
export function listenError(thrown: unknown, host: string, port: number, prefix = ''): unknown {
  // Errors of listen carry a code.
  const { code } = thrown as NodeJS.ErrnoException
  if (code === 'EADDRINUSE')
    return new SkeinError('conflict', `${prefix}port ${port} is in use; choose another`, { param: 'port' })
  if (code === 'EACCES') {
    const message = `not allowed to listen on ${prefix}port ${port}; choose one above 1023`
    return new SkeinError('invalid_request', message, { param: 'port' })
  }
  if (code === 'EADDRNOTAVAIL' || code === 'ENOTFOUND')
    return new SkeinError('invalid_request', `${prefix}host ${host} is not an address of this machine`, {
      param: 'host',
    })
  return thrown
}

const UNSENT_BYTES = 32 * 1024

/** <netinet/tcp.h> */
const [IPPROTO_TCP, TCP_NOTSENT_LOWAT] = [6, 25]

type SetSocketOption = (fd: number, level: number, name: number, value: Int32Array, bytes: number) => number

/**
 * Limits what the kernel buffers of a stream that its client does not read. By default Linux takes 4 MB per connection,
 * which this process does not see. The limit is Linux's TCP_NOTSENT_LOWAT, for which Node has no API. It covers only
 * bytes that have not been sent, so files are sent as fast as before.
 * Sets it on the listening server; connections inherit it. Returns null, or why it failed.
 */
export function limitUnsentBytes(server: object): string | null {
  if (process.platform !== 'linux') return null
  // Not in Node's public interface, but there since Node's first releases.
  const fd = (server as { _handle?: { fd?: unknown } | null })._handle?.fd
  if (typeof fd !== 'number' || fd < 0) return 'the server has no file descriptor'
  try {
    const types = ['int32', 'int32', 'int32', 'pointer', 'uint32'] as const
    const set = openLibrary('libc.so.6').bind<SetSocketOption>('setsockopt', 'int32', types)
    const value = Int32Array.of(UNSENT_BYTES)
    const status = set(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, value, value.byteLength)
    return status === 0 ? null : `setsockopt gave ${status}`
  } catch (error) {
    return SkeinError.from(error).message
  }
}
