/**
 * How soon a session continues from each tier: the time to the first token of its next turn while its state is on the
 * device, in memory or on disk, compared with a decode step and with reading the whole history again. The tier is
 * checked before each turn. Starts `skein serve` from dist with its data in a new folder, which it removes.
 *
 *   node scripts/bench-resume.js MODEL [--history 8192] [--rounds 40] [-- serve's flags …]
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { quantile, startServer } from './server.mjs'

const at = process.argv.indexOf('--')
const [own, flags] = at < 0 ? [process.argv.slice(2), []] : [process.argv.slice(2, at), process.argv.slice(at + 1)]
const { values, positionals } = parseArgs({
  args: own,
  allowPositionals: true,
  options: { history: { type: 'string', default: '8192' }, rounds: { type: 'string', default: '40' } },
})
const [model = ''] = positionals
const history = Number(values.history)
const rounds = Number(values.rounds)
/** Few, so that some other sessions push one down a tier. */
const SLOT_STATES = 2
const MEMORY_STATES = 4
const TIERS = ['device', 'memory', 'disk']
/** Sessions with a turn after it, so that it moves to the wanted tier. */
const PUSHERS = [0, SLOT_STATES + 1, SLOT_STATES + MEMORY_STATES + 2]
/** A cold read takes as long as the history. */
const COLD_ROUNDS = 5
const GREEDY = { temperature: 0, ignore_eos: true }

/** Token ids that differ from seed to seed. @param {number} count @param {number} seed */
function tokens(count, seed) {
  return Array.from({ length: count }, (_, i) => 1 + ((i * 7919 + seed * 104_729) % 250))
}

/** Milliseconds to the first token and to the last of a streamed answer. @param {object} body */
async function stream(body) {
  const began = performance.now()
  const reply = await fetch(`${server.url}/v1/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ stream: true, ...GREEDY, ...body }),
  })
  if (!reply.ok || reply.body === null) throw new Error(await reply.text())
  let first = 0
  let text = ''
  for await (const part of reply.body) {
    if (first === 0) first = performance.now() - began
    text += Buffer.from(part).toString()
  }
  if (text.includes('"error"')) throw new Error(text)
  return { first, whole: performance.now() - began }
}

/** @param {string} session_id @param {number} count @param {number} seed */
function turn(session_id, count, seed) {
  return stream({ prompt: tokens(count, seed), session_id, max_tokens: 2 })
}

/** The tier of a session's head, once it is saved and idle. @param {string} id @param {string} wanted */
async function whenIn(id, wanted) {
  for (let attempt = 0; attempt < 500; attempt++) {
    const reply = await fetch(`${server.url}/v1/sessions/${id}`)
    const { head, turns } = await reply.json()
    const { tier, saved } = turns.find((/** @type {any} */ one) => one.turn === head)
    if (tier === wanted && (saved || wanted !== 'disk')) return
    await new Promise((resolve) => setTimeout(resolve, 10))
  }
  throw new Error(`session ${id} did not come to ${wanted}`)
}

/** @param {string} name @param {number[]} times */
function report(name, times) {
  const figures = [0.5, 0.99].map((share) => quantile(times, share).toFixed(1).padStart(9))
  console.log(`${name.padEnd(34)} median ${figures[0]} ms   p99 ${figures[1]} ms`)
}

async function measure() {
  const long = await stream({ prompt: tokens(16, 1), max_tokens: 256 })
  report('a step of one stream', [(long.whole - long.first) / 255])
  const short = (/** @type {number} */ i) => stream({ prompt: tokens(16, i), max_tokens: 2, cache: 'no-store' })
  report('a prompt of 16 tokens, no session', await repeat(rounds, short))
  await turn('it', history, 1)
  for (const [i, tier] of TIERS.entries()) {
    const times = await repeat(rounds, async (round) => {
      for (let other = 0; other < (PUSHERS[i] ?? 0); other++) await turn(`other ${other}`, 8, round)
      await whenIn('it', tier)
      return turn('it', 16, round)
    })
    report(`next turn, state on ${tier}`, times)
  }
  const cold = (/** @type {number} */ i) =>
    stream({ prompt: tokens(history + 16, 100 + i), max_tokens: 2, cache: 'no-store' })
  report(`the same, ${history} tokens read again`, await repeat(COLD_ROUNDS, cold))
}

/** Times to the first token, one after the other. @param {number} count @param {(i: number) => Promise<{first: number}>} work */
async function repeat(count, work) {
  const times = []
  for (let i = 0; i < count; i++) times.push((await work(i)).first)
  return times
}

const data = mkdtempSync(join(tmpdir(), 'skein-bench-resume-'))
const words = [
  ...[model, '--data-dir', data, '--log-level', 'warn', '--prefix-cache-mb', '0'],
  ...['--slot-states', String(SLOT_STATES), '--memory-states', String(MEMORY_STATES), ...flags],
]
const server = await startServer(words, { stderr: 'inherit' })
try {
  await measure()
} finally {
  await server.stop()
  rmSync(data, { recursive: true })
}
