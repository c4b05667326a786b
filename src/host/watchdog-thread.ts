/** Entry of the thread that watches its process's event loop: see watchdog.ts. */
import { readFileSync, writeSync } from 'node:fs'
import { url as debuggerUrl, type Profiler, Session } from 'node:inspector'
import { setTimeout as delay } from 'node:timers/promises'
import { workerData } from 'node:worker_threads'
import { openLibrary } from '../backend/ffi.ts'

export interface Watched {
  /** i32 [1]: turns of the event loop since it is watched. */
  readonly beats: Int32Array
  /** As in threads/work-done.ts. */
  readonly workDone: Int32Array
  /** Paths of libraries of kernels, which count their own work. */
  readonly libraries: readonly string[]
  readonly everyMs: number
  readonly hangMs: number
}

/** Time that the profiler samples, and time that it gets to report. */
const LOOK_MS = 500
const TELL_MS = 2000
const MAX_FRAMES = 12
/** While the loop waits for a core it does not hang; yet so much of that time counts, for machines that are always full. */
const LEAST_SHARE = 0.25
/** A call that is known to take long may take so many times as long as others. */
const LONG_CALL = 20

const { beats, workDone, libraries, everyMs, hangMs } = workerData as Watched // given by watchdog.ts
const progressOf = libraries
  .map(openLibrary)
  .filter((library) => library.has('sk_progress'))
  .map((library) => library.bind<() => number>('sk_progress', 'uint32', []))

let last = ''
let waited = waitedMs()
let missedMs = 0
let hungMs = 0
// Counts intervals instead of measuring time, so that a process that was suspended misses none.
while (hungMs < hangMs) {
  await delay(everyMs)
  const [turns, pieces, longCalls] = [Atomics.load(beats, 0), Atomics.load(workDone, 0), Atomics.load(workDone, 1)]
  const now = [turns, pieces, ...progressOf.map((progress) => progress())].join()
  const waitedNow = waitedMs()
  // No beat is expected before the first one, or while a debugger is attached.
  if (now !== last || turns === 0 || debuggerUrl() !== undefined) missedMs = hungMs = 0
  else {
    missedMs += everyMs
    const hadCoreMs = Math.max(everyMs * LEAST_SHARE, everyMs - (waitedNow - waited))
    hungMs += hadCoreMs / (longCalls > 0 ? LONG_CALL : 1)
  }
  last = now
  waited = waitedNow
}
say(`skein: the event loop has stood still for ${Math.round(missedMs / 1000)} s; the process ends\n`)
for (const frame of await framesOf()) say(`    at ${frame}\n`)
process.kill(process.pid, 'SIGKILL')

/** How long the event loop's thread has been ready to run without a core, where the system says so. */
function waitedMs(): number {
  try {
    return Number(readFileSync(`/proc/self/task/${process.pid}/schedstat`, 'latin1').split(' ')[1]) / 1e6
  } catch {
    return 0
  }
}

function say(text: string): void {
  try {
    writeSync(2, text)
  } catch {
    // Nobody reads stderr.
  }
}

/** Where the main thread is. Unlike a debugger, the profiler also sees inside a single statement. */
async function framesOf(): Promise<readonly string[]> {
  try {
    const session = new Session()
    session.connectToMainThread()
    session.post('Profiler.enable')
    session.post('Profiler.start')
    await delay(LOOK_MS)
    const told = new Promise<readonly string[]>((resolve) => {
      session.post('Profiler.stop', (_error, { profile }) => resolve(heaviest(profile)))
    })
    return await Promise.race([told, delay(TELL_MS, ['(it does not tell where)'])])
  } catch (error) {
    return [`(it cannot be asked: ${String(error)})`]
  }
}

/** The most sampled call path, innermost frame first. */
function heaviest({ nodes }: Profiler.Profile): readonly string[] {
  const parents = new Map(nodes.flatMap((node) => (node.children ?? []).map((child) => [child, node] as const)))
  const hits = ({ hitCount = 0 }: Profiler.ProfileNode) => hitCount
  let node = nodes.toSorted((a, b) => hits(b) - hits(a))[0]
  const frames: string[] = []
  for (; node !== undefined && frames.length < MAX_FRAMES; node = parents.get(node.id)) {
    const { functionName, url, lineNumber } = node.callFrame
    frames.push(`${functionName || '(anonymous)'} ${url}:${lineNumber + 1}`)
  }
  return frames
}
