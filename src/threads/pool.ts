/**
 * Work that grows with what a client sent, off the event loop: a few threads of this process, which start when there is
 * something to do and end when there has been nothing for a while. It knows no task; each is a function of a file.
 */
import { availableParallelism } from 'node:os'
import { Piscina } from 'piscina'
import { SkeinError } from '../errors.ts'
import type { Outcome } from './task.ts'

/** A processor is left for the event loop. */
const MAX_THREADS = Math.max(1, Math.min(4, availableParallelism() - 1))
const IDLE_MS = 30_000
/** Of a thread's heap; the largest body that is read takes a quarter of it. */
const MAX_HEAP_MB = 256
/** Threads that answer tokens go first. */
const NICE = 5

let pool: Piscina | null = null

/** The task `name` of a file, as `import.meta.url` of its neighbour and its own name find it. */
interface TaskPlace {
  readonly url: URL
  readonly name: string
}

/** Those of a source that is run as it is are in what was built of it: threads of old versions of Node run no TypeScript. */
export function taskPlace(importer: string, file: string, name: string): TaskPlace {
  const url = new URL(file, importer)
  const isSource = importer.endsWith('.ts')
  return { name, url: isSource ? new URL(url.href.replace('/src/', '/dist/')) : url }
}

/** What a task makes of its input, both as messages carry them. What is in `transfer` is no longer here afterwards. */
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
  // Tasks are made by `task`, which gives this.
  const outcome: Outcome<Out> = await pool.run(input, {
    filename: url.href,
    name,
    transferList: [...transfer],
  })
  if ('error' in outcome) throw SkeinError.fromShape(outcome.error)
  return outcome.value
}
