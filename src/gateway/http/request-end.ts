/**
 * The end of an HTTP request: its reply was sent whole, or was cut off because the client left or was dropped.
 * Fastify's onResponse reports only the first. A tally of the request is kept until then.
 */
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'

export interface RequestEnd {
  readonly isCutOff: boolean
  /** Null if no status was sent. */
  readonly status: number | null
}

type Listener = (request: FastifyRequest, reply: FastifyReply, end: RequestEnd) => void

/** Calls `listener` once per request. */
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

/** Calls `onGone` once when the client has disconnected, perhaps while its body was read, or the reply has ended. */
export function onReplyClosed({ raw }: FastifyReply, onGone: () => void): void {
  if (raw.destroyed) onGone()
  else raw.once('close', onGone)
}

/** Counts of one request's answers, kept while they are generated. */
export interface RequestTally {
  model: string | null
  promptTokens: number
  answerTokens: number
  /** Time since the request arrived; null before the first token. */
  firstTokenMs: number | null
  /** Code of the request's error, also of an error after the reply began. */
  errorCode: string | null
  /** By the clock of `performance`. */
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
