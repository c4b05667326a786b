/** How long Linux's scheduler ran a server's threads, and how long they waited for a core (/proc/PID/schedstat). */
import { execFileSync } from 'node:child_process'
import { readdirSync, readFileSync } from 'node:fs'

/** Milliseconds that the gateway's loop, the worker's loop and all worker threads ran and waited so far; Linux only. */
export function schedulerOf(gateway) {
  if (process.platform !== 'linux') return () => ({})
  const worker = Number(execFileSync('pgrep', ['-P', String(gateway)], { encoding: 'utf8' }).split('\n')[0])
  const read = (path) => {
    const [ran, waited] = readFileSync(path, 'utf8')
      .split(' ')
      .map((ns) => Number(ns) / 1e6)
    return [ran, waited]
  }
  return () => {
    const [gatewayRan, gatewayWaited] = read(`/proc/${gateway}/schedstat`)
    const [loopRan, loopWaited] = read(`/proc/${worker}/schedstat`)
    const threads = readdirSync(`/proc/${worker}/task`).map((thread) =>
      read(`/proc/${worker}/task/${thread}/schedstat`),
    )
    const sum = (which) => threads.reduce((total, times) => total + times[which], 0)
    return { gatewayRan, gatewayWaited, loopRan, loopWaited, workerRan: sum(0), workerWaited: sum(1) }
  }
}
