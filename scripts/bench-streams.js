/**
 * Many streams of one gateway, with clients that read at once, at ten bytes per second, or not at all. The gateway is
 * the real one, in its own process. Behind it is a scripted worker, which sends an engine's messages at a chosen rate
 * (and saves states meanwhile), or the real worker with a model.
 *
 *   node scripts/bench-streams.js [--rate 50] [--text-bytes 5] [--logprobs N] [--seconds 20] [--saves N] [--model FILE] GROUP=COUNT …
 *
 * Groups: measured (reads at once, and is timed), quick (reads at once), slow (10 bytes per second), stopped (never
 * reads).
 *   many:  node scripts/bench-streams.js --saves 20 measured=100 quick=1900
 *   slow:  node scripts/bench-streams.js --rate 10 --text-bytes 1000 --seconds 75 measured=100 slow=1000 stopped=100
 * Needs a build and Linux. PROFILE=folder writes a CPU profile of the gateway there. SERVER_CORES=0,1 keeps gateway and
 * worker on these cores.
 */
import { execFileSync, fork } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { connect } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { monitorEventLoopDelay } from 'node:perf_hooks'
import { setTimeout as delay } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'

const SELF = fileURLToPath(import.meta.url)
const DIST = new URL('../dist/', import.meta.url)
const DEMO = fileURLToPath(new URL('../models/demo.pth', import.meta.url))
/** Smaller delays are the timer's own. */
const LOOP_TICK_MS = 10
const LOOK_EVERY_MS = 500
const SLOW_BYTES = 10
/** A state of the model of 0.1B parameters: 12 layers of 12 heads. */
const [LAYERS, HEADS] = [12, 12]

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    rate: { type: 'string', default: '50' },
    logprobs: { type: 'string' },
    'text-bytes': { type: 'string', default: '5' },
    seconds: { type: 'string', default: '20' },
    saves: { type: 'string', default: '0' },
    model: { type: 'string' },
    role: { type: 'string', default: 'load' },
  },
})
const [rate, numSaves, seconds] = [options.rate, options.saves, options.seconds].map(Number)

/** The text of a scripted token. */
const WORD = ' word'
const WORDS = Math.max(1, Math.floor(Number(options['text-bytes']) / WORD.length))

/** @param {string} path */
const built = (path) => import(new URL(path, DIST).href)

// --- the scripted worker ---------------------------------------------------------------------------------------------

async function work() {
  const { channelToParent } = await built('engine/client/process-channel.js')
  const channel = channelToParent()
  /** @type {Map<string, { id: string, left: number, k: number | null, hasBegun: boolean }>} */
  const live = new Map()
  const bytes = new TextEncoder().encode(' word')
  /** @param {number} k */
  const withTop = (k) => ({
    ...{ token: 1, logprob: -1.2345678, bytes },
    top: Array.from({ length: k }, (_, i) => ({ token: i + 1, logprob: -1.2345678 * (i + 1) })),
    topBytes: Array.from({ length: k }, (_, i) => new TextEncoder().encode(` word${i}`)),
  })
  channel.onMessage((/** @type {any} */ message) => {
    if (message.type === 'shutdown') process.exit(0)
    if (message.type === 'cancel') live.delete(message.id)
    if (message.type !== 'generate') return
    const { id, maxTokens, logprobs: k } = message.request
    live.set(id, { id, left: maxTokens, k, hasBegun: false })
  })
  channel.onClose(() => process.exit(0))
  const counts = { waiting: 0, numSlots: 4096, promptTokens: 0, generatedTokens: 0 }
  const ends = { finishedStop: 0, finishedLength: 0, aborted: 0, failed: 0, busySeconds: 0 }
  const info = {
    model: { architecture: 'rwkv7', vocabSize: 65536, fingerprint: 'scripted', device: 'none' },
    ...{ numSlots: 4096, maxWaiting: 4096, maxPromptTokens: 65536 },
  }
  channel.send({ type: 'ready', info })
  const text = WORD.repeat(WORDS)
  const begun = performance.now()
  const step = (/** @type {number} */ steps) => {
    const events = []
    for (const stream of live.values()) {
      const { id, k } = stream
      if (!stream.hasBegun) events.push({ type: 'prompt', id, logprobs: null })
      stream.hasBegun = true
      const logprobs = k === null ? null : [withTop(k)]
      events.push({ type: 'text', id, index: 0, text, tokens: [1], logprobs })
      stream.left--
      if (stream.left > 0) continue
      live.delete(id)
      const end = { reason: 'length', matched: null, completionTokens: 1 }
      events.push({ type: 'finish', id, index: 0, ...end })
    }
    const running = live.size
    const rest = { running, freeSlots: 4096 - running, steps, lastBatchTokens: running }
    channel.send({ type: 'step', events, stats: { ...counts, ...ends, ...rest } })
    const due = begun + (1000 * (steps + 1)) / rate
    setTimeout(() => step(steps + 1), Math.max(0, due - performance.now()))
  }
  step(1)
  if (numSaves > 0) await saveStates()
}

