/**
 * What new keys notice of another key's floods, and how many tokens the flood gets meanwhile: node
 * scripts/newcomers.mjs [seconds] [flood, a regular expression] runs the built files with the demo model; further arguments go to the
 * server, such as --preempt-mb 0; without --device the model is on the CPU. Every newcomer has a key that the server has not
 * seen, so no slot is reserved for it. Prints one table; compare only within it. SERVER_CORES=0,1 (Linux) keeps the server on
 * these cores. The floods' clients are in a thread of their own: what they read, and their garbage, would delay what a newcomer
 * notices.
 */
import { once } from 'node:events'
import { request } from 'node:http'
import { setTimeout as delay } from 'node:timers/promises'
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads'
import { quantile, startServer } from './server.mjs'

const seconds = Number(process.argv[2] ?? 8)
const more = process.argv.slice(4)
if (!more.includes('--device')) more.push('--device', 'cpu')
const PATIENCE_MS = 10_000
/** What a server does once, soon after its start, is not what is measured, nor code that is compiled at the flood's first requests. */
const SETTLED_MS = 8000
const WARM_MS = 6000
const BOB = 'sk-bob-who-floods'
/** Her stream takes the slot that is reserved since the server probed its worker. */
const CAROL = 'sk-carol-who-streams'
const NEWCOMERS = Array.from({ length: 400 }, (_, i) => `sk-newcomer-${i}`)
const words = (count) => Array.from({ length: count }, () => Math.random().toString(36).slice(2, 7)).join(' ')
/** 7.8 MB, read until they hold too many objects. */
const REFUSED = Buffer.from(`{"prompt":"x","metadata":[${'{},'.repeat(2_600_000)}0]}`)
/** `isRefused`: it takes no slots, and no stream runs beside it. */
const FLOODS = {
  quiet: { clients: 0, body: () => ({}) },
  '300 × 65,536 tokens': { clients: 300, body: () => ({ prompt: words(5), max_tokens: 65_536, ignore_eos: true }) },
  '1 × (400 words + 200 tokens)': {
    clients: 1,
    body: () => ({ prompt: words(400), max_tokens: 200, ignore_eos: true }),
  },
  '64 × (400 words + 200 tokens)': {
    clients: 64,
    body: () => ({ prompt: words(400), max_tokens: 200, ignore_eos: true }),
  },
  '4 × 60k-token prompts': { clients: 4, body: () => ({ prompt: words(20_000), max_tokens: 1 }) },
  '2 × (512 prompts, n=2)': {
    clients: 2,
    body: () => ({ prompt: Array.from({ length: 512 }, () => words(12)), max_tokens: 24, n: 2, ignore_eos: true }),
  },
  '8 × (n=16, logprobs 20)': {
    clients: 8,
    body: () => ({ prompt: words(20), max_tokens: 400, n: 16, logprobs: 20, ignore_eos: true }),
  },
  '2 × (512 texts to translate)': {
    clients: 2,
    path: '/translate/v1/batch-translate',
    body: () => ({ source_lang: 'en', target_lang: 'zh', text_list: Array.from({ length: 512 }, () => words(12)) }),
  },
  '4 × 8 MB, refused': { clients: 4, isRefused: true, body: () => REFUSED },
}

if (isMainThread) {
  const table = {}
  for (const name of Object.keys(FLOODS)) {
    if (name !== 'quiet' && !new RegExp(process.argv[3] ?? '').test(name)) continue
    table[name] = await measure(name)
    console.error(name, JSON.stringify(table[name]))
  }
  console.table(table)
} else await runFlood(workerData)

