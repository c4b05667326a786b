/**
 * Prometheus metrics of one gateway, under vLLM's names with our prefix. An observer takes latencies from the engine's
 * events, so dialects need not know. Labels hold model names and codes, never text of a client.
 */

import { createServer } from 'node:http'
import { Counter, collectDefaultMetrics, Histogram, Registry } from 'prom-client'
import type { ModelRegistry } from '../../api/models.ts'
import type { EngineEvent, GenerateRequest } from '../../engine/messages.ts'
import { type EngineMetric, type EngineStats, METRICS } from '../../engine/stats.ts'
import { type ErrorCode, SkeinError } from '../../errors.ts'
import type { Percentiles } from '../contract.ts'
import { createOriginPolicy } from '../http/origin.ts'
import type { RequestTally } from '../http/request-end.ts'
import type { Observer, Watch } from '../routing/observed.ts'
import type { Ending } from '../routing/relay.ts'
import { addReadMetric } from './read-metric.ts'
import { countFleet, type MeasuredFleet } from './worker-metrics.ts'

const FAST_BUCKETS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5]
const SLOW_BUCKETS = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300]

/**
 * Share of used slots, as other routers report cache use. A kept state in a slot makes room for a request, so it does
 * not count.
 */
const SLOT_USE: EngineMetric = {
  name: 'slots_in_use_ratio',
  help: 'Share of slots that requests run in, 0 to 1',
  read: ({ running, numSlots }) => (numSlots === 0 ? 0 : Math.min(1, running / numSlots)),
}