/** Through the store and its thread, as an engine does. */
async function saveStates() {
  const { openStore } = await built('state/store/store-thread.js')
  const channels = 64 * HEADS
  const shape = { layers: LAYERS, channels, heads: HEADS, headSize: 64 }
  const identity = { architecture: 'rwkv7', vocabulary: 'v', weights: 'w', ...shape }
  const shift = new Float32Array(LAYERS * 2 * channels).map((_, i) => Math.sin(i))
  const wkv = new Float32Array(LAYERS * channels * 64).map((_, i) => Math.cos(i))
  const dataFolder = mkdtempSync(join(tmpdir(), 'skein-streams-'))
  process.on('exit', () => rmSync(dataFolder, { recursive: true }))
  const store = await openStore({ dataFolder, identity, isDurable: true })
  const bytes = shift.byteLength + wkv.byteLength
  const numKept = 200
  for (let i = 0; ; i++) {
    const begun = performance.now()
    const key = `key${i}`
    const tokens = Int32Array.from({ length: 500 }, (_, at) => at + i)
    const turn = { turn: 1, parent: 0, createdAt: 1, key, numTokens: 501, bytes, isForeign: false }
    const times = { createdAt: 1, updatedAt: i, ttlMs: null }
    const record = { version: 1, head: 1, nextTurn: 2, turns: [turn], ...times }
    const put = { key, tokens, tail: Int32Array.of(1), floats: [shift, wkv] }
    await store.commit({
      puts: [{ ...put, namespace: 'n', isForeign: false }],
      sessions: [{ namespace: 'n', id: `s${i % numKept}`, record }],
      deleteKeys: i < numKept ? [] : [`key${i - numKept}`],
    })
    process.stdout.write(`saved ${i + 1}\n`)
    await delay(Math.max(0, begun + 1000 / numSaves - performance.now()))
  }
}

// --- the gateway -----------------------------------------------------------------------------------------------------

async function serve() {
  const saved = { all: 0, before: 0 }
  const url = await (options.model === undefined ? serveScript(countSaved) : serveModel())
  /** @param {string} line */
  function countSaved(line) {
    const count = /^saved (\d+)/.exec(line)?.[1]
    if (count !== undefined) saved.all = Number(count)
  }
  const loop = monitorEventLoopDelay({ resolution: LOOP_TICK_MS })
  let cpu = process.cpuUsage()
  process.on('message', (/** @type {any} */ message) => {
    if (message === 'end') process.exit(0)
    if (message === 'begin') {
      loop.enable()
      loop.reset()
      cpu = process.cpuUsage()
      saved.before = saved.all
      return
    }
    const ms = [loop.percentile(50), loop.percentile(99), loop.max].map((ns) => ns / 1e6 - LOOP_TICK_MS)
    const { user, system } = process.cpuUsage(cpu)
    const { rss, heapUsed, external, arrayBuffers } = process.memoryUsage()
    const memory = { rss, heapUsed, external, arrayBuffers }
    process.send?.({ ms, cpuMs: (user + system) / 1000, memory, saved: saved.all - saved.before })
  })
  process.on('disconnect', () => process.exit(0))
  process.send?.({ url })
}

/** @param {(line: string) => void} onLine */
async function serveScript(onLine) {
  const names = ['app', 'fleet/fleet', 'figures/metrics', 'fleet/supervisor', 'fleet/launch', 'http/connection']
  const [{ buildApp }, { Fleet }, { Metrics }, { Supervisor }, { DEFAULT_SPEC: spec }, { limitUnsentBytes }] =
    await Promise.all(names.map((name) => built(`gateway/${name}.js`)))
  const { loadTokenizer } = await built('host/checkpoints/open-model.js')
  const { pino } = await import('pino')
  const logger = pino({ level: 'silent' })
  const tokenizer = loadTokenizer({ model: DEMO })
  const args = [...process.argv.slice(2), '--role', 'worker']
  const fleet = new Fleet({
    launcher: (_launch, observer) => {
      const worker = () => ({ entry: SELF, args, execArgv: [] })
      const handle = new Supervisor({ worker, name: 'scripted', logger, ...observer, onLine })
      return { handle, tokenizer }
    },
  })
  const metrics = new Metrics(fleet.registry, fleet)
  const host = '127.0.0.1'
  const app = buildApp({ models: fleet.registry, metrics, keys: [], host, version: '0' })
  const launch = { id: 'scripted', file: DEMO, quant: null, startStates: [], vocab: null, spec }
  await fleet.create(launch).start()
  const url = await app.listen({ host, port: 0 })
  limitUnsentBytes(app.server)
  return url
}

