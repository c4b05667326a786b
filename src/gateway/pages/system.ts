/**
 * The gateway's own routes: whether it lives, whether it is ready, how full the engines are, which version, its metrics and
 * its OpenAPI page.
 */
import type { FastifyInstance } from 'fastify'
import type { ModelEntry, ModelRegistry } from '../../api/models.ts'
import type { Metrics } from '../figures/metrics.ts'
import { engineFigures, queueFigures } from '../figures/queue-figures.ts'
import type { Drain } from '../http/drain.ts'
import type { OwnRoute } from '../http/openapi.ts'

interface SystemContext {
  readonly models: ModelRegistry
  readonly metrics: Metrics
  readonly drain: Drain
  readonly version: string
  readonly openApi: object
}

/** The one path that needs no key: that the process answers is all it tells. */
export const LIVENESS_PATH = '/livez'

export const SYSTEM_ROUTES: readonly OwnRoute[] = [
  { path: LIVENESS_PATH, summary: 'Whether the process answers; needs no key' },
  { path: '/readyz', summary: 'Whether a model can answer' },
  { path: '/health', summary: 'The same, and how full the engines are' },
  { path: '/version', summary: 'The version of the server' },
  { path: '/v1/queue/status', summary: 'How full the engines are' },
  { path: '/v1/stats', summary: 'That, and counters of the engines' },
  { path: '/openapi.json', summary: 'This page' },
  { path: '/metrics', summary: 'Prometheus metrics', type: 'text/plain' },
]

export function mountSystem(app: FastifyInstance, context: SystemContext): void {
  const { models, metrics, drain, version, openApi } = context
  app.get(LIVENESS_PATH, () => ({ status: 'ok' }))
  for (const path of ['/readyz', '/health']) {
    app.get(path, ({ principal }, reply) => {
      const entries = models.list()
      const reason = drain.isDraining ? 'the server is shutting down' : unreadyReason(entries)
      const answers = entries.every(isWhole) ? 'ok' : 'degraded'
      const status = reason === null ? answers : 'unavailable'
      return reply.code(reason === null ? 200 : 503).send({
        status,
        ...(reason === null ? {} : { reason }),
        models: entries.map(({ id, state, reason, workers }) => ({ id, state, reason, workers })),
        // What clients of Albatross's workers look at.
        ...(path === '/health'
          ? { queue: queueFigures(entries, principal), timestamp: Date.now() / 1000 }
          : {}),
      })
    })
  }
  app.get('/version', () => ({ version }))
  app.get('/v1/queue/status', ({ principal }) => queueFigures(models.list(), principal))
  app.get('/v1/stats', { config: { role: 'operator' } }, ({ principal }) =>
    engineFigures(models.list(), principal),
  )
  app.get('/openapi.json', () => openApi)
  // Counts of everybody's requests: not for those who may only make some.
  app.get('/metrics', { config: { role: 'operator' } }, async (_request, reply) => {
    const text = await metrics.registry.metrics()
    return reply.type(metrics.registry.contentType).send(text)
  })
}

/**
 * All that is counted on answers, and states can be written. A worker that was given up before it ever did is not: whoever asked for it has been told,
 * and it is listed as failed until it is started again or forgotten.
 */
function isWhole({ state, workers, client }: ModelEntry): boolean {
  if (client?.stats.states?.storeFailing) return false
  return workers === undefined ? state === 'ready' : workers.ready === workers.all
}

/** Ready means that some request can be answered. */
function unreadyReason(entries: readonly ModelEntry[]): string | null {
  if (entries.length === 0) return 'no model is loaded'
  if (entries.some(({ state }) => state === 'ready')) return null
  return entries.map(({ id, state, reason }) => `${id}: ${reason ?? state}`).join('; ')
}
