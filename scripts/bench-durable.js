/**
 * What durable turns cost: parallel sessions, each with one turn of eight tokens after the other, with states written
 * behind and with `--durable`, in turn. Uses the built files with the demo model on a CPU; the store is in the
 * temporary folder.
 *
 *   node scripts/bench-durable.js [seconds] [sessions, …]
 */
import { spawn } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

const [seconds = 5, ...sizes] = process.argv.slice(2).map(Number)
const MAIN = fileURLToPath(new URL('../dist/cli/main.js', import.meta.url))
const cores = process.env.SERVER_CORES

/** @param {number} port @param {string} session_id @param {number} round */
async function turn(port, session_id, round) {
  const began = performance.now()
  const reply = await fetch(`http://127.0.0.1:${port}/v1/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({
      prompt: [1 + (round % 200), 2, 3],
      max_tokens: 8,
      ignore_eos: true,
      session_id,
    }),
  })
  if (!reply.ok) throw new Error(await reply.text())
  await reply.text()
  return performance.now() - began
}

/** @param {number} sessions @param {string[]} flags */
async function measure(sessions, flags) {
  const data = mkdtempSync(join(tmpdir(), 'skein-bench-durable-'))
  const own = ['serve', '--port', '0', '--device', 'cpu', '--data-dir', data, ...flags]
  const pinned = cores === undefined ? [] : ['taskset', '-c', cores]
  const [command = '', ...rest] = [...pinned, process.execPath, MAIN, ...own]
  const server = spawn(command, rest, { stdio: ['ignore', 'pipe', 'ignore'] })
  let text = ''
  for await (const bytes of server.stdout) {
    text += bytes
    if (/http:\/\/[^\s]+:\d+/.test(text)) break
  }
  const port = Number(/http:\/\/[^\s]+:(\d+)/.exec(text)?.[1])
  try {
    for (let i = 0; i < 40; i++) await turn(port, 'first', i)
    const end = performance.now() + seconds * 1000
    /** @type {number[]} */
    const times = []
    const client = async (/** @type {number} */ i) => {
      for (let round = 0; performance.now() < end; round++) times.push(await turn(port, `s${i}`, round))
    }
    await Promise.all(Array.from({ length: sessions }, (_, i) => client(i)))
    const sorted = times.toSorted((a, b) => a - b)
    const [median = 0, p99 = 0] = [0.5, 0.99].map((part) => sorted[Math.floor(part * sorted.length)])
    return {
      sessions,
      flags: flags.join(' '),
      'turns/s': Math.round(times.length / seconds),
      median: +median.toFixed(1),
      p99: +p99.toFixed(1),
    }
  } finally {
    server.kill('SIGKILL')
    await new Promise((resolve) => server.once('exit', resolve))
    rmSync(data, { recursive: true, force: true })
  }
}

const rows = []
for (const sessions of sizes.length > 0 ? sizes : [1, 8, 32])
  for (let round = 0; round < 2; round++)
    for (const flags of [[], ['--durable']]) rows.push(await measure(sessions, flags))
console.table(rows)
