/**
 * How much of the engine's speed arrives through HTTP: starts `skein serve` from dist, streams a number of chats at
 * once, and prints tokens per second, CPU time per token of gateway, workers and load generator, and the gateway's
 * event-loop delay. THREADS=1 adds the time of each thread of gateway and worker, while all stream and outside of that.
 *
 *   node scripts/through-http.js MODEL STREAMS [OUTPUT_TOKENS] [ENGINE_RATE] [serve's flags …]
 *
 * ENGINE_RATE: tokens per second of the engine alone (`skein bench engine`), for the ratio; 0 is unknown.
 */
import { readdirSync, readFileSync } from 'node:fs'
import { benchServe, childrenOf, cpuMs, startServer } from './server.mjs'

const [model = '', streams = '320', outputTokens = '512', engineRate = '0', ...flags] = process.argv.slice(2)

/** CPU microseconds of each thread, by its number and name, the main thread first. @param {number} pid */
function threadUs(pid) {
  /** @type {Map<string, number>} */
  const times = new Map()
  for (const [i, tid] of readdirSync(`/proc/${pid}/task`).entries()) {
    try {
      const name = readFileSync(`/proc/${pid}/task/${tid}/comm`, 'utf8').trim()
      const [ran = '0'] = readFileSync(`/proc/${pid}/task/${tid}/schedstat`, 'utf8').split(' ')
      times.set(`${i} ${name} +${Number(tid) - pid}`, Number(ran) / 1000)
    } catch {
      // It has ended.
    }
  }
  return times
}

/**
 * Of each thread: its time per token over all, and while all stream, which is taken from the second half of the time in
 * which the gateway works. @param {{ at: number, of: Map<string, number>[] }[]} looks @param {number} tokens @param {number} rate
 */
function printThreads(looks, tokens, rate) {
  const total = (/** @type {Map<string, number>} */ times) => [...times.values()].reduce((sum, us) => sum + us, 0)
  const busy = looks.filter(({ at, of: [now] }, i) => {
    const last = looks[i - 1]
    return last && total(now ?? new Map()) - total(last.of[0] ?? new Map()) > 100 * (at - last.at)
  })
  const [from, to] = [busy[Math.floor(busy.length * 0.4)], busy[Math.floor(busy.length * 0.9)]]
  const [first, last] = [looks[0], looks.at(-1)]
  if (!from || !to || !first || !last) return
  const steadyTokens = (rate * (to.at - from.at)) / 1000
  for (const [p, threads] of last.of.entries()) {
    console.log(`${p === 0 ? 'gateway' : 'worker'}, threads: us a token over all; while all stream`)
    for (const [thread, us] of threads) {
      const all = (us - (first.of[p]?.get(thread) ?? 0)) / tokens
      const steady = ((to.of[p]?.get(thread) ?? 0) - (from.of[p]?.get(thread) ?? 0)) / steadyTokens
      if (all > 0.02)
        console.log(`  ${thread.padEnd(32)} ${all.toFixed(2).padStart(6)} ${steady.toFixed(2).padStart(6)}`)
    }
  }
}

/** A figure of /metrics. @param {string} name */
async function metric(name) {
  const text = await (await fetch(`${server.url}/metrics`)).text()
  return Number(
    text
      .split('\n')
      .find((line) => line.startsWith(`${name} `))
      ?.split(' ')[1],
  )
}

/** @param {string} count @param {string} length @returns {Promise<any>} */
function load(count, length) {
  const words = [
    ...['--url', server.url, '--endpoint', 'chat', '--ignore-eos'],
    ...['--num-prompts', count, '--concurrency', streams, '--temperature', '1'],
    ...['--input-len', '16', '--range-ratio', '1', '--output-len', length],
  ]
  return benchServe(words, (pid) => {
    clientCpuMs = cpuMs(pid)
    onTick()
  })
}
let clientCpuMs = 0
let onTick = () => {}

const own = [model, '--slots', String(Number(streams) + 16), '--log-level', 'warn', '--no-store', ...flags]
const server = await startServer(own, { stderr: 'inherit' })
try {
  const gateway = server.pid
  const workers = childrenOf(gateway)
  const used = () => [cpuMs(gateway), workers.reduce((sum, worker) => sum + cpuMs(worker), 0)]
  await load(String(Math.ceil(Number(streams) / 4)), '32')
  /** @type {{ at: number, of: Map<string, number>[] }[]} */
  const looks = []
  if (process.env.THREADS !== undefined)
    onTick = () => looks.push({ at: performance.now(), of: [gateway, ...workers].map(threadUs) })
  const before = used()
  const { summary } = await load(streams, outputTokens)
  const after = used()
  const delayMs = 1000 * (await metric('nodejs_eventloop_lag_p99_seconds'))
  const tokens = summary.outputTokens.total
  // The rate while every stream runs, between the first and last token.
  const steady = (1000 * Number(streams)) / summary.tpotMs.mean
  const [gatewayUs, workerUs] = after.map((ms, i) => (1000 * (ms - (before[i] ?? 0))) / tokens)
  const rows = {
    streams,
    'output tokens each': outputTokens,
    succeeded: `${summary.numSucceeded} of ${summary.numRequests}`,
    'tokens/s from first request to last': summary.outputTokens.perSecond.toFixed(0),
    'tokens/s while all stream': steady.toFixed(0),
    'of the engine alone':
      Number(engineRate) > 0 ? `${((100 * steady) / Number(engineRate)).toFixed(1)} %` : 'not given',
    'gateway CPU, us a token': gatewayUs?.toFixed(1),
    "workers' CPU, us a token": workerUs?.toFixed(1),
    'load generator CPU, us a token': ((1000 * clientCpuMs) / tokens).toFixed(1),
    'event-loop delay of the gateway, p99 ms': delayMs.toFixed(1),
    'first token, median and p99 ms': `${summary.ttftMs.median.toFixed(0)}, ${summary.ttftMs.p99.toFixed(0)}`,
    'between tokens, median and p99 ms': `${summary.itlMs.median.toFixed(1)}, ${summary.itlMs.p99.toFixed(1)}`,
  }
  for (const [name, value] of Object.entries(rows)) console.log(`${name.padEnd(42)} ${value}`)
  if (looks.length > 0) printThreads(looks, tokens, steady)
} finally {
  await server.stop()
}
