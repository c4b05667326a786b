/**
 * Kernels compiled on other threads, while weights are read. Who needs one waits for it, or compiles it at once where no
 * thread has begun. Knows no kernel; what the threads make is written to the disk by them, and held here until it is asked for.
 */
import { availableParallelism } from 'node:os'
import { MessageChannel, type MessagePort, receiveMessageOnPort, Worker } from 'node:worker_threads'
import type { CompilerInput, ImagePlan } from './target.ts'

/** Of a job. */
export const WAITING = 0
export const BEGUN = 1
export const DONE = 2

/** What a thread is started with. */
export interface CompilingThread {
  /** A kind of driver, whose compiler it takes. */
  readonly kind: string
  readonly driverVersion: number
  readonly jobs: readonly { readonly input: CompilerInput; readonly path: string }[]
  /** The state of each. */
  readonly states: Int32Array<SharedArrayBuffer>
  /** To which it posts what it made: `Compiled`. */
  readonly port: MessagePort
}

/** Null where it could not be compiled. */
export interface Compiled {
  readonly path: string
  readonly image: Uint8Array | null
}

interface Job {
  readonly states: Int32Array<SharedArrayBuffer>
  readonly index: number
}

/** A processor is left for who waits. */
const MAX_THREADS = Math.min(8, availableParallelism() - 1)
/** A thread that says nothing for so long does not count any more. */
const PATIENCE_MS = 120_000

const jobs = new Map<string, Job>()
const images = new Map<string, Uint8Array>()
const ports: MessagePort[] = []

/** Those whose compilation takes longest come first: they have most text. */
export function startCompiling(plans: readonly ImagePlan[], kind: string, driverVersion: number): number {
  const fresh = plans.filter(({ path }) => !jobs.has(path)).sort((a, b) => lengthOf(b) - lengthOf(a))
  const numThreads = Math.min(MAX_THREADS, fresh.length)
  if (numThreads < 1) return 0
  const states = new Int32Array(new SharedArrayBuffer(4 * fresh.length))
  for (const [index, { path }] of fresh.entries()) jobs.set(path, { states, index })
  const url = new URL('../kinds/compile-thread.js', import.meta.url)
  // Sources have no compiled thread beside them.
  const place = import.meta.url.endsWith('.ts') ? url.href.replace('/src/', '/dist/') : url.href
  const own = fresh.map(({ input, path }) => ({ input, path }))
  for (let i = 0; i < numThreads; i++) {
    const { port1, port2 } = new MessageChannel()
    const workerData: CompilingThread = { kind, driverVersion, jobs: own, states, port: port2 }
    const worker = new Worker(new URL(place), { workerData, transferList: [port2], execArgv: [] })
    // What it had begun is compiled by who needs it.
    worker.on('error', () => {})
    worker.unref()
    port1.unref()
    ports.push(port1)
  }
  return fresh.length
}

function lengthOf({ input: { source } }: ImagePlan): number {
  return source.headers.reduce((sum, [, text]) => sum + text.length, source.text.length)
}

/** What a thread makes or has made of a plan; null where none does, or it failed: then the caller will see why. */
export function imageAhead({ path }: ImagePlan): Uint8Array | null {
  const job = jobs.get(path)
  if (job === undefined) return null
  jobs.delete(path)
  const { states, index } = job
  // A job that nobody has begun is the caller's.
  if (Atomics.compareExchange(states, index, WAITING, DONE) === WAITING) return null
  Atomics.wait(states, index, BEGUN, PATIENCE_MS)
  collect()
  const image = images.get(path) ?? null
  images.delete(path)
  return image
}

/** Messages of threads, which wait for turns of the event loop otherwise. */
function collect(): void {
  for (const port of ports)
    for (let got = receiveMessageOnPort(port); got !== undefined; got = receiveMessageOnPort(port)) {
      const { path, image } = got.message as Compiled // as compile-thread.ts posts it
      if (image !== null) images.set(path, image)
    }
}
