/**
 * Samples what the server did in each second of the last ten minutes, for the charts of the dashboard, from differences
 * of the metrics.
 */
import { freemem } from 'node:os'
import { monitorEventLoopDelay } from 'node:perf_hooks'
import { type EngineStats, PROPOSERS, type StateStats, wireStatesNow } from '../../engine/stats.ts'
import type { Percentiles, Sample, WorkerSample } from '../contract.ts'
import type { Metrics } from '../figures/metrics.ts'
import type { Fleet } from '../fleet/fleet.ts'
import type { FleetWorker } from '../fleet/fleet-worker.ts'
import type { CpuUse } from './host-facts.ts'
import type { GpuWatch } from './nvidia-smi.ts'

const EVERY_MS = 1000
const KEPT = 600
/** The event loop's delay is taken over the last ten samples, too. */
const DELAY_SAMPLES = 10
/** A timer with this period measures the loop: its lateness is the delay. */
const LOOP_TICK_MS = 10
/** While nobody watches, one nvidia-smi process per second would be too much. */
const WATCHED_GPU_AGE_MS = 1500
const UNWATCHED_GPU_AGE_MS = 10_000

interface SamplerOptions {
  readonly fleet: Fleet
  readonly metrics: Metrics
  readonly cpuUse: CpuUse
  readonly gpus: GpuWatch
}

/** Counters of a worker, and how many of its requests were probes of the watchdog. */
interface Counted {
  readonly stats: EngineStats
  readonly numProbes: number
}

type CountName = Exclude<keyof EngineStats, 'states'>

export class Sampler {
  readonly #options: SamplerOptions
  readonly #timer: NodeJS.Timeout
  readonly #delay = monitorEventLoopDelay({ resolution: LOOP_TICK_MS })
  readonly #listeners = new Set<(sample: Sample) => void>()
  readonly #history: Sample[] = []
  readonly #last = new Map<string, Counted>()
  /** Prompts with and without a cached prefix in the last ten seconds, by worker. */
  readonly #prefixes = new Map<string, { hits: number; misses: number }[]>()
  #numStarted = 0
  #numFailed = 0
  #sampledAt = performance.now()
  #numSamples = 0

  constructor(options: SamplerOptions) {
    this.#options = options
    this.#delay.enable()
    this.#timer = setInterval(() => this.#take(), EVERY_MS).unref()
  }

  /** Oldest first. */
  get history(): readonly Sample[] {
    return this.#history
  }

  /** Reports every sample from now on. Returns a function that stops it. */
  listen(listener: (sample: Sample) => void): () => void {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }

  stop(): void {
    clearInterval(this.#timer)
    this.#delay.disable()
  }

  #take(): void {
    const { gpus } = this.#options
    const isWatched = this.#listeners.size > 0
    void gpus.read(isWatched ? WATCHED_GPU_AGE_MS : UNWATCHED_GPU_AGE_MS)
    const now = performance.now()
    const sample = this.#sample((now - this.#sampledAt) / 1000)
    this.#sampledAt = now
    this.#history.push(sample)
    if (this.#history.length > KEPT) this.#history.shift()
    for (const listener of this.#listeners) listener(sample)
  }

  #sample(seconds: number): Sample {
    const { fleet, metrics, cpuUse, gpus } = this.#options
    const { recent } = metrics
    const started = recent.numStarted - this.#numStarted
    const failed = recent.numFailed - this.#numFailed
    this.#numStarted = recent.numStarted
    this.#numFailed = recent.numFailed
    return {
      at: Date.now() / 1000,
      workers: Object.fromEntries(
        fleet.workers.flatMap((worker) => {
          const sample = this.#sampleOf(worker, seconds)
          return sample === null ? [] : [[worker.id, sample]]
        }),
      ),
      requests: { open: recent.numOpen, per_second: started / seconds, errors_per_second: failed / seconds },
      ttft_ms: recent.firstTokenMs.percentiles(),
      itl_ms: recent.interTokenMs.percentiles(),
      event_loop_delay_ms: this.#delays(),
      cpu_use: cpuUse.look(),
      memory_available_bytes: freemem(),
      gpus: gpus.latest,
    }
  }

  #delays(): Percentiles {
    const at = (share: number) => Math.max(0, this.#delay.percentile(share) / 1e6 - LOOP_TICK_MS)
    const { count } = this.#delay
    const delays = count === 0 ? { p50: null, p90: null, p99: null } : { p50: at(50), p90: at(90), p99: at(99) }
    this.#numSamples++
    if (this.#numSamples % DELAY_SAMPLES === 0) this.#delay.reset()
    return delays
  }

  /** Null without an engine. */
  #sampleOf(worker: FleetWorker, seconds: number): WorkerSample | null {
    const stats = worker.engine?.stats
    if (stats === undefined) {
      this.#last.delete(worker.id)
      this.#prefixes.delete(worker.id)
      return null
    }
    const { numProbes } = worker.handle
    const now = { stats, numProbes }
    const before = this.#last.get(worker.id)
    this.#last.set(worker.id, now)
    // A restarted worker counts from zero.
    const last = before !== undefined && before.stats.steps <= stats.steps ? before : now
    const since = last.stats
    const rate = (name: CountName) => Math.max(0, stats[name] - since[name]) / seconds
    // A probe reads one token and draws one.
    const probed = Math.max(0, numProbes - last.numProbes) / seconds
    const tokens = (name: CountName) => Math.max(0, rate(name) - probed)
    return {
      running: stats.running,
      waiting: stats.waiting,
      slots: stats.numSlots,
      free_slots: stats.freeSlots,
      batch_tokens: stats.running === 0 ? 0 : stats.lastBatchTokens,
      prompt_tokens_per_second: tokens('promptTokens'),
      generated_tokens_per_second: tokens('generatedTokens'),
      guesses: guessRates(rate),
      busy: Math.min(1, rate('busySeconds')),
      rss_bytes: worker.handle.bytes,
      states:
        stats.states === undefined
          ? null
          : this.#statesOf(worker.id, stats.states, since.states ?? stats.states, seconds),
    }
  }

  #statesOf(id: string, now: StateStats, before: StateStats, seconds: number): WorkerSample['states'] {
    const looks = this.#prefixes.get(id) ?? []
    looks.push({ hits: now.prefixHits - before.prefixHits, misses: now.prefixMisses - before.prefixMisses })
    if (looks.length > DELAY_SAMPLES) looks.shift()
    this.#prefixes.set(id, looks)
    const hits = looks.reduce((sum, look) => sum + look.hits, 0)
    const all = looks.reduce((sum, look) => sum + look.misses, hits)
    return {
      ...wireStatesNow(now),
      cached_tokens_per_second: (now.cachedTokens - before.cachedTokens) / seconds,
      prefix_hit_rate: all === 0 ? null : hits / all,
    }
  }
}

function guessRates(rate: (name: CountName) => number): WorkerSample['guesses'] {
  const rates = PROPOSERS.map((name) => [
    name,
    { guessed_per_second: rate(`${name}Guessed`), accepted_per_second: rate(`${name}Accepted`) },
  ])
  // One entry per name.
  return Object.fromEntries(rates) as WorkerSample['guesses']
}
