/** Connections: when they begin, and replies that share one: what one does to the other where Node says nothing. Knows no route. */
import type { ServerResponse } from 'node:http'
import { type Server, Socket } from 'node:net'
import type { FastifyInstance } from 'fastify'
import { renderOpenAiError } from '../../api/openai/errors.ts'
import { SkeinError } from '../../errors.ts'

/** To be called before the app listens, and before its hooks that answer. */
export function careForConnections(app: FastifyInstance): void {
  beginInTurn(app.server)
  closeWithConnection(app)
}

/** Some milliseconds with what each of them sends first. */
const AT_ONCE = 16

/**
 * Connections begin a few in each turn of the event loop, every address in its turn: a thousand that come at once would hold
 * up all streams while each is set up and its first bytes are read. Those that wait are not read. To be called when those
 * who serve the server's connections listen to it.
 */
export function beginInTurn(server: Server): void {
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
      // Behind the others.
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
    // It may be reset while it waits; whoever serves it listens, too.
    socket.on('error', () => {})
    const { remoteAddress = '' } = socket
    const sockets = waiting.get(remoteAddress)
    if (sockets === undefined) waiting.set(remoteAddress, [socket])
    else sockets.push(socket)
    schedule()
  })
  // An option of servers that those of HTTP do not take when they are made; it is looked at for each connection.
  Object.assign(server, { pauseOnConnect: true })
}

/** Replies of all apps by connection: a worker's proxy is an app of its own on the server's connections. */
const unclosed = new WeakMap<object, Set<ServerResponse>>()

/**
 * A reply whose connection has gone says so, also where an earlier request of that connection was still being answered. Node
 * tells the reply that is being sent and no other, and what is made for the others would be made to its end.
 */
function closeWithConnection(app: FastifyInstance): void {
  app.addHook('onRequest', (request, { raw }, done) => {
    const replies = repliesOf(request.raw.socket)
    replies.add(raw)
    raw.once('close', () => replies.delete(raw))
    done()
  })
}

/** Apart from the hook, whose reply its listener would hold for as long as the connection lives. */
function repliesOf(socket: Socket): Set<ServerResponse> {
  const known = unclosed.get(socket)
  if (known !== undefined) return known
  const replies = new Set<ServerResponse>()
  unclosed.set(socket, replies)
  socket.once('close', () => replies.forEach(closeUnsent))
  return replies
}

/** Closes a reply that has no socket. Node closes the others itself. */
function closeUnsent(reply: ServerResponse): void {
  if (reply.socket !== null || reply.destroyed || reply.writableFinished) return
  reply.destroy()
  reply.emit('close')
}

/**
 * A client that does not take a reply is cut off like one of a stream. The time counts from where the reply has the
 * connection, to its last byte: others may be made for the same connection before and behind it, for as long as that takes.
 */
export function cutOffIfNotTaken(reply: ServerResponse, stallMs: number): void {
  const begin = (socket: unknown) => {
    if (!(socket instanceof Socket)) return
    socket.setTimeout(stallMs)
    // Before Node's own listener, which sets the time of idle connections.
    reply.prependOnceListener('finish', () => socket.setTimeout(0))
  }
  if (reply.socket === null) reply.once('socket', begin)
  else begin(reply.socket)
}

const REFUSED: Readonly<Record<string, readonly [status: string, message: string]>> = {
  ERR_HTTP_REQUEST_TIMEOUT: ['408 Request Timeout', 'the request took too long to arrive'],
  HPE_HEADER_OVERFLOW: ['431 Request Header Fields Too Large', 'the headers are larger than this server accepts'],
}

/** What a socket is told that never became a request: too large a header, too slow, or not HTTP. */
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
