/**
 * The last requests, for operators: caller, route, model, outcome, tokens and duration. It never holds prompts, answers
 * or paths as a client wrote them. Kept in memory, bounded.
 */
import type { FastifyReply, FastifyRequest } from 'fastify'
import type { RequestRecord } from '../contract.ts'
import type { RequestEnd } from '../http/request-end.ts'

const MOST_KEPT = 500

export class RecentRequests {
  readonly #records: RequestRecord[] = []
  #numSeen = 0

  /** Successful GETs are left out, because dashboards send them all the time. */
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

  /** Newest first. */
  list(): RequestRecord[] {
    return this.#records.toReversed()
  }
}
