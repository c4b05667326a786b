/**
 * Shuts down in order: refuse new requests with 503, let running ones finish within a time limit, close the server,
 * stop the workers. A second signal skips the wait.
 */
import { setTimeout as delay } from 'node:timers/promises'
import type { FastifyInstance } from 'fastify'
import type { Drain } from './drain.ts'

interface ShutdownOptions {
  readonly app: FastifyInstance
  readonly drain: Drain
  readonly stopWorkers: () => Promise<void>
  /** Time that streams get to finish. */
  readonly timeoutMs: number
  /** Minimum time that new requests are refused before the server stops listening, so that gateways notice. */
  readonly refuseMs?: number | undefined
  /** Called with the number of requests that are waited for. */
  readonly onWait?: (numActive: number) => void
}

/** Time that slow clients get to read their last bytes. */
const LAST_BYTES_MS = 2000

const ENDING = ['SIGTERM', 'SIGINT', 'SIGHUP'] as const

/** The server still listens while it drains, so that new requests get a 503 and probes see /readyz fail. */
export async function shutDown(options: ShutdownOptions): Promise<void> {
  const { app, drain, stopWorkers, timeoutMs, refuseMs = 0 } = options
  const refused = refuseMs === 0 ? null : delay(refuseMs)
  await drain.drain(timeoutMs)
  await refused
  const closed = app.close()
  const timer = delay(LAST_BYTES_MS, undefined, { ref: false })
  await Promise.race([closed, timer.then(() => app.server.closeAllConnections())])
  await closed
  await stopWorkers()
}

/**
 * Shuts down on the first SIGTERM, SIGINT or SIGHUP, at once on a second one; then calls `exit` with the exit code.
 * Returns a function that removes the listeners.
 */
export function shutDownOnSignals(options: ShutdownOptions, exit: (code: number) => void): () => void {
  let isAsked = false
  const onSignal = (name: NodeJS.Signals) => {
    if (isAsked) {
      // A closing terminal sends SIGHUP to its processes, and its shell may send it again, so SIGHUP never counts as
      // the second.
      if (name === 'SIGHUP') return
      options.drain.abortAll()
      options.app.server.closeAllConnections()
      exit(1)
      return
    }
    isAsked = true
    const { numActive } = options.drain
    if (numActive > 0) options.onWait?.(numActive)
    shutDown(options).then(
      () => exit(0),
      (error) => {
        options.app.log.error({ err: error }, 'shutdown failed')
        exit(1)
      },
    )
  }
  for (const name of ENDING) process.on(name, onSignal)
  return () => {
    for (const name of ENDING) process.off(name, onSignal)
  }
}
