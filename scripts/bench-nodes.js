/**
 * What a gateway gives of 1, 2 and 4 nodes: starts them with the demo model on the CPU, lets so many chats stream through one
 * `skein gateway`, and prints tokens a second. All of it is on this machine, gateway, database and clients too: more nodes than
 * it has cores for show nothing.
 *
 *   node scripts/bench-nodes.js postgres://… BLOBS [--nodes 1,2,4] [--threads 1] [--streams 64] [--tokens 256] [MODEL]
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
const PORT = 8120
const GATEWAY = `http://127.0.0.1:${PORT}`

const text = (value) => ({ type: 'string', default: value })
const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    nodes: text('1,2,4'),
    threads: text('1'),
    streams: text('64'),
    tokens: text('256'),
  },
})
const [database, blobs, ...model] = positionals
const { threads, streams, tokens } = values

/** @param {string[]} args @param {'ignore' | 'pipe'} output */
function skein(args, output = 'ignore') {
  return spawn(process.execPath, [main, ...args], { stdio: ['ignore', output, 'inherit'] })
}

function startNode(index) {
  return skein([
    ...['serve', ...model, '--port', String(PORT + 1 + index), '--device', 'cpu'],
    ...['--threads', threads, '--slots', streams, '--log-level', 'warn'],
    ...['--cluster', database, '--blobs', blobs, '--node-name', `node${index}`],
  ])
}

async function untilAlive(count) {
  for (;;) {
    const reply = await fetch(`${GATEWAY}/api/cluster`).catch(() => null)
    if (reply?.ok && (await reply.json()).nodes.length === count) return
    await delay(200)
  }
}

/** @param {string} count @returns {Promise<any>} */
async function load(count) {
  const client = skein(
    [
      ...['bench', 'serve', '--url', GATEWAY, '--endpoint', 'chat', '--ignore-eos', '--json', '-'],
      ...['--num-prompts', count, '--concurrency', streams, '--input-len', '32'],
      ...['--range-ratio', '1', '--output-len', tokens],
    ],
    'pipe',
  )
  let said = ''
  client.stdout?.on('data', (part) => {
    said += part
  })
  const [code] = await once(client, 'close')
  if (code !== 0) throw new Error(`the load generator ended with ${code}: ${said.slice(0, 2000)}`)
  return JSON.parse(said.slice(said.indexOf('{')))
}

const running = []
const gateway = skein(['gateway', '--port', String(PORT), '--cluster', database])
try {
  console.log(
    `${availableParallelism()} cores; nodes of ${threads} threads; ${streams} chats of ${tokens} tokens at a time`,
  )
  console.log(
    '| nodes | tokens/s | to one node | first token median ms | between tokens median / p99 ms |',
  )
  console.log('|--:|--:|--:|--:|--:|')
  let first = null
  for (const count of values.nodes.split(',').map(Number)) {
    while (running.length < count) running.push(startNode(running.length))
    await untilAlive(count)
    await load(streams)
    const { summary } = await load(String(3 * Number(streams)))
    if (summary.numSucceeded !== summary.numRequests) throw new Error('a request failed')
    const { perSecond } = summary.outputTokens
    first ??= perSecond
    const { ttftMs, itlMs } = summary
    const cells = [
      ...[count, perSecond.toFixed(0), (perSecond / first).toFixed(2), ttftMs.median.toFixed(0)],
      `${itlMs.median.toFixed(1)} / ${itlMs.p99.toFixed(1)}`,
    ]
    console.log(`| ${cells.join(' | ')} |`)
  }
  console.log(`load of the machine ${loadavg()[0].toFixed(1)}`)
} finally {
  for (const process of [gateway, ...running]) process.kill('SIGKILL')
}
