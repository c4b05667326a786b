/**
 * The way down: refuse new work with 503, let what runs finish within a limit, close the server, stop the workers.
 * A second signal skips the waiting.
 */
import { setTimeout as delay } from 'node:timers/promises'
import type { FastifyInstance } from 'fastify'
import type { Drain } from './drain.ts'

interface ShutdownOptions {
  readonly app: FastifyInstance
  readonly drain: Drain
  /** Ends the worker processes. */
  readonly stopWorkers: () => Promise<void>
  /** How long streams may go on. */
  readonly timeoutMs: number
  /** How long new requests are refused at least before connections are: for gateways that are to find out. */
  readonly refuseMs?: number | undefined
  /** Told on the way down how many requests are waited for. */
  readonly onWait?: (numActive: number) => void
}

/** What clients that read slowly get to take their last bytes. */
const LAST_BYTES_MS = 2000

const ENDING = ['SIGTERM', 'SIGINT', 'SIGHUP'] as const

/** While draining the server still listens, so that new requests get their 503 and probes see /readyz turn. */
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
 * Shuts down on the first SIGTERM, SIGINT or SIGHUP, at once on a second; then calls `exit` with the exit code.
 * Returns a function that takes the listeners off again.
 */
export function shutDownOnSignals(options: ShutdownOptions, exit: (code: number) => void): () => void {
  let isAsked = false
  const onSignal = (name: NodeJS.Signals) => {
    if (isAsked) {
      // A terminal that closes tells its processes, and so does its shell: nobody means the second by itself.
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
