/**
 * The priority of the threads that every process of Node has beside its event loop: V8's for garbage and compiled code,
 * which start with the loop's own. Where cores are few they would take the loop's.
 */
import { readdirSync, readFileSync } from 'node:fs'
import { constants, getPriority, setPriority } from 'node:os'

/** Added to the process's own. */
const HELPER_NICE = 10
const LEAST_PRIORITY = constants.priority.PRIORITY_LOW
/**
 * V8's four and the one for delayed tasks, which start first. Those that read files and hash follow them; they work for
 * requests. Only newer versions of Node name these.
 */
const NUM_HELPERS = 5
const KEPT = 'libuv-worker'

/** To be called before the process starts threads of its own. Linux has a priority per thread; elsewhere nothing changes. */
export function lowerHelpers(): void {
  if (process.platform !== 'linux') return
  try {
    const priority = Math.min(LEAST_PRIORITY, getPriority() + HELPER_NICE)
    const threads = readdirSync('/proc/self/task').map(Number)
    const others = threads.filter((thread) => thread !== process.pid).sort((a, b) => a - b)
    for (const thread of others.slice(0, NUM_HELPERS)) {
      const name = readFileSync(`/proc/self/task/${thread}/comm`, 'utf8').trim()
      if (name !== KEPT) setPriority(thread, priority)
    }
  } catch {
    // A thread has ended, or the system does not allow it: the threads keep the priority that they have.
  }
}
