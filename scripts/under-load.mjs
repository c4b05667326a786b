/**
 * Tests a server under load, with the built files and the demo model: node scripts/under-load.mjs WHAT [seconds].
 * overload: five times the load that it can answer; reports goodput, refusals, and how soon it is back to normal.
 * long-prompts: what 64 streams and a short request notice of a prompt of 100,000 tokens.
 * leaving: how soon another request gets the slot of a client that left, during its answer or its prompt.
 * Arguments after the seconds go to the server, such as --max-waiting 512. SERVER_CORES=0,1 (Linux) keeps the server on
 * these cores; `taskset -c 2-5` before the command keeps the clients off them.
 */
import { Agent, request } from 'node:http'
import { setTimeout as delay } from 'node:timers/promises'
import { schedulerOf } from './scheduler.mjs'
import { quantile, startServer } from './server.mjs'

const [what, given, ...more] = process.argv.slice(2)
const seconds = Number(given ?? 20)
const agent = new Agent({ keepAlive: true, maxSockets: Number.POSITIVE_INFINITY })
/** At the beginning of a load, when nothing can be complete yet. */
const RAMP_MS = 2000
const WORK = { overload, 'long-prompts': longPrompts, leaving }

if (WORK[what] === undefined) throw new Error(`one of ${Object.keys(WORK).join(', ')}`)
await WORK[what]()

/** Runs `use` with the port of a server. */
async function withServer(flags, use) {
  const { port, pid, stop } = await startServer(['--no-store', '--device', 'cpu', ...flags, ...more])
  try {
    await use(port, pid)
  } finally {
    await stop('SIGKILL')
  }
}

/** Its status, the times of its texts (clock milliseconds), and whether it completed; `leave` ends it. */
function ask(port, body) {
  const seen = { began: performance.now(), status: 0, retryAfter: undefined, times: [], isWhole: false }
  const sent = request({
    ...{ host: '127.0.0.1', port, agent, method: 'POST', path: '/v1/completions' },
    headers: { 'content-type': 'application/json' },
  })
  const ended = new Promise((resolve) => {
    const over = () => resolve({ ...seen, ms: performance.now() - seen.began })
    sent.on('error', over)
    sent.on('response', (reply) => {
      seen.status = reply.statusCode
      seen.retryAfter = reply.headers['retry-after']
      reply.on('data', (bytes) => {
        if (bytes.includes('"text"')) seen.times.push(performance.now())
        if (bytes.includes('[DONE]')) seen.isWhole = true
      })
      reply.on('error', over)
      reply.on('close', over)
    })
  })
  // Without token 0, which has no text: the test measures the time between texts.
  sent.end(JSON.stringify({ stream: true, ignore_eos: true, logit_bias: { 0: -100 }, ...body }))
  return { seen, ended, leave: () => sent.destroy() }
}

async function overload() {
  await withServer([], async (port, pid) => {
    const look = schedulerOf(pid)
    const body = () => ({ prompt: tokens(24), max_tokens: 64 })
    const alone = await oneByOne(port, body, 40)
    await closed(port, body, 96, 4)
    const unloaded = [look(), performance.now()]
    const { whole, steady } = await closed(port, body, 96, 10)
    const canShares = shares(...unloaded, look(), performance.now())
    const capacity = whole
    const rate = 5 * capacity
    const all = []
    const end = performance.now() + seconds * 1000
    const began = performance.now()
    const before = look()
    for (let sent = 0; performance.now() < end; await delay(2))
      for (; sent < ((performance.now() - began) / 1000) * rate; sent++) all.push(ask(port, body()).ended)
    const overAt = performance.now()
    const after = look()
    const done = await Promise.all(all)
    const good = done.filter(({ isWhole }) => isWhole)
    const refused = done.filter(({ status }) => status === 429)
    const inTime = good.filter(({ began: at, ms }) => at + ms <= overAt)
    const afterRamp = inTime.filter(({ began: at, ms }) => at + ms >= began + RAMP_MS)
    // Later requests, until one is answered as on a quiet server.
    const normal = async () => {
      for (;;) {
        const { ms } = await ask(port, body()).ended
        if (ms <= 1.25 * at(alone, 0.99)) return performance.now() - overAt
      }
    }
    const backMs = await normal()
    console.table({
      overload: {
        seconds,
        'can a second': round(capacity),
        'sent a second': round(all.length / ((overAt - began) / 1000)),
        'goodput %': round((100 * inTime.length) / ((overAt - began) / 1000) / capacity),
        // Both without their first seconds, in which nothing can be complete: they are a tenth of ten seconds.
        'steady goodput %': round((100 * afterRamp.length) / ((overAt - began - RAMP_MS) / 1000) / steady),
        whole: good.length,
        refused: refused.length,
        'with retry-after': refused.filter(({ retryAfter }) => retryAfter !== undefined).length,
        'neither nor': done.length - good.length - refused.length,
        'refusal p50 ms': at(
          refused.map(({ ms }) => ms),
          0.5,
        ),
        'refusal p99 ms': at(
          refused.map(({ ms }) => ms),
          0.99,
        ),
        'line empty and normal after s': round(backMs / 1000),
        'quiet p99 ms': at(alone, 0.99),
        ...shares(before, began, after, overAt),
      },
      'what it can': canShares,
    })
  })
}

