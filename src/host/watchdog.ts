/**
 * Ends this process when its event loop hangs: a thread counts its beats, tells where it hangs, and kills it, so that whoever
 * started it starts it again. A signal would not be heard, nor would anything that the event loop has to do.
 */
import { setInterval } from 'node:timers'
import { Worker } from 'node:worker_threads'
import type { Watched } from './watchdog-thread.ts'

/** The longest that a legal request holds the event loop is a hundredth of it. */
const HANG_MS = 10_000
const BEATS_PER_HANG = 20

/** Watches from now on; returns what ends it. */
export function watchEventLoop(hangMs = HANG_MS): () => void {
  const beats = new Int32Array(new SharedArrayBuffer(4))
  const everyMs = hangMs / BEATS_PER_HANG
  const beating = setInterval(() => Atomics.add(beats, 0, 1), everyMs).unref()
  const workerData: Watched = { beats, everyMs, mostMissed: BEATS_PER_HANG }
  const url = new URL('./watchdog-thread.js', import.meta.url)
  const worker = new Worker(url, { workerData, execArgv: [], stderr: false })
  worker.unref()
  // Without it the process is as it was before there was one.
  worker.on('error', () => {})
  return () => {
    clearInterval(beating)
    void worker.terminate()
  }
}
