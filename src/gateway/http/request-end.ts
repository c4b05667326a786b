/**
 * The end of a request on HTTP: its reply was sent whole, or was cut off because the client left or was dropped. Fastify's
 * onResponse tells of the first alone. Until then a tally counts for it.
 */
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'

export interface RequestEnd {
  readonly isCutOff: boolean
  /** Null where not even that was sent. */
  readonly status: number | null
}

type Listener = (request: FastifyRequest, reply: FastifyReply, end: RequestEnd) => void

/** Calls `listener` once for every request. */
export function onRequestEnd(app: FastifyInstance, listener: Listener): void {
  const ended = new WeakSet<FastifyRequest>()
  const tell: Listener = (request, reply, end) => {
    if (ended.has(request)) return
    ended.add(request)
    listener(request, reply, end)
  }
  app.addHook('onRequest', (request, reply, done) => {
    const { raw } = reply
    raw.once('close', () => {
      const status = raw.headersSent ? raw.statusCode : null
      if (!raw.writableFinished) tell(request, reply, { isCutOff: true, status })
    })
    done()
  })
  app.addHook('onResponse', (request, reply, done) => {
    tell(request, reply, { isCutOff: false, status: reply.statusCode })
    done()
  })
}

/** Calls `onGone` once when the client has gone or the reply is over: at once if it left while its body was read. */
export function onReplyClosed({ raw }: FastifyReply, onGone: () => void): void {
  if (raw.destroyed) onGone()
  else raw.once('close', onGone)
}

/** What a request's answers come to, while they are made. */
export interface RequestTally {
  model: string | null
  promptTokens: number
  answerTokens: number
  /** Since the request arrived; null: no token yet. */
  firstTokenMs: number | null
  /** Code of the request's error, also of one after the reply had begun. */
  errorCode: string | null
  /** On the clock of `performance`. */
  readonly startedAt: number
}

declare module 'fastify' {
  interface FastifyRequest {
    tally: RequestTally | null
  }
}

export function newTally(): RequestTally {
  return {
    ...{ model: null, promptTokens: 0, answerTokens: 0, firstTokenMs: null, errorCode: null },
    startedAt: performance.now(),
  }
}
