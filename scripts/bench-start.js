/**
 * How long a server takes from its start to its first token, on a new machine (empty cache folders, the driver's and the
 * compiler's too) and the second time, with its output and when each line came. Needs dist.
 *
 *   node scripts/bench-start.js MODEL [serve's flags …]
 *
 * SKEIN_START_TIMES (2): the number of starts; the first is cold.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

const [model = '', ...flags] = process.argv.slice(2)
const main = fileURLToPath(new URL('../dist/cli/main.js', import.meta.url))
const PORT = 8113
const BASE = `http://127.0.0.1:${PORT}`
const { SKEIN_START_TIMES: times = '2', ...environment } = process.env
const cache = mkdtempSync(join(tmpdir(), 'skein-start-'))

/** @param {string} path @param {RequestInit} [init] */
async function replies(path, init) {
  const reply = await fetch(`${BASE}${path}`, init).catch(() => null)
  await reply?.arrayBuffer()
  return reply?.ok === true
}

/** @param {() => Promise<boolean>} isSo */
async function until(isSo) {
  while (!(await isSo())) await new Promise((resolve) => setTimeout(resolve, 50))
}

async function start() {
  const began = performance.now()
  const seconds = () => ((performance.now() - began) / 1000).toFixed(2)
  const words = ['serve', model, '--port', String(PORT), '--no-store', ...flags]
  const env = { ...environment, XDG_CACHE_HOME: cache, CUDA_CACHE_PATH: join(cache, 'cuda') }
  const server = spawn(process.execPath, [main, ...words], { env })
  for (const stream of [server.stdout, server.stderr])
    stream.on('data', (text) => {
      for (const line of String(text)
        .trim()
        .split('\n')
        .filter((one) => !one.includes('reqId')))
        console.log(`  ${seconds()} ${line.slice(0, 150)}`)
    })
  const closed = once(server, 'close')
  const isOver = () => server.exitCode !== null
  await until(async () => isOver() || (await replies('/livez')))
  const listening = seconds()
  await until(async () => isOver() || (await replies('/readyz')))
  const ready = seconds()
  const body = JSON.stringify({ prompt: 'Hi', max_tokens: 1 })
  const headers = { 'content-type': 'application/json' }
  const isAnswered = await replies('/v1/completions', { method: 'POST', headers, body })
  const first = isAnswered ? seconds() : 'none'
  server.kill('SIGINT')
  await closed
  return { listening, ready, first }
}

const rows = []
for (let i = 0; i < Number(times); i++) rows.push(await start())
rmSync(cache, { recursive: true })
console.log('| start | listening, s | ready, s | first token, s |\n|---|--:|--:|--:|')
for (const [i, { listening, ready, first }] of rows.entries())
  console.log(`| ${i === 0 ? 'cold' : 'warm'} | ${listening} | ${ready} | ${first} |`)