export class Metrics {
  readonly registry = new Registry()
  /** Values of the last seconds, for samples. */
  readonly recent = {
    firstTokenMs: new RecentValues(),
    interTokenMs: new RecentValues(),
    numOpen: 0,
    numStarted: 0,
    numFailed: 0,
  }
  readonly #promptTokens = this.#counter('prompt_tokens_total', 'Prompt tokens read', ['model'])
  /** Tokens drawn by model: at every token a counter would hash its labels. */
  readonly #drawn = new Map<string, number>()
  readonly #success = this.#counter('request_success_total', 'Answers finished', ['model', 'finished_reason'])
  readonly #cachedTokens = this.#counter(
    'prompt_cached_tokens_total',
    'Prompt tokens that were not read, thanks to a kept state',
    ['model'],
  )
  readonly #failed = this.#counter('generation_errors_total', 'Failed answers, by cause', ['model', 'code'])
  readonly #errors = this.#counter('request_errors_total', 'Failed requests, by cause', ['code'])
  readonly #firstToken = this.#histogram(
    'time_to_first_token_seconds',
    'From submission to the first token',
    SLOW_BUCKETS,
  )
  readonly #interToken = this.#histogram(
    'inter_token_latency_seconds',
    'Between two tokens of one answer',
    FAST_BUCKETS,
  )
  readonly #whole = this.#histogram('e2e_request_latency_seconds', 'From submission to the last token', SLOW_BUCKETS)
  /** Names by worker: a model with a start state has a further name. */
  readonly #namesOf = new Map<string, Set<string>>()

  /** With a fleet, the engine's figures are reported per worker. */
  constructor(models: ModelRegistry, fleet: MeasuredFleet | null = null) {
    collectDefaultMetrics({ register: this.registry })
    const engines = () => (fleet === null ? enginesOf(models) : workersOf(fleet))
    for (const { name, help, read } of [...METRICS, SLOT_USE]) {
      const values = () => engines().map(({ labels, stats }) => [labels, read(stats)] as const)
      addReadMetric(this.registry, { name, help, labelNames: ['model', 'worker'], read: values })
    }
    const drawn = () => [...this.#drawn].map(([model, count]) => [{ model }, count] as const)
    const generated = { name: 'generation_tokens_total', help: 'Tokens drawn', labelNames: ['model'], read: drawn }
    addReadMetric(this.registry, generated)
    if (fleet !== null) countFleet(this.registry, fleet)
  }

  countError(code: ErrorCode): void {
    this.#errors.inc({ code })
    this.recent.numFailed++
  }

  /** Removes the latencies of a worker that has ended for good. */
  forgetWorker(worker: string): void {
    for (const model of this.#namesOf.get(worker) ?? [])
      for (const histogram of [this.#firstToken, this.#interToken]) histogram.remove({ model, worker })
    this.#namesOf.delete(worker)
  }

  /** Measures every request, and adds its counts to `tally`. */
  observer(tally: RequestTally | null = null): Observer {
    return { begin: ({ id }, request) => this.#measure(id, request, tally) }
  }

  dispose(): void {
    this.registry.clear()
  }

  #measure(model: string, request: GenerateRequest, tally: RequestTally | null): Watch {
    const clock = new RequestClock(request.n)
    let labels: Labels = { model }
    let hasBegun = false
    this.recent.numOpen++
    if (tally !== null) tally.model = model
    return {
      event: (event, numDrawn) => {
        if (!hasBegun) this.recent.numStarted++
        hasBegun = true
        this.#drawn.set(model, (this.#drawn.get(model) ?? 0) + numDrawn)
        if (tally !== null) count(tally, event, request, numDrawn)
        if (event.type === 'prompt') {
          const { prompt } = request
          // The first turn of a session may read a little less.
          const numRead = Math.min(prompt.length, event.contextTokens ?? prompt.length)
          this.#promptTokens.inc({ model }, numRead)
          this.#cachedTokens.inc({ model }, event.cachedTokens ?? 0)
          if (event.worker !== undefined) labels = this.#labelsAt(model, event.worker)
        } else if (event.type === 'text') this.#time(labels, clock, event)
        else if (event.type === 'finish') this.#success.inc({ model, finished_reason: event.reason })
      },
      end: (ending) => {
        this.recent.numOpen--
        if (ending.how === 'done') this.#whole.observe({ model }, clock.elapsed())
        if (ending.how === 'failed') this.#countFailed(model, ending)
      },
    }
  }

  #countFailed(model: string, { thrown }: Ending & { how: 'failed' }): void {
    const { code } = SkeinError.from(thrown)
    // The queue was full, so no answer failed; a batch retries the request.
    if (code !== 'queue_full') this.#failed.inc({ model, code })
  }

  #labelsAt(model: string, worker: string): Labels {
    const names = this.#namesOf.get(worker) ?? new Set()
    this.#namesOf.set(worker, names.add(model))
    return { model, worker }
  }

  #time(labels: Labels, clock: RequestClock, event: EngineEvent & { type: 'text' }): void {
    if (event.tokens.length === 0) return
    const { first, perToken } = clock.tick(event.index, event.tokens.length)
    if (first !== null) {
      this.#firstToken.observe(labels, first)
      this.recent.firstTokenMs.add(1000 * first)
    }
    if (perToken !== null) {
      this.#interToken.observe(labels, perToken)
      this.recent.interTokenMs.add(1000 * perToken)
    }
  }

  #counter(name: string, help: string, labelNames: string[]): Counter {
    return new Counter({ name: `skein_${name}`, help, labelNames, registers: [this.registry] })
  }

  #histogram(name: string, help: string, buckets: number[]): Histogram {
    const options = { name: `skein_${name}`, help, buckets, labelNames: ['model', 'worker'] }
    return new Histogram({ ...options, registers: [this.registry] })
  }
}

function count(tally: RequestTally, { type }: EngineEvent, { prompt }: GenerateRequest, numDrawn: number): void {
  if (type === 'prompt') tally.promptTokens += prompt.length
  if (numDrawn > 0) tally.firstTokenMs ??= performance.now() - tally.startedAt
  tally.answerTokens += numDrawn
}

type Labels = { readonly model: string; readonly worker?: string }

interface MeasuredEngine {
  readonly labels: Labels
  readonly stats: EngineStats
}

function enginesOf(models: ModelRegistry): MeasuredEngine[] {
  return models.list().flatMap(({ id, client }) => {
    return client === null ? [] : [{ labels: { model: id }, stats: client.stats }]
  })
}

