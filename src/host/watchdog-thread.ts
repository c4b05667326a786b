/** Entry of the thread that watches its process's event loop: see watchdog.ts. */
import { writeSync } from 'node:fs'
import { url as debuggerUrl, type Profiler, Session } from 'node:inspector'
import { setTimeout as delay } from 'node:timers/promises'
import { workerData } from 'node:worker_threads'

export interface Watched {
  /** i32 [1]: turns of the event loop since it is watched. */
  readonly beats: Int32Array
  readonly everyMs: number
  readonly mostMissed: number
}

/** Time that the profiler samples, and time that it gets to report. */
const LOOK_MS = 500
const TELL_MS = 2000
const MAX_FRAMES = 12

const { beats, everyMs, mostMissed } = workerData as Watched // given by watchdog.ts

let last = 0
// Counts intervals instead of measuring time, so that a process that was suspended misses none.
for (let missed = 0; missed < mostMissed; missed++) {
  await delay(everyMs)
  const now = Atomics.load(beats, 0)
  // No beat is expected before the first one, or while a debugger is attached.
  if (now !== last || now === 0 || debuggerUrl() !== undefined) missed = -1
  last = now
}
const seconds = Math.round((everyMs * mostMissed) / 1000)
say(`skein: the event loop has stood still for ${seconds} s; the process ends\n`)
for (const frame of await framesOf()) say(`    at ${frame}\n`)
process.kill(process.pid, 'SIGKILL')

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
