/**
 * A thousand hostile clients against `skein serve` of the built files: node scripts/hostile-clients.mjs [clients]
 * [seconds] […]. Prints the gateway's memory, the gaps in another user's stream, the time of /livez, and whether SIGTERM is
 * heard. The clients and the measuring parts are separate processes. On Linux SERVER_CORES=0,1 keeps the server on
 * these cores; `taskset -c 2-5` before the command keeps the others off them; CLIENT_NICE=19 gives the hostile clients
 * the lowest priority; ATTACK_ONLY=1 leaves out the quiet server before and SIGTERM after it. Arguments after the
 * seconds go to the server, such as --device webgpu. For the longest gaps and the slowest /livez it prints how long the
 * gateway's loop and the worker's threads ran meanwhile, and how long they waited for a core (/proc/PID/schedstat).
 */
import { fork } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { connect } from 'node:net'
import { setPriority, tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { crc32 } from 'node:zlib'
import { schedulerOf } from './scheduler.mjs'
import { quantile, startServer } from './server.mjs'

const [clients, seconds] = [Number(process.argv[2] ?? 1000), Number(process.argv[3] ?? 30)]
const ROLE = process.env.HOSTILE_ROLE
const NOT_HEARD = 'not heard in 40 s'
const KEYS = { alice: 'sk-alice-quiet', bob: 'sk-bob-hostile' }

if (ROLE === 'clients') await attack(Number(process.env.HOSTILE_PORT))
else if (ROLE === 'watch') await watch(Number(process.env.HOSTILE_PORT))
else await main()

async function main() {
  const XDG_DATA_HOME = mkdtempSync(join(tmpdir(), 'skein-hostile-'))
  const args = ['--open-translate', '--api-key', Object.values(KEYS).join(','), ...process.argv.slice(4)]
  const server = await startServer(args, { key: KEYS.alice, env: { XDG_DATA_HOME } })
  // What a server does once, soon after its start, is not what is measured.
  const settled = delay(8000)
  const own = { HOSTILE_PORT: String(server.port), HOSTILE_GATEWAY: String(server.pid) }
  const child = (role) =>
    fork(fileURLToPath(import.meta.url), [String(clients), String(seconds)], {
      env: { ...process.env, ...own, HOSTILE_ROLE: role },
    })
  // Their bodies take seconds to make, many on a busy machine.
  const attackers = child('clients')
  await once(attackers, 'message')
  await settled
  const isWhole = process.env.ATTACK_ONLY === undefined
  const quiet = isWhole ? await measured(child('watch'), server.pid) : {}
  const watcher = child('watch')
  await delay(1000)
  attackers.send('begin')
  if (process.env.CLIENT_NICE !== undefined) setPriority(attackers.pid, Number(process.env.CLIENT_NICE))
  const beside = await measured(watcher, server.pid)
  const asked = performance.now()
  const ended = await Promise.race([
    server.stop(isWhole ? 'SIGTERM' : 'SIGKILL'),
    delay(40_000, NOT_HEARD, { ref: false }),
  ])
  const stopMs = performance.now() - asked
  const [sent] = await Promise.all([once(attackers, 'message'), attackers.send('stop')])
  attackers.kill()
  if (ended === NOT_HEARD) await server.stop('SIGKILL')
  rmSync(XDG_DATA_HOME, { recursive: true, force: true, maxRetries: 10 })
  console.log(`${clients} clients, ${seconds} s; replies by status: ${JSON.stringify(sent[0])}`)
  const { gaps, slow, ...figures } = beside
  const { gaps: _, slow: __, ...before } = quiet
  console.table({ quiet: before, beside: figures, reach: { 'RSS MB': 1000, 'stall ms': 100, 'livez p99': 50 } })
  console.log('the longest gaps, ms')
  console.table(gaps)
  console.log('the slowest /livez, ms')
  console.table(slow)
  console.log(`SIGTERM: ${ended === NOT_HEARD ? NOT_HEARD : `ended after ${Math.round(stopMs)} ms`}`)
}

async function measured(watcher, pid) {
  let rss = 0
  const sampling = setInterval(() => {
    const status = readFileSync(`/proc/${pid}/status`, 'utf8')
    rss = Math.max(rss, Number(/VmRSS:\s+(\d+)/.exec(status)?.[1] ?? 0) / 1024)
  }, 100)
  const [figures] = await once(watcher, 'message')
  clearInterval(sampling)
  return { 'RSS MB': Math.round(rss), ...figures }
}

/** The change between two readings, with the time. */
function passed(ms, from, to) {
  const differences = Object.keys(to).map((key) => [key, round(to[key] - from[key])])
  return { ms: round(ms), ...Object.fromEntries(differences) }
}

function longest(looks) {
  return looks.toSorted((a, b) => b.ms - a.ms).slice(0, 8)
}

/** Watches a stream (a new one when it ends) and /livez during the run; also reports its own delays. */
async function watch(port) {
  const end = performance.now() + seconds * 1000 + 2000
  const [gaps, lives, own, firsts] = [[], [], [], []]
  const [gapLooks, liveLooks] = [[], []]
  const gateway = Number(process.env.HOSTILE_GATEWAY)
  const look = schedulerOf(gateway)
  // Token 0 has no text. The demo model draws it up to 35 times in a row, which looks like a stalled stream.
  const logit_bias = { 0: -100 }
  const answer = { prompt: 'One', max_tokens: 65_536, ignore_eos: true, stream: true, logit_bias }
  let last = performance.now()
  const ticking = setInterval(() => {
    own.push(performance.now() - last - 5)
    last = performance.now()
  }, 5)
  const living = (async () => {
    while (performance.now() < end) {
      const before = look()
      const start = performance.now()
      await fetch(`http://127.0.0.1:${port}/livez`).then(
        (reply) => reply.text(),
        () => {},
      )
      lives.push(performance.now() - start)
      liveLooks.push(passed(lives.at(-1), before, look()))
      await delay(20)
    }
  })()
  while (performance.now() < end) {
    const start = performance.now()
    const reply = await fetch(`http://127.0.0.1:${port}/v1/completions`, {
      method: 'POST',
      headers: { authorization: `Bearer ${KEYS.alice}`, 'content-type': 'application/json' },
      body: JSON.stringify(answer),
    }).catch(() => null)
    if (reply?.status !== 200) {
      await reply?.text()
      await delay(100)
      continue
    }
    let at = 0
    let before = look()
    for await (const _ of reply.body) {
      const now = performance.now()
      if (at === 0) firsts.push(now - start)
      else gaps.push(now - at)
      const after = now - at > 20 ? look() : before
      if (at !== 0 && now - at > 20) gapLooks.push(passed(now - at, before, after))
      before = look()
      at = now
      if (now > end) break
    }
  }
  clearInterval(ticking)
  await living
  process.send({
    'stall ms': round(Math.max(...gaps)),
    'gap p99': round(quantile(gaps, 0.99)),
    streams: firsts.length,
    'first p50': round(quantile(firsts, 0.5)),
    'livez p50': round(quantile(lives, 0.5)),
    'livez p99': round(quantile(lives, 0.99)),
    'livez max': round(Math.max(...lives)),
    // Time that both processes ran in a gap, and the gateway's loop in a call: what would remain on idle cores.
    'gap ran max': round(Math.max(...gapLooks.map(({ gatewayRan, workerRan }) => gatewayRan + workerRan))),
    'livez ran p99': round(
      quantile(
        liveLooks.map(({ gatewayRan }) => gatewayRan),
        0.99,
      ),
    ),
    "watcher's own max": round(Math.max(...own)),
    gaps: longest(gapLooks),
    slow: longest(liveLooks),
  })
  process.exit()
}

function round(ms) {
  return Math.round(ms * 10) / 10
}

async function attack(port) {
  const replies = {}
  const kinds = hostileKinds(await exported(port))
  process.on('message', (what) => {
    if (what === 'stop') process.send(replies)
    else for (let i = 0; i < clients; i++) again(kinds[i % kinds.length])
  })
  process.send('ready')

  /** Sends, reads the reply (or never does), and repeats. */
  function again(kind) {
    const { name, raw, path, key, body, type = 'application/json', length, holds = 20_000, isDeaf } = kind
    const socket = connect(port, '127.0.0.1')
    let text = ''
    // The server has gone: to try again at once would only keep this process busy.
    let waitMs = 50
    socket.on('error', ({ code }) => {
      if (code === 'ECONNREFUSED') waitMs = 1000
    })
    socket.on('close', () => {
      const status = /^HTTP\/1.1 (\d+)/.exec(text)?.[1] ?? 'none'
      replies[name] ??= {}
      replies[name][status] = (replies[name][status] ?? 0) + 1
      setTimeout(() => again(kind), waitMs)
    })
    if (isDeaf) socket.pause()
    else
      socket.on('data', (bytes) => {
        if (text.length < 20) text += bytes
      })
    if (raw === undefined) {
      // A call that is paused has a name of its own.
      const id = kind.isPaused ? `p${Math.random()}` : null
      const start = id === null ? '' : `{"request_id":"${id}",`
      const rest = id === null ? body : body.subarray(1)
      socket.write(headOf(path, type, key, length ?? start.length + rest.length) + start)
      socket.write(rest)
      if (id !== null) setTimeout(() => pause(id, key), holds - 200)
    } else socket.write(raw)
    if (kind.isReset) setTimeout(() => socket.resetAndDestroy(), Math.random() * 1500)
    else setTimeout(() => socket.destroy(), holds)
  }

  function pause(request_id, key) {
    const body = JSON.stringify({ request_id })
    const socket = connect(port, '127.0.0.1')
    socket.on('error', () => {})
    socket.resume()
    socket.write(headOf('/v1/server/pause', 'application/json', key, body.length) + body)
    setTimeout(() => socket.destroy(), 5000)
  }
}

function headOf(path, type, key, length) {
  const head = `POST ${path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: ${type}\r\n`
  const auth = key === undefined ? '' : `authorization: Bearer ${key}\r\n`
  return `${head}${auth}content-length: ${length}\r\n\r\n`
}

/** A state of Alice's. */
async function exported(port) {
  const url = `http://127.0.0.1:${port}`
  const headers = { authorization: `Bearer ${KEYS.alice}`, 'content-type': 'application/json' }
  const body = JSON.stringify({ prompt: 'One', max_tokens: 1, session: { id: 'quiet' } })
  const reply = await fetch(`${url}/v1/completions`, { method: 'POST', headers, body })
  if (!reply.ok) throw new Error(await reply.text())
  await reply.text()
  const file = await fetch(`${url}/v1/sessions/quiet/export`, { headers })
  if (!file.ok) throw new Error(await file.text())
  return Buffer.from(await file.arrayBuffer())
}

/** With numbers that no model makes, without the seal, and with the checksum of a whole file. */
function forged(state) {
  const [sealBytes, sumBytes] = [40, 4]
  const file = Buffer.from(state.subarray(0, state.length - sealBytes))
  const end = file.length - sumBytes
  file.writeFloatLE(1e30, end - 4)
  file.writeUInt32LE(crc32(file.subarray(0, end)), end)
  return file
}

/** Those of a report on an attack of this server, with its numbers (D1 to D15), and others. */
function hostileKinds(state) {
  const bob = KEYS.bob
  const list = (item, bytes) => `[${item.repeat(Math.floor(bytes / item.length))}0]`
  const fields = Array.from({ length: 500_000 }, (_, i) => `"k${i}":0`).join(',')
  const json = (value) => Buffer.from(typeof value === 'string' ? value : JSON.stringify(value))
  const words = 'x '.repeat(3_900_000)
  const long = { max_tokens: 65_536, ignore_eos: true, stream: true }
  const chat = '/v1/chat/completions'
  const completions = '/v1/completions'
  const batch = '/v1/batch/completions'
  const file = 'application/octet-stream'
  const translate = '/translate/v1/batch-translate'
  const to = { source_lang: 'en', target_lang: 'zh' }
  const text = (length) => 'ahgfedcb'.repeat(Math.ceil(length / 8)).slice(0, length)
  const many = (count, length) => Array.from({ length: count }, () => text(length))
  return [
    { name: 'fields, no key', path: chat, body: json(`{${fields}}`) },
    { name: 'lists, no key', path: chat, body: json(list('[],', 7.8e6)) },
    { name: 'announced, no key', path: chat, body: json(' '), length: 8_388_608 },
    { name: 'slow, no key', path: chat, body: json(' '.repeat(60_000)), length: 64_000 },
    {
      name: 'digits',
      path: translate,
      body: json({ ...to, placeholders: ['1', 'x', ''], text_list: ['1'.repeat(60_000)] }),
    },
    { name: 'words, translated', path: translate, key: bob, body: json({ ...to, text_list: [words] }) },
    {
      name: 'paragraphs',
      path: translate,
      key: bob,
      body: json({ ...to, text_list: many(120, 60).map((one) => `${one}\n\n`.repeat(1000)) }),
    },
    {
      name: 'objects kept',
      path: completions,
      key: bob,
      body: json(`{"prompt":"x",${JSON.stringify(long).slice(1, -1)},"metadata":${list('{},', 7.8e6)}}`),
    },
    {
      name: 'small objects kept',
      path: completions,
      key: bob,
      body: json(`{"prompt":"x",${JSON.stringify(long).slice(1, -1)},"metadata":${list('{},', 6e4)}}`),
      holds: 10_000,
    },
    { name: 'fields', path: chat, key: bob, body: json(`{${fields}}`) },
    { name: 'token ids', path: completions, key: bob, body: json(`{"prompt":${list('7,', 2e6)}}`) },
    { name: 'long prompt', path: completions, key: bob, body: json({ prompt: words, max_tokens: 1 }) },
    {
      name: '512 prompts',
      path: completions,
      key: bob,
      body: json({ prompt: many(512, 4000), max_tokens: 1 }),
      holds: 5000,
    },
    {
      name: '1024 contents',
      path: batch,
      key: bob,
      body: json({ contents: many(1024, 4000), stream: true }),
      holds: 5000,
    },
    {
      name: 'echo',
      path: completions,
      key: bob,
      body: json({ prompt: text(6000), echo: true, logprobs: 20, max_tokens: 0 }),
    },
    {
      name: 'logprobs',
      path: completions,
      key: bob,
      body: json({ prompt: 'x', n: 16, max_tokens: 2000, logprobs: 20, ignore_eos: true }),
    },
    { name: 'import', path: '/v1/sessions/s/import', key: bob, body: Buffer.alloc(100e6, 1), type: file },
    { name: 'deaf', path: completions, key: bob, body: json({ prompt: 'x', ...long, logprobs: 20 }), isDeaf: true },
    { name: 'deep', path: chat, key: bob, body: json('['.repeat(1e6)) },
    { name: 'long rows', path: completions, key: bob, body: json({ prompt: 'x', ...long }), holds: 10_000 },
    {
      name: 'paused',
      path: batch,
      key: bob,
      body: json({ contents: many(1024, 7000), max_tokens: 65_536 }),
      isPaused: true,
      holds: 5000,
    },
    {
      name: 'small, paused',
      path: batch,
      key: bob,
      body: json({ contents: many(64, 1000), max_tokens: 65_536 }),
      isPaused: true,
      holds: 2000,
    },
    {
      name: 'texts, translated',
      path: translate,
      key: bob,
      body: json({ ...to, text_list: many(512, 60) }),
      holds: 5000,
    },
    {
      name: 'newlines, translated',
      path: translate,
      key: bob,
      body: json({ ...to, text_list: [`a${'\n'.repeat(4e6)}b`] }),
    },
    { name: '60k tokens', path: completions, key: bob, body: json({ prompt: 'x '.repeat(30_000), max_tokens: 1 }) },
    { name: 'aborted', path: completions, key: bob, body: json({ prompt: 'x', ...long }), isReset: true },
    { name: "another's state", path: '/v1/sessions/s/import', key: bob, body: state, type: file },
    { name: 'forged state', path: '/v1/sessions/s/import', key: bob, body: forged(state), type: file },
    { name: 'pipelined, no key', raw: 'GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n'.repeat(2000), holds: 5000 },
    { name: 'slow headers, no key', raw: 'POST / HTTP/1.1\r\nhost: localhost\r\nx-a: ' },
    { name: 'long headers, no key', raw: `GET / HTTP/1.1\r\nhost: localhost\r\nx-a: ${'x'.repeat(17_000)}\r\n\r\n` },
    { name: 'two hosts, no key', raw: 'GET / HTTP/1.1\r\nhost: localhost\r\nhost: b\r\n\r\n' },
  ]
}
