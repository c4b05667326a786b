#!/usr/bin/env node
/**
 * Runs a server for a long time: `node scripts/soak.mjs [seconds] [requests per second] [seed]`. Sends mixed calls at a
 * steady rate: answers, streams, clients that leave, sessions (forked, undone, exported, deleted, continued), batches,
 * echoed prompts, translations, bad requests. It checks that every answer is right, every status is the expected one,
 * and the queue is empty at the end. Each minute it prints memory, descriptors and processor time of gateway and
 * workers. Needs Linux and dist/.
 */
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { seededRandom } from '../dist/bench/serve/random.js'
import { question } from './questions.mjs'
import { childrenOf, cpuMs, startServer } from './server.mjs'

const [seconds = 3600, rate = 2, seed = 1] = process.argv.slice(2).map(Number)
const random = seededRandom(seed)
const folder = mkdtempSync(join(tmpdir(), 'skein-soak-'))
const server = await startServer(['--data-dir', folder, '--threads', '1', '--prefix-cache-mb', '64'])
const { url } = server
const [counts, broken] = [{}, []]

function fail(line) {
  broken.push(line)
  console.log(`BROKEN: ${line}`)
}

/** The reply, which must have this status. */
async function call(method, path, body, expected = 200) {
  const isJson = body !== undefined && !(body instanceof Uint8Array) && !(body instanceof FormData)
  const type = isJson ? 'application/json' : 'application/octet-stream'
  const reply = await fetch(url + path, {
    method,
    headers: body === undefined || body instanceof FormData ? {} : { 'content-type': type },
    body: isJson ? JSON.stringify(body) : body,
  })
  const bytes = new Uint8Array(await reply.arrayBuffer())
  const text = () => new TextDecoder().decode(bytes)
  if (reply.status !== expected) throw new Error(`${method} ${path}: ${reply.status} ${text().slice(0, 300)}`)
  return reply.headers.get('content-type')?.includes('json') ? JSON.parse(text()) : bytes
}

const pick = (count) => Math.floor(random() * count)
const right = []
const spare = { next: 0 }
const talks = Array.from({ length: 12 }, (_, i) => ({ id: `talk ${i}`, texts: [], isBusy: false }))
const pathOf = (id) => `/v1/sessions/${encodeURIComponent(id)}`

function same(what, got, wanted) {
  if (JSON.stringify(got) !== JSON.stringify(wanted))
    fail(`${what}: ${JSON.stringify(got)}, not ${JSON.stringify(wanted)}`)
}

async function turn(id, asked) {
  const { choices } = await call('POST', '/v1/completions', { ...asked, session_id: id })
  return choices[0].text
}

/** A conversation that no other call is using. */
async function withTalk(use) {
  const own = talks[pick(talks.length)]
  if (own.isBusy) return
  own.isBusy = true
  try {
    if (own.texts.length === 0) await next(own)
    await use(own)
  } finally {
    own.isBusy = false
  }
}

const askedOf = ({ id, texts }) => question(7000 + 31 * Number(id.split(' ')[1]) + texts.length)
const next = async (own) => own.texts.push(await turn(own.id, askedOf(own)))

