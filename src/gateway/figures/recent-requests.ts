/**
 * The last requests, for operators: caller, route, model, outcome, tokens and duration. Never prompts or answers, and
 * no path as a client wrote it. Kept in memory and bounded.
 */
import type { FastifyReply, FastifyRequest } from 'fastify'
import type { RequestRecord } from '../contract.ts'
import type { RequestEnd } from '../http/request-end.ts'

const MOST_KEPT = 500

export class RecentRequests {
  readonly #records: RequestRecord[] = []
  #numSeen = 0

  /** Successful reads are left out: a dashboard makes them all the time. */
  add(request: FastifyRequest, reply: FastifyReply, { isCutOff, status }: RequestEnd): void {
    const { method, tally, principal, routeOptions } = request
    const isRead = method !== 'POST' && method !== 'DELETE'
    if (tally === null || (isRead && (status ?? 0) < 400)) return
    const ms = Math.round(reply.elapsedTime)
    this.#records.push({
      id: ++this.#numSeen,
      at: (Date.now() - ms) / 1000,
      ms,
      method,
      route: routeOptions.url ?? null,
      status,
      cut_off: isCutOff,
      error: tally.errorCode,
      key: principal?.name ?? null,
      model: tally.model,
      prompt_tokens: tally.promptTokens,
      answer_tokens: tally.answerTokens,
      first_token_ms: tally.firstTokenMs === null ? null : Math.round(tally.firstTokenMs),
    })
    if (this.#records.length > MOST_KEPT) this.#records.shift()
  }

  /** Latest first. */
  list(): RequestRecord[] {
    return this.#records.toReversed()
  }
}
