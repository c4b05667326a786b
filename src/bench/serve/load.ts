/**
 * The clock of a load: starts each request when it is due, or as soon as the limit on requests in flight allows, and
 * collects the results. It knows no HTTP; sending is a function.
 */
import { monitorEventLoopDelay } from 'node:perf_hooks'
import { setTimeout as delay } from 'node:timers/promises'

/** How often the event loop's delay is measured. */
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
  /** Maximum requests in flight. */
  readonly concurrency: number
  /** Sends request i. It does not reject if the request fails. */
  readonly send: (i: number) => Promise<T>
  readonly onEnd: (numEnded: number) => void
  /** When aborted, no further request is sent. */
  readonly signal: AbortSignal
}

export interface Load<T> {
  /** In the order in which they ended; fewer than planned if the load was interrupted. */
  readonly requests: readonly Timed<T>[]
  readonly durationMs: number
  readonly eventLoopDelayMs: EventLoopDelay
}

/** How late this process was at its own timers: above a few milliseconds it may be the limit, not the server. */
export interface EventLoopDelay {
  readonly p99: number
  /** A single long stop of the process or the machine shows only here. */
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

/** The measurement includes the timer's period, in nanoseconds; without measurements it is negative. */
function lateness(measured: number): number {
  return Math.max(0, measured / 1e6 - DELAY_RESOLUTION_MS)
}

async function waitUntil(time: number, signal: AbortSignal): Promise<void> {
  // Repeats, because timers may fire a fraction of a millisecond early.
  while (!signal.aborted) {
    const wait = time - performance.now()
    if (wait <= 0) return
    // An interrupted wait is no error: the loop checks the signal.
    await delay(Math.ceil(wait), undefined, { signal }).catch(() => {})
  }
}