/** Percent of the time in which the loops ran, and in which they waited for a core. */
function shares(before, from, after, to) {
  const names = ['gatewayRan', 'gatewayWaited', 'othersRan', 'loopRan', 'loopWaited', 'workerRan']
  return Object.fromEntries(
    names.map((name) => [`${name} %`, round((100 * (after[name] - before[name])) / (to - from))]),
  )
}

/** Milliseconds of whole answers in sequence. */
async function oneByOne(port, body, count) {
  const times = []
  for (let i = 0; i < count; i++) times.push((await ask(port, body()).ended).ms)
  return times
}

/** Whole answers per second with that many in flight; `steady`: without the first seconds. */
async function closed(port, body, inFlight, forSeconds) {
  const begin = performance.now()
  const end = begin + forSeconds * 1000
  let whole = 0
  let late = 0
  const client = async () => {
    while (performance.now() < end) {
      const { isWhole } = await ask(port, body()).ended
      const now = performance.now()
      if (!isWhole || now >= end) continue
      whole++
      if (now >= begin + RAMP_MS) late++
    }
  }
  await Promise.all(Array.from({ length: inFlight }, client))
  return { whole: whole / forSeconds, steady: late / (forSeconds - RAMP_MS / 1000) }
}

async function longPrompts() {
  await withServer(['--slots', '72'], async (port, pid) => {
    const look = schedulerOf(pid)
    const long = () => ({ prompt: tokens(100_000), max_tokens: 1, cache: 'no-store' })
    await ask(port, { ...long(), prompt: tokens(5000) }).ended
    const start = await usedBy(port, look)
    const aloneMs = (await ask(port, long()).ended).ms
    const usedAlone = spent(start, await usedBy(port, look))
    const streams = Array.from({ length: 64 }, () => ask(port, { prompt: tokens(12), max_tokens: 65_536 }))
    await delay(3000)
    const gapsOf = (from, to) =>
      streams.flatMap(({ seen: { times } }) => {
        const inside = times.filter((time) => time >= from && time <= to)
        return inside.slice(1).map((time, i) => time - inside[i])
      })
    const short = async () => {
      const { seen, ended } = ask(port, { prompt: tokens(100), max_tokens: 8 })
      await ended
      return (seen.times[0] ?? Number.NaN) - seen.began
    }
    const quietFrom = performance.now()
    const shortQuiet = []
    while (performance.now() < quietFrom + seconds * 500) shortQuiet.push(await short())
    const quiet = gapsOf(quietFrom, performance.now())
    const before = await usedBy(port, look)
    const from = performance.now()
    let isOver = false
    const reading = ask(port, long()).ended.then((reply) => {
      isOver = true
      return reply
    })
    const shortBeside = []
    while (!isOver) shortBeside.push(await short())
    const { ms } = await reading
    const usedBeside = spent(before, await usedBy(port, look))
    const beside = gapsOf(from, from + ms)
    for (const { leave } of streams) leave()
    console.table({ 'the long prompt alone': usedAlone, 'beside the streams': usedBeside })
    console.table({
      'streams alone': {
        'ITL p50': at(quiet, 0.5),
        'ITL p99': at(quiet, 0.99),
        'ITL max': at(quiet, 1),
        'short TTFT p50': at(shortQuiet, 0.5),
        'short TTFT max': at(shortQuiet, 1),
        'long one, s': round(aloneMs / 1000),
      },
      'beside 100,000 tokens': {
        'ITL p50': at(beside, 0.5),
        'ITL p99': at(beside, 0.99),
        'ITL max': at(beside, 1),
        'short TTFT p50': at(shortBeside, 0.5),
        'short TTFT max': at(shortBeside, 1),
        'long one, s': round(ms / 1000),
      },
    })
  })
}