async function serveModel() {
  const { startServer } = await built('host/server.js')
  const choice = { model: options.model, slots: 1240, maxTokens: 2048, maxWaiting: 4096 }
  return (await startServer(choice, { port: 0 })).url
}

// --- the clients -----------------------------------------------------------------------------------------------------

/** One for all clients: data that was read is processed first. */
const buffer = Buffer.alloc(2 ** 16)

class Group {
  numOpen = 0
  numChunks = 0
  /** The figures of a measured group while it runs. */
  numTokens = 0
  /** @type {number[]} */
  gapsMs = []
  isMeasuring = false

  /** @param {string} name @param {number} count */
  constructor(name, count) {
    this.name = name
    this.count = count
  }

  /** @param {string} url @param {string} body */
  open(url, body) {
    const { hostname, port } = new URL(url)
    let last = 0
    const read = (/** @type {number} */ size) => {
      this.numChunks++
      const now = performance.now()
      if (this.isMeasuring) {
        if (last > 0) this.gapsMs.push(now - last)
        this.numTokens += tokensIn(buffer.subarray(0, size))
      }
      last = now
      return true
    }
    const isQuick = this.name === 'quick' || this.name === 'measured'
    const place = { host: hostname, port: Number(port) }
    const socket = isQuick ? connect({ ...place, onread: { buffer, callback: read } }) : connect(place)
    const head = `POST /v1/completions HTTP/1.1\r\nhost: ${hostname}\r\ncontent-type: application/json`
    socket.write(`${head}\r\ncontent-length: ${body.length}\r\n\r\n${body}`)
    this.numOpen++
    socket.on('error', () => {})
    socket.on('close', () => this.numOpen--)
    if (isQuick) return
    // Its own buffer stays the same; the kernel holds the rest.
    if (this.name === 'stopped') socket.pause()
    else {
      const timer = setInterval(() => socket.read(SLOW_BYTES), 1000)
      socket.on('readable', () => {})
      socket.on('close', () => clearInterval(timer))
    }
  }
}

/** Reads scripted tokens; ignores those split between two reads. @param {Buffer} chunk */
function tokensIn(chunk) {
  let count = 0
  for (let at = chunk.indexOf(WORD); at !== -1; at = chunk.indexOf(WORD, at + WORD.length)) count++
  return count / WORDS
}

