/** Work that nobody waits for: done while the event loop has little else to do. */
import { performance } from 'node:perf_hooks'

const EACH_MS = 50
/** The part of the time since the last look that the event loop may have been busy. */
const IDLE = 0.5

/** A piece each 50 ms, until `next` has none. Keeps no process alive. */
export function whenIdle(next: () => (() => void) | null): void {
  let before = performance.eventLoopUtilization()
  const timer = setInterval(() => {
    const now = performance.eventLoopUtilization()
    const { utilization } = performance.eventLoopUtilization(now, before)
    before = now
    if (utilization > IDLE) return
    const piece = next()
    if (piece === null) clearInterval(timer)
    else piece()
  }, EACH_MS).unref()
}
