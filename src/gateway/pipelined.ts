/**
 * A reply whose connection has gone says so, also where an earlier request of that connection was still being answered. Node
 * tells the reply that is being sent and no other, and what is made for the others would be made to its end.
 */
import type { ServerResponse } from 'node:http'
import type { FastifyInstance } from 'fastify'

export function closeWithConnection(app: FastifyInstance): void {
  const open = new WeakMap<object, Set<ServerResponse>>()
  app.addHook('onRequest', (request, reply, done) => {
    const { socket } = request.raw
    const known = open.get(socket)
    const replies = known ?? new Set<ServerResponse>()
    if (known === undefined) {
      open.set(socket, replies)
      socket.once('close', () => replies.forEach(closeUnsent))
    }
    const { raw } = reply
    replies.add(raw)
    raw.once('close', () => replies.delete(raw))
    done()
  })
}

/** One that has a socket is told by Node itself. */
function closeUnsent(reply: ServerResponse): void {
  if (reply.socket !== null || reply.destroyed || reply.writableFinished) return
  reply.destroy()
  reply.emit('close')
}
