/**
 * Compares reading a shared prompt prefix with fetching the state that another node has made from it. Starts two nodes
 * of a cluster on this machine.
 *
 *   node scripts/bench-prefixes.js MODEL postgres://… file:///… [--lengths 256,1024,4096] [--rounds 5] [-- serve's flags …]
 *
 * Needs a build and an empty database.
 */
import { spawn } from 'node:child_process'
import { setTimeout as delay } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'

const main = fileURLToPath(new URL('../dist/cli/main.js', import.meta.url))
const PORT = 8130
const urlOf = (node) => `http://127.0.0.1:${PORT + node}`
/** Requests that cause a prefix to be published: the second and third meet where the first two differ. */
const ASKED = 5

const at = process.argv.indexOf('--')
const flags = at < 0 ? [] : process.argv.slice(at + 1)
const text = (value) => ({ type: 'string', default: value })
const { values, positionals } = parseArgs({
  args: process.argv.slice(2, at < 0 ? undefined : at),
  allowPositionals: true,
  options: { lengths: text('256,1024,4096'), rounds: text('5') },
})
const [model, database, blobs] = positionals
const rounds = Number(values.rounds)

function startNode(node) {
  const own = ['--port', String(PORT + node), '--node-name', `node${node}`, '--log-level', 'warn']
  const cluster = ['--cluster', database, '--blobs', blobs]
  return spawn(process.execPath, [main, 'serve', model, ...own, ...cluster, ...flags], {
    stdio: ['ignore', 'ignore', 'inherit'],
  })
}

/** Milliseconds to the first token, and the number of prompt tokens that were not read. */
async function ask(node, length, beginning, last) {
  const prompt = Array.from({ length }, (_, i) => 1 + ((i * 37 + beginning * 101) % 250))
  const began = performance.now()
  const reply = await fetch(`${urlOf(node)}/v1/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ prompt: [...prompt, 1 + last, 7], max_tokens: 1, temperature: 0 }),
  })
  const { usage, error } = await reply.json()
  if (!reply.ok) throw new Error(`${reply.status}: ${error?.message}`)
  return {
    ms: performance.now() - began,
    cached: usage.prompt_tokens_details.cached_tokens,
  }
}

async function published(node) {
  const figures = await (await fetch(`${urlOf(node)}/metrics`)).text()
  return Number(/^skein_prefixes_published(?:_total)?(?:{[^}]*})? (\S+)$/m.exec(figures)?.[1])
}

const median = (all) => all.toSorted((a, b) => a - b)[Math.floor(all.length / 2)] ?? Number.NaN
const nodes = [0, 1].map(startNode)
try {
  for (const node of [0, 1]) while (!(await fetch(`${urlOf(node)}/readyz`).catch(() => null))?.ok) await delay(200)
  console.log('| tokens | read, ms | fetched, ms | not read of them | fetched in |\n|--:|--:|--:|--:|--:|')
  let beginning = 0
  for (const length of values.lengths.split(',').map(Number)) {
    const [read, fetched, spared] = [[], [], []]
    for (let round = 0; round < rounds; round++) {
      read.push((await ask(1, length, ++beginning, 0)).ms)
      const before = await published(0)
      beginning++
      for (let last = 0; last < ASKED; last++) await ask(0, length, beginning, last)
      for (let i = 0; i < 50 && (await published(0)) === before; i++) await delay(100)
      const { ms, cached } = await ask(1, length, beginning, 100)
      spared.push(cached)
      if (cached > 0) fetched.push(ms)
    }
    const cells = [median(read).toFixed(0), median(fetched).toFixed(0), median(spared)]
    console.log(`| ${length} | ${cells.join(' | ')} | ${fetched.length} of ${rounds} |`)
  }
} finally {
  for (const node of nodes) node.kill('SIGKILL')
}
