/** Pages of a cluster's gateway for operators: its nodes, and a proxy to each node. */
import type { Registry } from 'prom-client'
import type { Dialect } from '../../api/route.ts'
import { nodeOfWorker } from '../../cluster/lease.ts'
import type { movesOf, PastMove } from '../../cluster/moves.ts'
import type { ClusterInfo, ClusterMove } from '../contract.ts'
import { addReadMetric } from '../figures/read-metric.ts'
import { type OwnRoute, paramOf, pathBehind } from '../http/own-routes.ts'
import { renderManagementError, statusOf } from '../management/dialect.ts'
import type { ClusterFront } from './front.ts'
import type { Nodes } from './nodes.ts'
import type { InformedMember } from './registry.ts'

export interface ClusterView {
  readonly front: ClusterFront
  readonly nodes: () => Nodes
  readonly members: () => readonly (InformedMember & { readonly leftMs: number })[]
  /** Number of sessions by worker. */
  readonly sessions: () => Promise<ReadonlyMap<string, number>>
  readonly moves: () => ReturnType<typeof movesOf>
}

const DIALECT: Dialect = {
  name: 'cluster',
  about: 'The nodes of a cluster, for operators',
  routes: [],
  renderError: renderManagementError,
  statusOf,
}

export function clusterRoutes(view: ClusterView): readonly OwnRoute[] {
  return [
    {
      path: '/api/cluster',
      summary: 'The nodes of the cluster, their workers and the latest moves of sessions',
      role: 'operator',
      dialect: DIALECT,
      handle: () => clusterInfo(view),
    },
    {
      path: '/api/cluster/nodes/:node/proxy/*',
      summary: 'Any method: one node alone',
      type: '*/*',
      dialect: DIALECT,
      anyMethod: 'buffer',
      handle: (request, reply) => view.front.pass(paramOf(request, 'node'), pathBehind(request), request, reply),
    },
  ]
}

async function clusterInfo({ front, nodes, members, sessions, moves }: ClusterView): Promise<ClusterInfo> {
  const [counts, { count, latest }] = await Promise.all([sessions(), moves()])
  const known = nodes()
  const workersOf = (node: string) =>
    members().flatMap(({ id, node: own, model, slots, inFlight, leftMs, info }) =>
      own === node
        ? [
            {
              ...{ id, model, slots, in_flight: inFlight },
              ...{ sessions: counts.get(id) ?? 0, lease_left_ms: Math.round(leftMs) },
              ...{ device: deviceOf(info), version: textOf(info.version) },
            },
          ]
        : [],
    )
  const { forwarded, retried, misdirected, lost } = front.counts
  return {
    requests: { forwarded, retried, misdirected, lost },
    nodes: [...known.urls].map(([node, url]) => ({
      ...{ node, url, is_passed_by: known.isAvoided(node) },
      workers: workersOf(node),
    })),
    moves: { count, latest: latest.map(pageOf) },
  }
}

function pageOf({ at, id, fromWorker, toWorker, isDirect, ms }: PastMove): ClusterMove {
  const placeOf = (worker: string) => ({ node: nodeOfWorker(worker), worker })
  const [from, to] = [placeOf(fromWorker), placeOf(toWorker)]
  return { at, session: id, from, to, is_direct: isDirect, ms: Math.round(ms * 10) / 10 }
}

/** A worker of another release may report other fields. */
function deviceOf({ model }: InformedMember['info']): string | null {
  return textOf((model as { readonly device?: unknown } | undefined)?.device)
}

function textOf(value: unknown): string | null {
  return typeof value === 'string' ? value : null
}

/** Metrics of this gateway; nodes report those of engines themselves. */
export function countCluster(registry: Registry, front: ClusterFront, nodes: () => Nodes): void {
  const read = () => [[{}, nodes().urls.size] as const]
  addReadMetric(registry, { name: 'cluster_nodes', help: 'Nodes of the cluster that are alive', read })
  addReadMetric(registry, {
    name: 'cluster_requests_total',
    help: 'Requests by outcome: forwarded; and of those retried, sent to a wrong node first, or lost under way',
    labelNames: ['outcome'],
    read: () => Object.entries(front.counts).map(([outcome, count]) => [{ outcome }, count]),
  })
}
