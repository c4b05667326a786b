#!/usr/bin/env node
/**
 * Runs a server under faults of every kind, by a seed: `node scripts/chaos.mjs [seconds] [seed]`. Clients send requests
 * all the time. It checks that no acknowledged turn of a session is lost, no answer becomes a turn twice, every whole
 * answer is that of a quiet server, and the server recovers. Needs Linux and dist/. On a violation it prints a list and
 * exits with 1.
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { seededRandom } from '../dist/bench/serve/random.js'
import { question } from './questions.mjs'
import { childrenOf, freePort, startServer, whenReady } from './server.mjs'

const seconds = Number(process.argv[2] ?? 120)
const seed = Number(process.argv[3] ?? Date.now() % 1_000_000)
/** Breaks what must hold on purpose; the run must report it. */
const isSabotage = process.env.CHAOS_SABOTAGE === '1'
const folder = mkdtempSync(join(tmpdir(), 'skein-chaos-'))
const port = await freePort()
const url = `http://127.0.0.1:${port}`
const broken = []
const counts = { answers: 0, turns: 0, unanswered: {}, faults: {} }
/** Every process of the server never turns its event loop again after this signal. */
const SPINS = '--import=data:text/javascript,process.on(%22SIGUSR2%22,()=>{for(;;);})'
let server = null
let isOver = false

async function start() {
  server = await startServer(['--data-dir', folder, '--durable'], { port, env: { NODE_OPTIONS: SPINS } })
}

function workers() {
  try {
    return childrenOf(server.pid)
  } catch {
    return []
  }
}

function signal(pid, name) {
  try {
    process.kill(pid, name)
  } catch {
    // It has exited by itself.
  }
}

function count(how) {
  counts.unanswered[how] = (counts.unanswered[how] ?? 0) + 1
}

/** The parsed reply; null unless it is complete with status 200. */
async function post(path, body, abort) {
  try {
    const reply = await fetch(url + path, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: typeof body === 'string' ? body : JSON.stringify(body),
      signal: abort,
    })
    const read = await reply.json()
    if (reply.status === 200 && read.error === undefined) return read
    count(reply.status)
  } catch (error) {
    count(error.name === 'TimeoutError' ? 'left' : 'no reply')
  }
  return null
}

const QUESTIONS = 40
const right = []

async function checkAnswer(number, abort) {
  const reply = await post('/v1/completions', question(number), abort)
  if (reply === null) return false
  counts.answers++
  const { text } = reply.choices[0]
  if (right[number] !== undefined && text !== right[number])
    broken.push(`question ${number} has another answer than on a quiet server`)
  right[number] ??= text
  return true
}

async function client(index) {
  const random = seededRandom(seed + 1000 + index)
  while (!isOver) {
    const leaves = random() < 0.2
    const abort = leaves ? AbortSignal.timeout(Math.floor(random() * 300)) : undefined
    if (await checkAnswer(Math.floor(random() * QUESTIONS), abort)) continue
    if (!leaves) await delay(50 + 200 * random())
  }
}

const talks = []

/** One conversation: repeats each turn until it is known whether the server has it. */
async function talk(index) {
  const id = `talk ${index}`
  const path = `/v1/sessions/${encodeURIComponent(id)}`
  const own = { id, turns: [], head: 0 }
  talks.push(own)
  while (!isOver) {
    const asked = question(5000 + 100 * index + own.turns.length)
    const session = { id, from: own.head === 0 ? undefined : own.head }
    const reply = await post('/v1/completions', { ...asked, session })
    if (reply !== null && reply.session === undefined) broken.push(`${id}: a whole answer became no turn`)
    else if (reply !== null) {
      counts.turns++
      const { turn, continued } = reply.session
      if (continued !== own.head) broken.push(`${id}: turn ${turn} continued ${continued}, not ${own.head}`)
      own.turns.push({ asked, text: reply.choices[0].text })
      own.head = turn
      continue
    }
    await delay(200)
    await settle(own, path, asked)
  }
}

/** The outcome is unknown, so the session is asked. */
async function settle(own, path, asked) {
  for (;;) {
    const reply = await fetch(url + path).catch(() => null)
    const info = reply?.status === 200 ? await reply.json().catch(() => null) : null
    if (reply?.status === 404) {
      if (own.head !== 0) broken.push(`${own.id} is lost, which had turn ${own.head}`)
      own.head = 0
      return
    }
    if (info === null || info.is_busy === true) {
      if (isOver && info !== null) return
      await delay(100)
      continue
    }
    const { turns } = info
    if (own.head !== 0 && !turns.some(({ turn }) => turn === own.head))
      broken.push(`${own.id}: the acknowledged turn ${own.head} is lost`)
    const made = turns.filter(({ parent }) => parent === own.head)
    if (made.length > 1) broken.push(`${own.id}: one question became ${made.length} turns`)
    if (made.length === 0) return
    own.turns.push({ asked, text: null })
    own.head = made[0].turn
    return
  }
}