/** What the kernel holds for the server's sockets: bytes to send, and their memory. @param {string} url */
function kernelQueues(url) {
  const { port } = new URL(url)
  const args = ['-Htmno', 'state', 'all', 'sport', '=', `:${port}`]
  const text = execFileSync('ss', args, { encoding: 'utf8', maxBuffer: 2 ** 26 })
  const memory = [...text.matchAll(/skmem:\(.*?,w(\d+),/g)].map((match) => Number(match[1]))
  const open = text.match(/^ESTAB/gm)?.length ?? 0
  return { open, most: Math.max(0, ...memory), all: memory.reduce((sum, one) => sum + one, 0) }
}

/** @param {number[]} sorted @param {number} share */
const at = (sorted, share) => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? 0
/** @param {number} bytes */
const mebi = (bytes) => (bytes / 2 ** 20).toFixed(1)

async function load() {
  const groups = positionals.map((text) => {
    const [name = '', count] = text.split('=')
    return new Group(name, Number(count))
  })
  const execArgv = process.env.PROFILE === undefined ? [] : ['--cpu-prof', `--cpu-prof-dir=${process.env.PROFILE}`]
  const args = [...process.argv.slice(2), '--role', 'gateway']
  const cores = process.env.SERVER_CORES
  const pinned = ['-c', `${cores}`, process.execPath, ...execArgv]
  const gateway = fork(SELF, args, cores === undefined ? { execArgv } : { execPath: 'taskset', execArgv: pinned })
  const answer = () => new Promise((resolve) => gateway.once('message', resolve))
  const look = () => {
    const reply = answer()
    gateway.send('look')
    return reply
  }
  try {
    const { url } = await answer()
    const extra = options.logprobs === undefined ? {} : { logprobs: Number(options.logprobs) }
    const endless = { temperature: 0, ignore_eos: true, logit_bias: { 0: -100 } }
    const request = { prompt: 'Once', stream: true, max_tokens: 60_000, ...endless }
    const before = await look()
    for (const group of groups) {
      const body = JSON.stringify({ ...request, ...(group.name === 'measured' ? {} : extra) })
      for (let i = 0; i < group.count; i++) {
        group.open(url, body)
        if (i % 50 === 49) await delay(20)
      }
    }
    await delay(2000)
    const ownCpu = process.cpuUsage()
    for (const group of groups) {
      group.isMeasuring = group.name === 'measured'
      group.numChunks = 0
    }
    gateway.send('begin')
    const begun = performance.now()
    const most = { rss: 0, heapUsed: 0, external: 0, arrayBuffers: 0, kernelEach: 0, kernelAll: 0 }
    let open = 0
    while (performance.now() - begun < 1000 * seconds) {
      await delay(LOOK_EVERY_MS)
      if (process.env.QUIET !== undefined) continue
      const { memory } = await look()
      const queues = kernelQueues(url)
      open = queues.open
      if (process.env.VERBOSE)
        console.log(
          ((performance.now() - begun) / 1000).toFixed(1),
          queues.open,
          mebi(queues.most),
          mebi(queues.all),
          Object.values(memory).map(mebi).join(' '),
        )
      const now = { ...memory, kernelEach: queues.most, kernelAll: queues.all }
      for (const name of Object.keys(most)) most[name] = Math.max(most[name], now[name])
    }
    const { ms, cpuMs, saved } = await look()
    const wallMs = performance.now() - begun
    const { user, system } = process.cpuUsage(ownCpu)
    const gaps = groups.flatMap(({ gapsMs }) => gapsMs).sort((a, b) => a - b)
    const sum = (/** @type {(group: Group) => number} */ of) => groups.reduce((all, one) => all + of(one), 0)
    const isQuick = (/** @type {Group} */ { name }) => name === 'quick' || name === 'measured'
    const numMeasured = sum(({ name, count }) => (name === 'measured' ? count : 0))
    const tokensEach = sum(({ numTokens }) => numTokens) / numMeasured
    const tokens = tokensEach * sum((group) => (isQuick(group) ? group.count : 0))
    const figures = {
      streams: positionals.join(' '),
      'asked for, tokens/s each, log-probabilities': `${rate}, ${options.logprobs ?? 'none'}`,
      'tokens/s, of each measured and of all that read at once': `${((1000 * tokensEach) / wallMs).toFixed(1)} ${((1000 * tokens) / wallMs).toFixed(0)}`,
      'reads a second': ((1000 * sum(({ numChunks }) => numChunks)) / wallMs).toFixed(0),
      'gap of measured, ms p50 p99 max': [0.5, 0.99, 1].map((p) => at(gaps, p).toFixed(1)).join(' '),
      'gateway loop delay, ms p50 p99 max': ms.map((/** @type {number} */ one) => one.toFixed(1)).join(' '),
      'gateway CPU, cores': (cpuMs / wallMs).toFixed(2),
      'gateway CPU, us a token': ((1000 * cpuMs) / tokens).toFixed(1),
      'load CPU, cores': ((user + system) / 1000 / wallMs).toFixed(2),
      'states saved a second': ((1000 * saved) / wallMs).toFixed(1),
      'gateway MiB before: rss, heap, external': [before.memory.rss, before.memory.heapUsed, before.memory.external]
        .map(mebi)
        .join(' '),
      'gateway MiB most: rss, heap, external': [most.rss, most.heapUsed, most.external].map(mebi).join(' '),
      'kernel send queue: KiB most of one, MiB of all': `${(most.kernelEach / 1024).toFixed(0)} ${mebi(most.kernelAll)}`,
      'sockets open at the end': open,
    }
    for (const [name, value] of Object.entries(figures)) console.log(`${name.padEnd(50)} ${value}`)
  } finally {
    gateway.send('end')
    await new Promise((resolve) => gateway.once('exit', resolve))
  }
  process.exit(0)
}

await { load, gateway: serve, worker: work }[options.role]()
