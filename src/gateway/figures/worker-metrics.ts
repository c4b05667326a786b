/** Prometheus metrics of a fleet: the life of each worker, and the router's decisions. */
import { Counter, Gauge, type Registry } from 'prom-client'
import type { EngineClient } from '../../engine/client.ts'
import type { WorkerPhase } from '../contract.ts'
import type { RouterCounts } from '../routing/router.ts'

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

const OF_WORKER = ['model', 'worker']

export function countFleet(registry: Registry, fleet: MeasuredFleet): void {
  const registers = [registry]
  // A worker that was given up is reported as down until it is started again or forgotten: without a value, alerts
  // would not fire.
  const live = () =>
    fleet.workers.filter(({ hasEnded, isServing, neverServed }) => !hasEnded || (isServing && !neverServed))
  const gauge = (name: string, help: string, read: (worker: MeasuredWorker) => number | null) =>
    new Gauge({
      name: `skein_${name}`,
      help,
      labelNames: OF_WORKER,
      registers,
      collect() {
        this.reset()
        for (const worker of live()) {
          const value = read(worker)
          if (value !== null) this.set({ model: worker.launch.id, worker: worker.id }, value)
        }
      },
    })
  gauge('worker_ready', 'Whether a worker takes requests', (w) => (w.phase === 'ready' ? 1 : 0))
  gauge('worker_in_flight', 'Requests that were sent to a worker', (w) => w.numInFlight)
  gauge('worker_resident_bytes', 'Memory of a worker process', (w) => w.handle.bytes)
  countRestarts(registry, live)
  countRoutes(registry, fleet)
}

function countRestarts(registry: Registry, live: () => readonly MeasuredWorker[]): void {
  new Counter({
    name: 'skein_worker_restarts_total',
    help: 'Crashes after which a worker was started again',
    labelNames: OF_WORKER,
    registers: [registry],
    collect() {
      this.reset()
      for (const { id, launch, handle } of live()) this.inc({ model: launch.id, worker: id }, handle.restarts)
    },
  })
}

/** Kinds of affinity, and the counts of each. */
const KINDS = [
  ['session', 'sessionHits', 'sessionSpills'],
  ['prefix', 'prefixHits', 'prefixSpills'],
] as const

function countRoutes(registry: Registry, fleet: MeasuredFleet): void {
  new Counter({
    name: 'skein_router_requests_total',
    help: 'Requests whose state was known to be on a worker: sent there (hit) or elsewhere (spill)',
    labelNames: ['model', 'kind', 'outcome'],
    registers: [registry],
    collect() {
      this.reset()
      for (const [model, counts] of fleet.routerCounts()) {
        for (const [kind, hits, spills] of KINDS) {
          this.inc({ model, kind, outcome: 'hit' }, counts[hits])
          this.inc({ model, kind, outcome: 'spill' }, counts[spills])
        }
      }
    },
  })
  new Counter({
    name: 'skein_router_retries_total',
    help: 'Requests sent once more because their worker died or had no room',
    labelNames: ['model'],
    registers: [registry],
    collect() {
      this.reset()
      for (const [model, { retries }] of fleet.routerCounts()) this.inc({ model }, retries)
    },
  })
}
