/**
 * A server under mixed load: prompts are read while answers are generated. Starts `skein serve` from dist, sends one
 * load after the other with `skein bench serve` (random prompts of up to 512 tokens, answers of up to 256), and prints
 * a table.
 *
 *   node scripts/bench-load.js MODEL LOADS [serve's flags …]
 *
 * LOADS are separated by commas: 64/s:1200 is 1,200 requests at 64 per second, 320:960 is 960 with 320 in flight at
 * once.
 */
import { benchServe, startServer } from './server.mjs'

const [model = '', loads = '4/s:120,320:960', ...flags] = process.argv.slice(2)

/**
 * Each load has prompts of its own, by its seed, so that none is kept from the load before.
 * @param {string} load @param {number} seed @returns {Promise<any>}
 */
function send(load, seed) {
  const [, number = '', perSecond, count = ''] = /^(\d+)(\/s)?:(\d+)$/.exec(load) ?? []
  if (number === '') throw new Error(`a load is like 64/s:1200 or 320:960, not "${load}"`)
  const pace = perSecond ? ['--request-rate', number] : ['--concurrency', number]
  const words = [
    ...['--url', server.url, '--ignore-eos', ...pace],
    ...['--num-prompts', count, '--input-len', '512', '--output-len', '256', '--seed', String(seed)],
  ]
  return benchServe(words)
}

/** @param {{ median: number, p90: number, p99: number }} times */
function times({ median, p90, p99 }) {
  return [median, p90, p99].map((ms) => ms.toFixed(1)).join(' / ')
}

const server = await startServer([model, '--log-level', 'warn', '--no-store', ...flags], { stderr: 'inherit' })
try {
  // The first step of each shape is launched kernel by kernel.
  await send('32:96', 1)
  console.log('| load | ok | req/s | out tok/s | TTFT median / p90 / p99 ms | ITL median / p90 / p99 ms |')
  for (const [i, load] of loads.split(',').entries()) {
    const { summary } = await send(load, 100 + i)
    const { numSucceeded, numRequests, requestsPerSecond, outputTokens, ttftMs, itlMs } = summary
    const cells = [
      ...[load, `${numSucceeded}/${numRequests}`, requestsPerSecond.toFixed(1)],
      ...[outputTokens.perSecond.toFixed(0), times(ttftMs), times(itlMs)],
    ]
    console.log(`| ${cells.join(' | ')} |`)
  }
} finally {
  await server.stop()
}
