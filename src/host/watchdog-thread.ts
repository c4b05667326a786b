/** Entry of the thread that watches the event loop of its process: see watchdog.ts. */
import { writeSync } from 'node:fs'
import { url as debuggerUrl, type Profiler, Session } from 'node:inspector'
import { setTimeout as delay } from 'node:timers/promises'
import { workerData } from 'node:worker_threads'

export interface Watched {
  /** i32 [1]: how often the event loop has turned since it was watched. */
  readonly beats: Int32Array
  readonly everyMs: number
  readonly mostMissed: number
}

/** How long the profiler looks, and how long the process may take to tell what it saw. */
const LOOK_MS = 500
const TELL_MS = 2000
const MAX_FRAMES = 12

const { beats, everyMs, mostMissed } = workerData as Watched // given by watchdog.ts

let last = 0
// Times and not moments: a process that was stopped for a while misses none.
for (let missed = 0; missed < mostMissed; missed++) {
  await delay(everyMs)
  const now = Atomics.load(beats, 0)
  // Nothing is expected before the first, nor while somebody looks at it with a debugger.
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
    // Nobody reads it.
  }
}

/** Where the other thread is: the profiler, unlike a debugger, sees it inside of a single statement, too. */
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

/** The path to where it was most of the time, innermost first. */
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