/** Repeats each conversation in a session without faults; the texts must be the same. */
async function replay({ id, turns }) {
  const again = `${id} again`
  for (const [i, { asked, text }] of turns.entries()) {
    const reply = await post('/v1/completions', { ...asked, session_id: again })
    if (reply === null) broken.push(`${id}: turn ${i + 1} cannot be asked again`)
    else if (text !== null && reply.choices[0].text !== text)
      broken.push(`${id}: answer ${i + 1} of ${turns.length} is not that of a quiet session`)
  }
}

const FAULTS = {
  'worker killed': async () => {
    for (const pid of workers()) signal(pid, 'SIGKILL')
  },
  'worker stopped for a second': async () => {
    const [pid] = workers()
    if (!pid) return
    signal(pid, 'SIGSTOP')
    await delay(1000)
    signal(pid, 'SIGCONT')
  },
  'worker hangs': async () => {
    const [pid] = workers()
    if (pid) signal(pid, 'SIGSTOP')
    // The server notices the hang and ends it.
    await delay(12_000)
  },
  'worker spins': async () => {
    const [pid] = workers()
    if (pid) signal(pid, 'SIGUSR2')
    // It ends itself.
    await delay(12_000)
  },
  'server killed': async () => {
    await server.stop('SIGKILL')
    await start()
  },
  'server ended': async () => {
    await server.stop()
    await start()
  },
  'hostile bodies': async () => {
    const bodies = [
      `{"prompt":"x","metadata":[${'{},'.repeat(1_000_000)}{}]}`,
      `${'['.repeat(1_000_000)}`,
      `{"prompt":"${'x '.repeat(1_000_000)}","max_tokens":1}`,
    ]
    await Promise.all(bodies.map((body) => post('/v1/completions', body)))
  },
  'flood that leaves': async () => {
    const abort = AbortSignal.timeout(1500)
    const body = { prompt: 'x', max_tokens: 5000, ignore_eos: true }
    await Promise.all(Array.from({ length: 150 }, () => post('/v1/completions', body, abort)))
  },
  'requests out of time': async () => {
    const body = { prompt: 'x', max_tokens: 5000, ignore_eos: true, timeout: 0.5 }
    await Promise.all(Array.from({ length: 30 }, () => post('/v1/completions', body)))
  },
}

async function sabotage() {
  right[0] = 'something else'
  while ((talks[0]?.turns.length ?? 0) < 2) await delay(100)
  await fetch(`${url}/v1/sessions/${encodeURIComponent(talks[0].id)}`, { method: 'DELETE' })
}

async function faults() {
  const random = seededRandom(seed)
  const kinds = Object.keys(FAULTS)
  const end = performance.now() + 1000 * seconds
  for (let round = 0; round < kinds.length || performance.now() < end; round++) {
    await delay(500 + 2500 * random())
    // Each fault once, also in a short run, before any is drawn again.
    const kind = kinds[round < kinds.length ? (round + seed) % kinds.length : Math.floor(random() * kinds.length)]
    counts.faults[kind] = (counts.faults[kind] ?? 0) + 1
    await FAULTS[kind]()
    // Otherwise most requests would meet no server.
    await whenReady(url)
  }
}

console.log(`seed ${seed}, ${seconds} s`)
await start()
try {
  for (let number = 0; number < QUESTIONS; number++) await checkAnswer(number)
  const clients = [...Array.from({ length: 12 }, (_, i) => client(i)), ...Array.from({ length: 6 }, (_, i) => talk(i))]
  if (isSabotage) await sabotage()
  await faults()
  // Nothing may wait for ever. This says where the time limit was reached.
  console.log('faults are over')
  await whenReady(url)
  isOver = true
  await Promise.all(clients)
  for (let number = 0; number < QUESTIONS; number++)
    if (!(await checkAnswer(number))) broken.push(`question ${number} has no answer afterwards`)
  for (const own of talks) await replay(own)
  for (;;) {
    const { decode, prefill, waiting } = await (await fetch(`${url}/v1/queue/status`)).json()
    if (decode + prefill + waiting === 0) break
    await delay(100)
  }
} finally {
  await server.stop('SIGKILL')
  rmSync(folder, { recursive: true, force: true })
}
console.log(JSON.stringify(counts))
for (const line of broken) console.log(`BROKEN: ${line}`)
console.log(broken.length === 0 ? 'all held' : `${broken.length} did not hold; seed ${seed}`)
process.exit(broken.length === 0 ? 0 : 1)
