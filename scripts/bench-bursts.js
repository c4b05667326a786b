/**
 * How soon each of many chats that start at the same moment gets its first token: starts `skein serve` from dist, sends
 * bursts of chats, each on a connection of its own, and prints when first tokens came and how long streams paused. The
 * client does little more than read, so that its time is not measured; those of serve and its worker are printed.
 *
 *   node scripts/bench-bursts.js MODEL [STREAMS] [BURSTS] [OUTPUT_TOKENS] [serve's flags …]
 *
 * MAIN: another dist/cli/main.js, for a comparison with the same client.
 */
import { connect } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import { childrenOf, cpuMs, MAIN, quantile, startServer } from './server.mjs'

const [model = '', streams = '320', bursts = '8', outputTokens = '64', ...flags] = process.argv.slice(2)
/** After the start, and between two bursts. */
const REST_MS = 2000
const PAUSE_MS = 500
const PROMPT_WORDS = 14
const WORDS = 'time person year way day thing man world life hand part child eye woman place work week case'.split(' ')
/** What the text of an event follows; an empty one is no token. */
const MARK = Buffer.from('"content":"')
const QUOTE = 34

/** A request as bytes. No two prompts are alike, so none is known. @param {string} name */
function requestOf(name) {
  const content = Array.from({ length: PROMPT_WORDS }, () => WORDS[Math.floor(Math.random() * WORDS.length)]).join(' ')
  const body = JSON.stringify({
    model: name,
    stream: true,
    messages: [{ role: 'user', content }],
    max_tokens: Number(outputTokens),
    ignore_eos: true,
  })
  const head = 'POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n'
  return Buffer.from(`${head}connection: close\r\ncontent-length: ${Buffer.byteLength(body)}\r\n\r\n${body}`)
}

/** @param {Buffer} part */
function hasText(part) {
  for (let at = part.indexOf(MARK); at !== -1; at = part.indexOf(MARK, at + 1))
    if (part[at + MARK.length] !== QUOTE) return true
  return false
}

/**
 * Times since `began`, in milliseconds. @param {Buffer} request @param {number} began
 * @returns {Promise<{ first: number, last: number, gaps: number[] }>}
 */
function chat(request, began) {
  return new Promise((resolve, reject) => {
    const socket = connect(server.port, '127.0.0.1')
    socket.write(request)
    /** @type {number[]} */
    const gaps = []
    let first = Number.NaN
    let last = 0
    socket.on('data', (part) => {
      const now = performance.now() - began
      if (!Number.isNaN(first)) gaps.push(now - last)
      else if (hasText(part)) first = now
      last = now
    })
    socket.on('error', reject)
    socket.on('close', () => resolve({ first, last, gaps }))
  })
}

const own = [model, '--slots', String(Number(streams) + 16), '--log-level', 'warn', '--no-store', ...flags]
const server = await startServer(own, { main: process.env.MAIN ?? MAIN, stderr: 'inherit' })
try {
  await delay(REST_MS)
  const { data } = await (await fetch(`${server.url}/v1/models`)).json()
  const used = () => [server.pid, ...childrenOf(server.pid)].map(cpuMs)
  /** @type {number[][]} */
  const rows = []
  console.log(
    'burst: first token of 5 %, half, 99 %; gaps of half, 99 %; the last token; CPU of gateway and worker, ms',
  )
  for (let burst = 0; burst < Number(bursts); burst++) {
    const requests = Array.from({ length: Number(streams) }, () => requestOf(data[0].id))
    const before = used()
    const began = performance.now()
    const chats = await Promise.all(requests.map((request) => chat(request, began)))
    const cpu = used().map((ms, i) => ms - (before[i] ?? 0))
    const firsts = chats.map(({ first }) => first)
    if (firsts.some(Number.isNaN)) throw new Error('a chat had no token')
    const gaps = chats.flatMap((one) => one.gaps)
    const last = Math.max(...chats.map((one) => one.last))
    const row = [quantile(firsts, 0.05), quantile(firsts, 0.5), quantile(firsts, 0.99)]
    rows.push([...row, quantile(gaps, 0.5), quantile(gaps, 0.99), last, ...cpu])
    console.log(
      `${burst}: ${rows
        .at(-1)
        ?.map((ms) => ms.toFixed(0))
        .join(', ')}`,
    )
    await delay(PAUSE_MS)
  }
  const medians = rows[0]?.map((_, i) =>
    quantile(
      rows.slice(1).map((row) => row[i] ?? Number.NaN),
      0.5,
    ).toFixed(0),
  )
  console.log(`medians of all but the first: ${medians?.join(', ')}`)
} finally {
  await server.stop()
}
