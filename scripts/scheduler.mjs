/** How long Linux's scheduler ran a server's threads, and how long they waited for a core (/proc/PID/schedstat). */
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { childrenOf } from './server.mjs'

/**
 * Milliseconds that the gateway's loop, its other threads, the worker's loop and all worker threads ran and waited so far;
 * Linux only.
 */
export function schedulerOf(gateway) {
  if (process.platform !== 'linux') return () => ({})
  const [worker] = childrenOf(gateway)
  const read = (path) => {
    // A thread may have ended since it was listed.
    if (!existsSync(path)) return [0, 0]
    const [ran, waited] = readFileSync(path, 'utf8')
      .split(' ')
      .map((ns) => Number(ns) / 1e6)
    return [ran, waited]
  }
  return () => {
    const [gatewayRan, gatewayWaited] = read(`/proc/${gateway}/schedstat`)
    const [loopRan, loopWaited] = read(`/proc/${worker}/schedstat`)
    const sumOf = (pid) => {
      const threads = readdirSync(`/proc/${pid}/task`).map((thread) => read(`/proc/${pid}/task/${thread}/schedstat`))
      return [0, 1].map((which) => threads.reduce((total, times) => total + times[which], 0))
    }
    const [allRan, allWaited] = sumOf(gateway)
    const [workerRan, workerWaited] = sumOf(worker)
    const others = { othersRan: allRan - gatewayRan, othersWaited: allWaited - gatewayWaited }
    return { gatewayRan, gatewayWaited, ...others, loopRan, loopWaited, workerRan, workerWaited }
  }
}
