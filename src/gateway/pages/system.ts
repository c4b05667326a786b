/** The gateway's own routes: liveness, readiness, load, version, metrics and the OpenAPI page. */
import type { FastifyReply } from 'fastify'
import type { ModelEntry, ModelRegistry } from '../../api/models.ts'
import { type EngineStats, summedStats } from '../../engine/stats.ts'
import type { Principal } from '../access/auth.ts'
import type { Metrics } from '../figures/metrics.ts'
import type { Drain } from '../http/drain.ts'
import type { OwnRoute } from '../http/own-routes.ts'

interface SystemContext {
  readonly models: ModelRegistry
  readonly metrics: Metrics
  readonly drain: Drain
  readonly version: string
  /** Created on first request. */
  readonly openApi: () => object
}

/** The one path that needs no key. It tells only that the process answers. */
export const LIVENESS_PATH = '/livez'

export function systemRoutes(context: SystemContext): readonly OwnRoute[] {
  const { models, metrics, version, openApi } = context
  let page: object | null = null
  return [
    { path: LIVENESS_PATH, summary: 'Liveness; needs no key', handle: () => ({ status: 'ok' }) },
    {
      path: '/readyz',
      summary: 'Readiness: whether a model can answer',
      handle: (_request, reply) => readiness(reply, context),
    },
    {
      path: '/health',
      summary: 'Readiness and the load of the engines',
      // Fields that clients of Albatross's workers read.
      handle: ({ principal }, reply) => ({
        ...readiness(reply, context),
        ...{ queue: queueFigures(models.list(), principal), timestamp: Date.now() / 1000 },
      }),
    },
    { path: '/version', summary: 'Version of the server', handle: () => ({ version }) },
    {
      path: '/v1/queue/status',
      summary: 'Load of the engines',
      handle: ({ principal }) => queueFigures(models.list(), principal),
    },
    {
      path: '/v1/stats',
      summary: 'Load and counters of the engines',
      role: 'operator',
      handle: ({ principal }) => engineFigures(models.list(), principal),
    },
    { path: '/openapi.json', summary: 'This OpenAPI page', handle: () => (page ??= openApi()) },
    {
      path: '/metrics',
      summary: 'Prometheus metrics',
      type: 'text/plain',
      // It counts everyone's requests, so plain users may not read it.
      role: 'operator',
      handle: async (_request, reply) => {
        reply.type(metrics.registry.contentType)
        return metrics.registry.metrics()
      },
    },
  ]
}

function readiness(reply: FastifyReply, { models, drain }: SystemContext) {
  const entries = models.list()
  const unready = drain.isDraining ? 'the server is shutting down' : unreadyReason(entries)
  const troubles = entries.flatMap((entry) => troubleOf(entry) ?? [])
  const reason = unready ?? troubles.join('; ')
  reply.code(unready === null ? 200 : 503)
  return {
    status: unready !== null ? 'unavailable' : troubles.length > 0 ? 'degraded' : 'ok',
    ...(reason === '' ? {} : { reason }),
    models: entries.map(({ id, state, reason, workers }) => ({ id, state, reason, workers })),
  }
}

/**
 * Null: every worker that is counted on answers, and states can be written. Workers that were given up before they were ever
 * ready do not count: their creator was told, and they are listed as failed until they are started again or forgotten.
 */
function troubleOf({ id, state, reason, workers, client }: ModelEntry): string | null {
  if (client?.stats.states?.storeFailing) return `${id}: states cannot be written to the store; its log says why`
  if (workers === undefined) return state === 'ready' ? null : `${id}: ${reason ?? state}`
  return workers.ready === workers.all ? null : `${id}: ${workers.ready} of ${workers.all} workers are ready`
}

/** Ready means that some request can be answered. */
function unreadyReason(entries: readonly ModelEntry[]): string | null {
  if (entries.length === 0) return 'no model is loaded'
  if (entries.some(({ state }) => state === 'ready')) return null
  return entries.map(({ id, state, reason }) => `${id}: ${reason ?? state}`).join('; ')
}

/** The figures of `GET /health` and `GET /v1/queue/status`. */
function queueFigures(entries: readonly ModelEntry[], caller: Principal | null): object {
  const all = statsOf(entries)
  const { waiting, running, prefilling } = all
  return {
    waiting,
    prefill: prefilling,
    decode: running - prefilling,
    total_active: waiting + running,
    available_slots: all.freeSlots,
    ...(caller !== null && caller.role !== 'user' ? { stats: totals(all) } : {}),
  }
}

/** GET /v1/stats, for operators. */
function engineFigures(entries: readonly ModelEntry[], caller: Principal | null): object {
  const all = statsOf(entries)
  return {
    queue: queueFigures(entries, caller),
    engine: {
      steps: all.steps,
      prompt_tokens: all.promptTokens,
      generated_tokens: all.generatedTokens,
      last_batch_tokens: all.lastBatchTokens,
      busy_seconds: all.busySeconds,
    },
  }
}

function totals({ finishedStop, finishedLength, failed, aborted, waiting, running }: EngineStats): object {
  const completed = finishedStop + finishedLength
  return {
    total_requests: completed + failed + aborted + waiting + running,
    completed_requests: completed,
    rejected_requests: failed,
    cancelled_requests: aborted,
  }
}

function statsOf(entries: readonly ModelEntry[]): EngineStats {
  return summedStats(entries.flatMap(({ client }) => (client === null ? [] : [client.stats])))
}