async function measure(name) {
  const { clients, isRefused = false } = FLOODS[name]
  const keys = [BOB, CAROL, ...NEWCOMERS].join(',')
  const flags = ['--no-store', '--api-key', keys, ...more, '--slots', '64']
  const { url, stop } = await startServer(flags, { key: BOB })
  await delay(SETTLED_MS)
  const flood = new Worker(new URL(import.meta.url), { workerData: { url, name } })
  if (clients > 0 && !isRefused) await begun(url)
  await delay(WARM_MS)
  const seen = []
  const before = await tokensOf(url)
  const begin = performance.now()
  const end = begin + seconds * 1000
  for (const key of NEWCOMERS) {
    if (performance.now() > end) break
    seen.push(await ask(url, key))
    await delay(100)
  }
  const ran = (performance.now() - begin) / 1000
  const tokens = (await tokensOf(url)).map((count, i) => count - before[i])
  flood.postMessage('leave')
  await once(flood, 'exit')
  await stop('SIGKILL')
  const gaps = seen.flatMap((one) => one.gaps)
  const firsts = seen.map((one) => one.first)
  return {
    asked: seen.length,
    unanswered: firsts.filter((first) => first >= PATIENCE_MS).length,
    'TTFT p50': at(firsts, 0.5),
    'TTFT max': at(firsts, 1),
    'ITL p50': at(gaps, 0.5),
    'ITL p99': at(gaps, 0.99),
    // Of all: the newcomers' own are few.
    'prompt tokens/s': Math.round(tokens[0] / ran),
    'tokens/s': Math.round(tokens[1] / ran),
  }
}

/** In the floods' thread, until it is told to leave. */
async function runFlood({ url, name }) {
  const flood = FLOODS[name]
  const { clients, isRefused = false } = flood
  const leaving = new AbortController()
  parentPort.once('message', () => leaving.abort())
  const floods = Array.from({ length: clients }, () => repeat(url, BOB, flood, leaving.signal))
  const long = () => ({ prompt: words(5), max_tokens: 65_536, ignore_eos: true })
  if (clients > 0 && !isRefused) floods.push(repeat(url, CAROL, { body: long }, leaving.signal))
  await Promise.all(floods)
}

/** Tokens of prompts and of answers that the worker has computed. */
async function tokensOf(url) {
  const text = await (await fetch(`${url}/metrics`, { headers: { authorization: `Bearer ${BOB}` } })).text()
  return ['prompt_tokens_total', 'generation_tokens_total'].map((name) =>
    Number(new RegExp(`^skein_${name}\\{.*\\} (\\d+)`, 'm').exec(text)?.[1] ?? 0),
  )
}

/** Waits until the flood holds all its slots: the number has not changed for two seconds. Short answers come and go: five. */
async function begun(url) {
  const headers = { authorization: `Bearer ${BOB}` }
  const free = []
  while (free.at(-1) !== 0 && free.length < 20 && (free.length < 8 || new Set(free.slice(-8)).size > 1)) {
    await delay(250)
    const reply = await fetch(`${url}/v1/queue/status`, { headers })
    free.push((await reply.json()).available_slots)
  }
}

function post(url, key, body, signal, path = '/v1/completions') {
  return fetch(url + path, {
    method: 'POST',
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
    body: JSON.stringify({ stream: true, ...body }),
    signal,
  })
}

/** Not by `fetch`, which copies the bytes: this process would collect its garbage all the time, and newcomers are in it. */
function postBytes(url, key, bytes, signal) {
  return new Promise((resolve) => {
    const headers = { authorization: `Bearer ${key}`, 'content-type': 'application/json' }
    const sent = request(`${url}/v1/completions`, { method: 'POST', headers, signal })
    sent.on('response', (reply) => reply.resume())
    sent.on('error', resolve)
    sent.on('close', resolve)
    sent.end(bytes)
  })
}

async function repeat(url, key, { body, path, isRefused }, signal) {
  while (!signal.aborted) {
    if (isRefused) {
      await postBytes(url, key, body(), signal)
      await delay(100)
      continue
    }
    try {
      const reply = await post(url, key, body(), signal, path)
      for await (const _ of reply.body);
      if (!reply.ok) await delay(100)
    } catch {
      // The end of the run.
    }
  }
}

/** Milliseconds to the first text and between texts; the whole timeout if none came. */
async function ask(url, key) {
  const start = performance.now()
  // Without token 0, which has no text: gaps are between texts.
  const body = { prompt: words(12), max_tokens: 24, ignore_eos: true, logit_bias: { 0: -100 } }
  const times = []
  try {
    const reply = await post(url, key, body, AbortSignal.timeout(PATIENCE_MS))
    for await (const bytes of reply.body) if (Buffer.from(bytes).includes('"text"')) times.push(performance.now())
  } catch {
    // Its timeout is over.
  }
  const [first = start + PATIENCE_MS] = times
  return { first: first - start, gaps: times.slice(1).map((time, i) => time - times[i]) }
}

function at(values, part) {
  return values.length === 0 ? null : Math.round(quantile(values, part) * 10) / 10
}
