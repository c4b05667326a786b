/**
 * Throughput of 1, 2 and 4 nodes: starts them with the demo model on the CPU, streams chats through one or more `skein
 * gateway`, each with its own client, and prints tokens per second. Everything runs on this machine, so more nodes than
 * it has cores for show nothing.
 *
 *   node scripts/bench-nodes.js postgres://… BLOBS [--nodes 1,2,4] [--gateways 1] [--threads 1] [--streams 64] [--tokens 256] [MODEL]
 *
 * Needs a build and an empty database.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { availableParallelism, loadavg } from 'node:os'
import { setTimeout as delay } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'

const main = fileURLToPath(new URL('../dist/cli/main.js', import.meta.url))
/** The first node's; the gateways' follow 100 later. */
const PORT = 8120
const urlOf = (gateway) => `http://127.0.0.1:${PORT + 100 + gateway}`

const text = (value) => ({ type: 'string', default: value })
const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    nodes: text('1,2,4'),
    gateways: text('1'),
    threads: text('1'),
    streams: text('64'),
    tokens: text('256'),
  },
})
const [database, blobs, ...model] = positionals
const { threads, streams, tokens } = values
const gateways = Array.from({ length: Number(values.gateways) }, (_, i) => i)
const streamsOfEach = Math.ceil(Number(streams) / gateways.length)

const QUIET = ['--log-level', 'warn']

/** @param {string[]} args @param {'ignore' | 'pipe'} output */
function skein(args, output = 'ignore') {
  return spawn(process.execPath, [main, ...args], { stdio: ['ignore', output, 'inherit'] })
}

function startNode(index) {
  return skein([
    ...['serve', ...model, '--port', String(PORT + index), '--device', 'cpu'],
    ...['--threads', threads, '--slots', streams, ...QUIET],
    ...['--cluster', database, '--blobs', blobs, '--node-name', `node${index}`],
  ])
}

async function untilAlive(gateway, count) {
  for (;;) {
    const reply = await fetch(`${urlOf(gateway)}/api/cluster`).catch(() => null)
    if (reply?.ok && (await reply.json()).nodes.length === count) return
    await delay(200)
  }
}

/** @param {number} gateway @param {number} count @returns {Promise<any>} */
async function loadOne(gateway, count) {
  const client = skein(
    [
      ...['bench', 'serve', '--url', urlOf(gateway), '--endpoint', 'chat', '--ignore-eos'],
      ...['--num-prompts', String(count), '--concurrency', String(streamsOfEach), '--json', '-'],
      ...['--input-len', '32', '--range-ratio', '1', '--output-len', tokens],
    ],
    'pipe',
  )
  let said = ''
  client.stdout?.on('data', (part) => {
    said += part
  })
  const [code] = await once(client, 'close')
  if (code !== 0) throw new Error(`the load generator ended with ${code}: ${said.slice(0, 2000)}`)
  const { summary } = JSON.parse(said.slice(said.indexOf('{')))
  if (summary.numSucceeded !== summary.numRequests) throw new Error('a request failed')
  return summary
}

/** For all gateways at once: sums, and the times of the slowest. */
async function load(countOfEach) {
  const all = await Promise.all(gateways.map((gateway) => loadOne(gateway, countOfEach)))
  const slowest = (of) => Math.max(...all.map(of))
  return {
    perSecond: all.reduce((sum, { outputTokens }) => sum + outputTokens.perSecond, 0),
    firstMs: slowest(({ ttftMs }) => ttftMs.median),
    betweenMs: slowest(({ itlMs }) => itlMs.median),
    p99Ms: slowest(({ itlMs }) => itlMs.p99),
  }
}

const running = []
const gatewayProcesses = []
try {
  for (const gateway of gateways) {
    const { port } = new URL(urlOf(gateway))
    gatewayProcesses.push(skein([...['gateway', '--port', port, '--cluster', database], ...QUIET]))
  }
  console.log(
    `${availableParallelism()} cores; ${gateways.length} gateways; nodes of ${threads} threads; ${streams} chats of ${tokens} tokens at a time`,
  )
  console.log('| nodes | tokens/s | to one node | first token median ms | between tokens median / p99 ms |')
  console.log('|--:|--:|--:|--:|--:|')
  let first = null
  for (const count of values.nodes.split(',').map(Number)) {
    while (running.length < count) running.push(startNode(running.length))
    for (const gateway of gateways) await untilAlive(gateway, count)
    await load(streamsOfEach)
    const { perSecond, firstMs, betweenMs, p99Ms } = await load(3 * streamsOfEach)
    first ??= perSecond
    const cells = [
      ...[count, perSecond.toFixed(0), (perSecond / first).toFixed(2), firstMs.toFixed(0)],
      `${betweenMs.toFixed(1)} / ${p99Ms.toFixed(1)}`,
    ]
    console.log(`| ${cells.join(' | ')} |`)
  }
  console.log(`load of the machine ${loadavg()[0].toFixed(1)}`)
} finally {
  for (const process of [...gatewayProcesses, ...running]) process.kill('SIGKILL')
}