/** Steps, seconds in them, and processor seconds so far. */
async function usedBy(port, look) {
  const text = await (await fetch(`http://127.0.0.1:${port}/metrics`)).text()
  const count = (name) => Number(new RegExp(`^skein_${name}\\{.*\\} (\\S+)`, 'm').exec(text)?.[1] ?? 0)
  const { gatewayRan, othersRan, loopRan, workerRan, loopWaited } = look()
  return {
    steps: count('engine_steps_total'),
    'in steps s': count('engine_busy_seconds_total'),
    'gateway s': (gatewayRan + othersRan) / 1000,
    'worker loop s': loopRan / 1000,
    'it waited for a core s': loopWaited / 1000,
    'its threads s': (workerRan - loopRan) / 1000,
    'tokens drawn': count('generation_tokens_total'),
  }
}

function spent(before, after) {
  return Object.fromEntries(Object.entries(after).map(([name, value]) => [name, round(value - before[name])]))
}

async function leaving() {
  const table = {}
  await withServer(['--slots', '32', '--preempt-mb', '0'], async (port) => {
    const fill = () => ask(port, { prompt: tokens(8), max_tokens: 65_536 })
    const live = Array.from({ length: 32 }, fill)
    while (live.some(({ seen }) => seen.times.length < 4)) await delay(20)
    const waits = []
    const end = performance.now() + seconds * 1000
    while (performance.now() < end) {
      const next = fill()
      await delay(20 + 60 * Math.random())
      const [left] = live.splice(Math.floor(Math.random() * live.length), 1)
      if (next.seen.times.length > 0) throw new Error('there was a slot before anybody had left')
      const from = performance.now()
      left.leave()
      while (next.seen.times.length === 0) await delay(1)
      waits.push(next.seen.times[0] - from)
      live.push(next)
    }
    const step = live.flatMap(({ seen: { times } }) => times.slice(1).map((time, i) => time - times[i]))
    table['an answer of 32'] = {
      rounds: waits.length,
      p50: at(waits, 0.5),
      p99: at(waits, 0.99),
      max: at(waits, 1),
      'step p50': at(step, 0.5),
      'step p99': at(step, 0.99),
    }
  })
  await withServer(['--slots', '1', '--preempt-mb', '0'], async (port) => {
    const waits = []
    const end = performance.now() + seconds * 1000
    while (performance.now() < end) {
      const reading = ask(port, { prompt: tokens(60_000), max_tokens: 1, cache: 'no-store' })
      await delay(200 + 200 * Math.random())
      const next = ask(port, { prompt: tokens(8), max_tokens: 4 })
      await delay(50)
      const from = performance.now()
      reading.leave()
      await next.ended
      waits.push((next.seen.times[0] ?? Number.NaN) - from)
    }
    table['a prompt that is read'] = {
      rounds: waits.length,
      p50: at(waits, 0.5),
      p99: at(waits, 0.99),
      max: at(waits, 1),
    }
  })
  console.log('ms from leaving to the first text of who waited for the slot')
  console.table(table)
}

function tokens(count) {
  return Array.from({ length: count }, () => 1 + Math.floor(Math.random() * 250))
}

function at(values, part) {
  return round(quantile(values, part))
}

function round(value) {
  return Math.round(value * 10) / 10
}