/** Aborts it, in the middle of the stream unless that is shorter. */
async function leave(body) {
  const reply = await fetch(`${url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
    signal: AbortSignal.timeout(20 + pick(200)),
  })
  await reply.text()
}

const CALLS = {
  answer: async () => {
    const number = pick(60)
    const { choices } = await call('POST', '/v1/completions', question(number))
    right[number] ??= choices[0].text
    same(`question ${number}`, choices[0].text, right[number])
  },
  stream: async () => {
    const messages = [{ role: 'user', content: question(pick(60)).prompt }]
    const text = new TextDecoder().decode(
      await call('POST', '/v1/chat/completions', { messages, stream: true, max_tokens: 24 }),
    )
    if (!text.trimEnd().endsWith('data: [DONE]')) fail(`a stream ended with ${text.slice(-200)}`)
  },
  'left early': async () => {
    const messages = [{ role: 'user', content: 'Tell me of the river.' }]
    const body = { messages, stream: random() < 0.5, max_tokens: 200, ignore_eos: true }
    await leave(body).catch((error) => {
      if (error.name !== 'TimeoutError') throw error
    })
  },
  'several answers': async () => {
    const { choices } = await call('POST', '/v1/completions', { prompt: ['One', 'Two'], n: 2, max_tokens: 8 })
    same('answers', choices.length, 4)
  },
  echo: async () => {
    const asked = { prompt: question(pick(60)).prompt, echo: true, logprobs: 3, max_tokens: 0 }
    const { choices } = await call('POST', '/v1/completions', asked)
    same('the echo', choices[0].text, asked.prompt)
  },
  translation: () =>
    call('POST', '/translate/v1/batch-translate', { source_lang: 'en', target_lang: 'zh', text_list: ['Hello.'] }),
  'bad request': () => call('POST', '/v1/completions', { prompt: 5, max_tokens: 'x' }, 400),
  'turn of a session': () => withTalk(next),
  fork: () =>
    withTalk(async (own) => {
      const id = `fork ${spare.next++}`
      await call('POST', `${pathOf(own.id)}/fork`, { new_id: id })
      const asked = askedOf(own)
      const there = await turn(id, asked)
      await next(own)
      same(`the answer of the fork of ${own.id}`, there, own.texts.at(-1))
      await call('DELETE', pathOf(id))
    }),
  undo: () =>
    withTalk(async (own) => {
      await next(own)
      await call('POST', `${pathOf(own.id)}/undo`, {})
      const before = own.texts.pop()
      await next(own)
      same(`the answer of ${own.id}, asked once more`, own.texts.at(-1), before)
    }),
  'export and import': () =>
    withTalk(async (own) => {
      const id = `copy ${spare.next++}`
      await call('POST', `${pathOf(id)}/import`, await call('GET', `${pathOf(own.id)}/export`))
      const there = await turn(id, askedOf(own))
      await next(own)
      same(`the answer of the import of ${own.id}`, there, own.texts.at(-1))
      await call('DELETE', pathOf(id))
    }),
  'deleted, and asked anew': () =>
    withTalk(async (own) => {
      await call('DELETE', pathOf(own.id))
      const before = own.texts.splice(0)
      for (const text of before.slice(0, 4)) {
        await next(own)
        same(`${own.id}, asked anew`, own.texts.at(-1), text)
      }
    }),
  batch: async () => {
    const lines = [1, 2, 3].map((i) => ({
      ...{ custom_id: `line ${i}`, method: 'POST', url: '/v1/completions' },
      body: { prompt: 'x', max_tokens: 4 },
    }))
    const form = new FormData()
    form.set('purpose', 'batch')
    form.set('file', new Blob([lines.map((line) => JSON.stringify(line)).join('\n')]), 'requests.jsonl')
    const file = await call('POST', '/v1/files', form)
    const made = { input_file_id: file.id, endpoint: '/v1/completions', completion_window: '24h' }
    let batch = await call('POST', '/v1/batches', made)
    for (; batch.status !== 'completed'; await delay(500)) batch = await call('GET', `/v1/batches/${batch.id}`)
    same('lines of a batch', batch.request_counts, { total: 3, completed: 3, failed: 0 })
    for (const id of [batch.output_file_id, file.id]) await call('DELETE', `/v1/files/${id}`)
  },
}
const KINDS = Object.keys(CALLS)

async function one() {
  // A batch is three requests and a file, so it is rare.
  const kind = random() < 0.01 ? 'batch' : KINDS[pick(KINDS.length - 1)]
  counts[kind] = (counts[kind] ?? 0) + 1
  await CALLS[kind]().catch((error) => fail(`${kind}: ${error.message}`))
}

/** Memory in MB, descriptors, and processor seconds. */
function figures(pid) {
  const rss = /VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]
  return {
    mb: Math.round(Number(rss) / 1024),
    descriptors: readdirSync(`/proc/${pid}/fd`).length,
    cpu: cpuMs(pid) / 1000,
  }
}

function report(at) {
  const asked = Object.values(counts).reduce((sum, count) => sum + count, 0)
  const processes = { gateway: figures(server.pid), workers: childrenOf(server.pid).map(figures) }
  console.log(JSON.stringify({ minute: Math.round(at / 60), calls: asked, broken: broken.length, ...processes }))
}

try {
  const began = performance.now()
  const passed = () => (performance.now() - began) / 1000
  const calls = new Set()
  for (let [sent, told] = [0, 0]; passed() < seconds; await delay(100)) {
    for (; sent < passed() * rate; sent++) {
      const going = one().finally(() => calls.delete(going))
      calls.add(going)
    }
    for (; told <= passed() / 60; told++) report(passed())
  }
  await Promise.all(calls)
  report(passed())
  const { decode, prefill, waiting } = await call('GET', '/v1/queue/status')
  same('rows at the end', decode + prefill + waiting, 0)
  same(
    'sessions at the end',
    (await call('GET', '/v1/sessions')).data.length,
    talks.filter(({ texts }) => texts.length > 0).length,
  )
  same('how it ended', await server.stop(), 0)
} finally {
  await server.stop('SIGKILL')
  rmSync(folder, { recursive: true, force: true })
}
console.log(JSON.stringify(counts))
console.log(broken.length === 0 ? 'all held' : `${broken.length} did not hold; seed ${seed}`)
process.exit(broken.length === 0 ? 0 : 1)
