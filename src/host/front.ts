/**
 * The gateway of a cluster, as `skein gateway` starts it. It has no model and no state, so there can be any number of
 * them.
 */
import { type Logger, pino } from 'pino'
import type { Database } from '../cluster/database.ts'
import { Members } from '../cluster/members.ts'
import { movesOf } from '../cluster/moves.ts'
import { ownerOf } from '../cluster/ownership.ts'
import { SkeinError } from '../errors.ts'
import { packageVersion } from '../files/version.ts'
import { type AppOptions, allDialects, buildApp } from '../gateway/app.ts'
import { ClusterFront } from '../gateway/cluster/front.ts'
import { nodesOf } from '../gateway/cluster/nodes.ts'
import { clusterRoutes, countCluster } from '../gateway/cluster/pages.ts'
import { clusterRegistry } from '../gateway/cluster/registry.ts'
import { Metrics } from '../gateway/figures/metrics.ts'
import { urlOf } from '../gateway/http/connection.ts'
import { Drain } from '../gateway/http/drain.ts'
import { DEFAULT_LIMITS } from '../gateway/http/limits.ts'
import { sessionNamespace } from '../state/namespace.ts'
import type { Membership } from './membership.ts'
import { bounded, listen } from './server.ts'

/** Moves listed on the page about the cluster. */
const LATEST_MOVES = 50

interface FrontServerOptions extends Pick<AppOptions, 'keys' | 'allowedOrigins' | 'allowedHosts' | 'openTranslate'> {
  readonly host: string
  /** 0: any free port. */
  readonly port: number
  readonly logger?: Logger
}

/** Listens at once; when it resolves, it knows the nodes. */
export async function startFront(membership: Membership, options: FrontServerOptions) {
  const { host, port, logger = pino({ level: 'silent' }), ...access } = options
  const { database, keyRing, seal, rates } = membership
  const members = new Members(database)
  const models = clusterRegistry(() => members.list)
  const drain = new Drain()
  const nodesNow = nodesOf(() => members.list)
  const front = new ClusterFront({
    ...{ models, seal, drain, keyHeaders: allDialects(DEFAULT_LIMITS).flatMap((dialect) => dialect.keyHeaders ?? []) },
    nodes: nodesNow,
    ownerOf: async (model, tenant, session) => {
      const worker = members.list.find((member) => member.model === model)
      if (worker === undefined) return null
      const key = { model: worker.fingerprint, tenant: sessionNamespace(database.secret, tenant) }
      return (await ownerOf(database, { ...key, id: session }))?.node ?? null
    },
  })
  const metrics = new Metrics(models)
  countCluster(metrics.registry, front, nodesNow)
  const view = { front, nodes: nodesNow, members: () => members.list }
  const app = bounded(
    buildApp({
      ...{ ...access, host, models, front, seal, drain, keyRing, logger, metrics },
      rates: rates.limits,
      version: packageVersion(),
      own: clusterRoutes({
        ...view,
        sessions: () => sessionCounts(database),
        moves: () => movesOf(database, LATEST_MOVES),
      }),
    }),
    logger,
  )
  app.addHook('onClose', async () => {
    members.close()
    front.close()
    keyRing.close()
    // Reports requests that were counted a moment ago.
    await rates.settle().catch(() => {})
    rates.close()
    await database.close()
  })
  try {
    await members.start()
    await listen(app, host, port)
  } catch (error) {
    await app.close()
    throw SkeinError.from(error)
  }
  return { url: urlOf(app, host), app, drain, models, members }
}

async function sessionCounts(database: Database): Promise<ReadonlyMap<string, number>> {
  const { rows } = await database.query<{ owner: string; count: number }>(
    'select owner, count(*) as count from session where owner is not null group by owner',
  )
  return new Map(rows.map(({ owner, count }) => [owner, count]))
}
