/**
 * Ends this process when its event loop hangs: a thread counts its beats, reports where it hangs, and kills it, so that
 * its parent restarts it. A hanging event loop cannot handle a signal or any other event.
 */
import { setInterval } from 'node:timers'
import { Worker } from 'node:worker_threads'
import type { Watched } from './watchdog-thread.ts'

/** A hundred times the longest that a valid request blocks the event loop. */
const HANG_MS = 10_000
const BEATS_PER_HANG = 20

/** Starts watching. Returns a function that stops it. */
export function watchEventLoop(hangMs = HANG_MS): () => void {
  const beats = new Int32Array(new SharedArrayBuffer(4))
  const everyMs = hangMs / BEATS_PER_HANG
  const beating = setInterval(() => Atomics.add(beats, 0, 1), everyMs).unref()
  const workerData: Watched = { beats, everyMs, mostMissed: BEATS_PER_HANG }
  const url = new URL('./watchdog-thread.js', import.meta.url)
  const worker = new Worker(url, { workerData, execArgv: [], stderr: false })
  worker.unref()
  // If the thread fails, the process just runs unwatched.
  worker.on('error', () => {})
  return () => {
    clearInterval(beating)
    void worker.terminate()
  }
}