function workersOf({ workers }: MeasuredFleet): MeasuredEngine[] {
  return workers.flatMap(({ id, launch, engine }) => {
    const labels = { model: launch.id, worker: id }
    return engine === null ? [] : [{ labels, stats: engine.stats }]
  })
}

class RequestClock {
  readonly #start = performance.now()
  readonly #last: (number | null)[]
  #sawToken = false

  constructor(n: number) {
    this.#last = Array.from({ length: n }, () => null)
  }

  elapsed(): number {
    return (performance.now() - this.#start) / 1000
  }

  /** `first` for the request's first token, `perToken` for later tokens of a choice; null if not applicable. */
  tick(index: number, tokens: number): { first: number | null; perToken: number | null } {
    const now = this.elapsed()
    const last = this.#last[index] ?? null
    this.#last[index] = now
    const first = this.#sawToken ? null : now
    this.#sawToken = true
    return { first, perToken: last === null ? null : (now - last) / tokens }
  }
}

const SECONDS = 10
/** Maximum values kept per second; beyond that, a random sample. */
const MAX_KEPT = 500

interface Second {
  readonly at: number
  readonly values: number[]
  count: number
}

/** Recent values for percentiles: a bounded sample per second, with old seconds dropped. */
export class RecentValues {
  #seconds: Second[] = []

  add(value: number, now = performance.now()): void {
    const second = this.#secondOf(Math.floor(now / 1000))
    second.count++
    if (second.values.length < MAX_KEPT) second.values.push(value)
    else {
      const at = Math.floor(Math.random() * second.count)
      if (at < MAX_KEPT) second.values[at] = value
    }
  }

  /** Nearest-rank percentiles; null without values. */
  percentiles(now = performance.now()): Percentiles {
    const oldest = Math.floor(now / 1000) - SECONDS
    // Sorted as numbers by V8 itself: with a function that compares, thousands of values take several milliseconds.
    const values = Float64Array.from(this.#seconds.flatMap(({ at, values: of }) => (at >= oldest ? of : []))).sort()
    const at = (share: number) => values[Math.ceil(share * values.length) - 1] ?? null
    return { p50: at(0.5), p90: at(0.9), p99: at(0.99) }
  }

  #secondOf(at: number): Second {
    const last = this.#seconds.at(-1)
    if (last?.at === at) return last
    const next = { at, values: [], count: 0 }
    this.#seconds = [...this.#seconds.slice(-SECONDS), next]
    return next
  }
}

/** Node leaves out the body of a HEAD reply. */
const METHODS: readonly string[] = ['GET', 'HEAD']

export interface MetricsServer {
  readonly port: number
  close(): Promise<void>
}

export function startMetricsServer(
  metrics: Metrics,
  host: string,
  port: number,
  allowedHosts: readonly string[] = [],
): Promise<MetricsServer> {
  const { registry } = metrics
  const pages = createOriginPolicy({ host, allowedHosts, allowedOrigins: [] })
  const server = createServer((request, response) => {
    try {
      pages.check(request.headers)
    } catch (denied) {
      response.writeHead(403).end(`${SkeinError.from(denied).message}\n`)
      return
    }
    const [path] = (request.url ?? '').split('?')
    if (path !== '/metrics' || !METHODS.includes(request.method ?? '')) {
      response.writeHead(404).end('this port serves only GET /metrics\n')
      return
    }
    registry.metrics().then(
      (text) => response.writeHead(200, { 'content-type': registry.contentType }).end(text),
      () => response.writeHead(500).end(),
    )
  })
  return new Promise((resolve, reject) => {
    server.once('error', (error: NodeJS.ErrnoException) => {
      const reason = error.code === 'EADDRINUSE' ? 'it is in use' : error.message
      const message = `the metrics cannot be served on port ${port} of ${host}: ${reason}; choose another with --metrics-port`
      reject(new SkeinError('conflict', message, { param: 'metrics-port', cause: error }))
    })
    server.listen(port, host, () => {
      const address = server.address()
      const bound = typeof address === 'object' && address !== null ? address.port : port
      resolve({ port: bound, close: () => new Promise((done) => void server.close(() => done())) })
    })
  })
}
