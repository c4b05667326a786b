/** Prometheus metrics of a fleet: the life of each worker, and the router's decisions. */
import type { Registry } from 'prom-client'
import type { EngineClient } from '../../engine/client.ts'
import type { WorkerPhase } from '../contract.ts'
import type { RouterCounts } from '../routing/router.ts'
import { addReadMetric } from './read-metric.ts'

export interface MeasuredFleet {
  readonly workers: readonly MeasuredWorker[]
  routerCounts(): ReadonlyMap<string, RouterCounts>
}

interface MeasuredWorker {
  readonly id: string
  readonly launch: { readonly id: string }
  readonly engine: EngineClient | null
  readonly phase: WorkerPhase
  readonly hasEnded: boolean
  /** Also true for a worker that was given up while it answered to its model's name. */
  readonly isServing: boolean
  readonly neverServed: boolean
  readonly numInFlight: number
  readonly handle: { readonly restarts: number; readonly bytes: number | null }
}

/** Kinds of affinity, and the counts of each. */
const KINDS = [
  ['session', 'sessionHits', 'sessionSpills'],
  ['prefix', 'prefixHits', 'prefixSpills'],
] as const

export function countFleet(registry: Registry, fleet: MeasuredFleet): void {
  // A worker that was given up is reported as down until it is started again or forgotten: without a value, alerts
  // would not fire.
  const live = () =>
    fleet.workers.filter(({ hasEnded, isServing, neverServed }) => !hasEnded || (isServing && !neverServed))
  const ofWorkers = (name: string, help: string, value: (worker: MeasuredWorker) => number | null) => {
    const read = () => live().map((w) => [{ model: w.launch.id, worker: w.id }, value(w)] as const)
    addReadMetric(registry, { name, help, labelNames: ['model', 'worker'], read })
  }
  ofWorkers('worker_ready', 'Whether a worker takes requests', (w) => (w.phase === 'ready' ? 1 : 0))
  ofWorkers('worker_in_flight', 'Requests that were sent to a worker', (w) => w.numInFlight)
  ofWorkers('worker_resident_bytes', 'Memory of a worker process', (w) => w.handle.bytes)
  ofWorkers('worker_restarts_total', 'Crashes after which a worker was started again', (w) => w.handle.restarts)
  const routes = () => [...fleet.routerCounts()]
  addReadMetric(registry, {
    name: 'router_requests_total',
    help: 'Requests whose state was known to be on a worker: sent there (hit) or elsewhere (spill)',
    labelNames: ['model', 'kind', 'outcome'],
    read: () =>
      routes().flatMap(([model, counts]) =>
        KINDS.flatMap(([kind, hits, spills]) => [
          [{ model, kind, outcome: 'hit' }, counts[hits]] as const,
          [{ model, kind, outcome: 'spill' }, counts[spills]] as const,
        ]),
      ),
  })
  addReadMetric(registry, {
    name: 'router_retries_total',
    help: 'Requests sent once more because their worker died or had no room',
    labelNames: ['model'],
    read: () => routes().map(([model, { retries }]) => [{ model }, retries]),
  })
}
