/**
 * The clock of a load: starts each request when it is due, or as soon as the cap on requests in flight allows, and
 * collects what became of them. Knows no HTTP; the requests are a function.
 */
import { monitorEventLoopDelay } from 'node:perf_hooks'
import { setTimeout as delay } from 'node:timers/promises'

/** How often the event loop's delay is looked at. */
const DELAY_RESOLUTION_MS = 10

/** Milliseconds since the start of the load. */
export interface Timed<T> {
  readonly dueMs: number
  readonly sentMs: number
  readonly value: T
}

interface LoadPlan<T> {
  /** When each request is due, ascending. */
  readonly arrivalsMs: readonly number[]
  /** Requests in flight at most. */
  readonly concurrency: number
  /** Sends request i; never rejects for a request's own failure. */
  readonly send: (i: number) => Promise<T>
  readonly onEnd: (numEnded: number) => void
  /** Aborted: nothing more is sent. */
  readonly signal: AbortSignal
}

export interface Load<T> {
  /** In the order they ended; fewer than planned when the load was interrupted. */
  readonly requests: readonly Timed<T>[]
  readonly durationMs: number
  readonly eventLoopDelayMs: EventLoopDelay
}

/** How late this process was at its own timers: above a few milliseconds it, not the server, may be the limit. */
export interface EventLoopDelay {
  readonly p99: number
  /** One long stop, of the process or of the whole machine, shows here alone. */
  readonly max: number
}

export async function runLoad<T>(plan: LoadPlan<T>): Promise<Load<T>> {
  const { arrivalsMs, concurrency, send, onEnd, signal } = plan
  const eventLoop = monitorEventLoopDelay({ resolution: DELAY_RESOLUTION_MS })
  eventLoop.enable()
  const startedAt = performance.now()
  const requests: Timed<T>[] = []
  const started: Promise<void>[] = []
  let wake = () => {}
  const start = async (i: number, dueMs: number) => {
    const sentMs = performance.now() - startedAt
    requests.push({ dueMs, sentMs, value: await send(i) })
    onEnd(requests.length)
    wake()
  }
  for (const [i, dueMs] of arrivalsMs.entries()) {
    await waitUntil(startedAt + dueMs, signal)
    while (started.length - requests.length >= concurrency)
      await new Promise<void>((resolve) => {
        wake = resolve
      })
    if (signal.aborted) break
    started.push(start(i, dueMs))
  }
  await Promise.all(started)
  eventLoop.disable()
  return {
    requests,
    durationMs: performance.now() - startedAt,
    eventLoopDelayMs: { p99: lateness(eventLoop.percentile(99)), max: lateness(eventLoop.max) },
  }
}

/** A timer's period is part of what is measured, in nanoseconds; without a single measure it is below zero. */
function lateness(measured: number): number {
  return Math.max(0, measured / 1e6 - DELAY_RESOLUTION_MS)
}

async function waitUntil(time: number, signal: AbortSignal): Promise<void> {
  // Again and again, as timers may fire a fraction of a millisecond early.
  while (!signal.aborted) {
    const wait = time - performance.now()
    if (wait <= 0) return
    // An interrupted wait is no error: the loop looks at the signal itself.
    await delay(Math.ceil(wait), undefined, { signal }).catch(() => {})
  }
}
