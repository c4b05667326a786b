/**
 * Prometheus metrics of one gateway, under vLLM's names with our prefix. Latencies are taken from the engine's events
 * by a client that wraps another, so no dialect knows that it is measured. Labels hold model names and codes, never
 * anything a client wrote.
 */
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client'
import type { ModelRegistry, ServedModel } from '../api/models.ts'
import type { EngineClient } from '../engine/client.ts'
import type { EngineEvent, EngineStats, GenerateRequest } from '../engine/messages.ts'
import type { ErrorCode } from '../errors.ts'

const FAST_BUCKETS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5]
const SLOW_BUCKETS = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300]

export class Metrics {
  readonly registry = new Registry()
  readonly #promptTokens = this.#counter('prompt_tokens_total', 'Prompt tokens read', ['model'])
  readonly #generationTokens = this.#counter('generation_tokens_total', 'Tokens drawn', ['model'])
  readonly #success = this.#counter('request_success_total', 'Answers finished', [
    'model',
    'finished_reason',
  ])
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
  readonly #whole = this.#histogram(
    'e2e_request_latency_seconds',
    'From submission to the last token',
    SLOW_BUCKETS,
  )

  constructor(models: ModelRegistry) {
    collectDefaultMetrics({ register: this.registry })
    for (const [name, [help, read]] of Object.entries(GAUGES)) this.#gauge(name, help, read, models)
  }

  countError(code: ErrorCode): void {
    this.#errors.inc({ code })
  }

  /** The same model, with every request through it measured. */
  observe(model: ServedModel): ServedModel {
    const { client } = model
    const observed: EngineClient = {
      info: client.info,
      get stats() {
        return client.stats
      },
      generate: (request, signal) => this.#measure(model, request, signal),
      call: (method, params) => client.call(method, params),
      close: () => client.close(),
    }
    return { ...model, client: observed }
  }

  dispose(): void {
    this.registry.clear()
  }

  async *#measure(
    { id: model, client }: ServedModel,
    request: GenerateRequest,
    signal: AbortSignal | undefined,
  ): AsyncGenerator<EngineEvent> {
    const clock = new RequestClock(request.n)
    for await (const event of client.generate(request, signal)) {
      if (event.type === 'prompt') this.#promptTokens.inc({ model }, request.prompt.length)
      if (event.type === 'text' && event.tokens.length > 0) {
        const { first, perToken } = clock.tick(event.index, event.tokens.length)
        if (first !== null) this.#firstToken.observe({ model }, first)
        if (perToken !== null) this.#interToken.observe({ model }, perToken)
      }
      if (event.type === 'finish') {
        this.#generationTokens.inc({ model }, event.completionTokens)
        this.#success.inc({ model, finished_reason: event.reason })
      }
      yield event
    }
    this.#whole.observe({ model }, clock.elapsed())
  }

  #counter(name: string, help: string, labelNames: string[]): Counter {
    return new Counter({ name: `skein_${name}`, help, labelNames, registers: [this.registry] })
  }

  #histogram(name: string, help: string, buckets: number[]): Histogram {
    const options = { name: `skein_${name}`, help, buckets, labelNames: ['model'] }
    return new Histogram({ ...options, registers: [this.registry] })
  }

  #gauge(name: string, help: string, read: (stats: EngineStats) => number, models: ModelRegistry) {
    new Gauge({
      name: `skein_${name}`,
      help,
      labelNames: ['model'],
      registers: [this.registry],
      collect() {
        this.reset()
        for (const { id, client } of models.list()) {
          if (client !== null) this.set({ model: id }, read(client.stats))
        }
      },
    })
  }
}

/** Read from the engine's latest counters when scraped. */
const GAUGES: Readonly<Record<string, readonly [string, (stats: EngineStats) => number]>> = {
  num_requests_running: ['Requests with a slot', (stats) => stats.running],
  num_requests_waiting: ['Requests in the queue', (stats) => stats.waiting],
  num_slots: ['States the device has room for', (stats) => stats.numSlots],
  num_slots_free: ['States not in use', (stats) => stats.freeSlots],
  last_batch_tokens: ['Tokens of the last step', (stats) => stats.lastBatchTokens],
  engine_steps: ['Steps since the worker started', (stats) => stats.steps],
  engine_busy_seconds: ['Seconds inside steps since the worker started', (s) => s.busySeconds],
}

/** Seconds between the tokens of one request. */
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

  /** `first` for the request's first token, `perToken` for later tokens of a choice; null where it does not apply. */
  tick(index: number, tokens: number): { first: number | null; perToken: number | null } {
    const now = this.elapsed()
    const last = this.#last[index] ?? null
    this.#last[index] = now
    const first = this.#sawToken ? null : now
    this.#sawToken = true
    return { first, perToken: last === null ? null : (now - last) / tokens }
  }
}
