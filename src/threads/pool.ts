/**
 * Runs work that grows with a client's input off the event loop, in a few threads that start on demand and end when
 * idle. It knows no task; each is a function of a module.
 */
import { availableParallelism } from 'node:os'
import { Piscina } from 'piscina'
import { SkeinError } from '../errors.ts'
import type { Outcome } from './task.ts'

/** One processor is left for the event loop. */
const MAX_THREADS = Math.max(1, Math.min(4, availableParallelism() - 1))
const IDLE_MS = 30_000
/** Heap of a thread; parsing the largest body takes a quarter of it. */
const MAX_HEAP_MB = 256
/** Threads that generate tokens have priority. */
const NICE = 5

let pool: Piscina | null = null

/** The task `name` of a module, found from a neighbour's `import.meta.url` and the module's file name. */
interface TaskPlace {
  readonly url: URL
  readonly name: string
}

/** From TypeScript sources the compiled module is used, because threads of old Node versions cannot run TypeScript. */
export function taskPlace(importer: string, file: string, name: string): TaskPlace {
  const url = new URL(file, importer)
  const isSource = importer.endsWith('.ts')
  return { name, url: isSource ? new URL(url.href.replace('/src/', '/dist/')) : url }
}

/** Runs a task; input and result are structured-cloned. Objects in `transfer` are moved and unusable afterwards. */
export async function runTask<In, Out>(
  { url, name }: TaskPlace,
  input: In,
  transfer: readonly ArrayBuffer[] = [],
): Promise<Out> {
  pool ??= new Piscina({
    minThreads: 0,
    maxThreads: MAX_THREADS,
    idleTimeout: IDLE_MS,
    niceIncrement: NICE,
    resourceLimits: { maxOldGenerationSizeMb: MAX_HEAP_MB },
  })
  // `task` wraps every task so that it returns this.
  const outcome: Outcome<Out> = await pool.run(input, { filename: url.href, name, transferList: [...transfer] })
  if ('error' in outcome) throw SkeinError.fromShape(outcome.error)
  return outcome.value
}
