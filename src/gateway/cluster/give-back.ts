/** Streams a node's answer to the client. */
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { FastifyReply, FastifyRequest } from 'fastify'
import type { Dialect } from '../../api/route.ts'
import { SSE } from '../../api/stream-form.ts'
import { assert, SkeinError } from '../../errors.ts'
import type { Principal } from '../access/auth.ts'
import { DEFAULT_LIMITS } from '../http/limits.ts'
import { drained } from '../http/sse.ts'
import { headersToClient } from './forward.ts'
import { NODE_HEADER } from './headers.ts'

export async function giveBack(message: IncomingMessage, node: string, reply: FastifyReply): Promise<unknown> {
  const own = reply.getHeaders()
  reply.hijack()
  const headers = { ...headersToClient(message.headers), ...own, [NODE_HEADER]: node }
  // All headers that hooks have set are strings.
  reply.raw.writeHead(message.statusCode ?? 502, headers as Record<string, string>)
  reply.raw.flushHeaders()
  await copy(message, reply.raw)
  reply.raw.end()
  return reply
}

/** Reads only as fast as the client does. If the message breaks off, the reply stays open for its ending. */
async function copy(message: IncomingMessage, reply: ServerResponse): Promise<void> {
  for await (const part of message) {
    if (reply.destroyed) return
    if (!reply.write(part)) await drained(reply, DEFAULT_LIMITS.streamStallMs)
  }
}

/**
 * A stream that has begun ends with an error event of its dialect. Any other reply is cut, which its length reveals.
 */
export function endCutStream({ raw }: FastifyReply, dialect: Dialect, node: string, type: string | undefined): void {
  const form = dialect.stream ?? SSE
  if (type !== form.type || raw.writableEnded) {
    raw.destroy()
    return
  }
  const message = `node ${node} ended while it answered; what it had said is above`
  raw.end(form.frame(dialect.renderError(new SkeinError('model_not_loaded', message))))
}

export function bytesOf(request: FastifyRequest): Uint8Array | null {
  if (request.body instanceof Uint8Array) return request.body
  return request.bodyBytes
}

export function callerOf({ principal }: FastifyRequest): Principal {
  assert(principal !== null, 'a handler ran before its caller was known')
  return principal
}
