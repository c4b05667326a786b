/**
 * What moving sessions cost the streams of a node. Starts `skein serve` as the only node of a cluster, keeps a number
 * of answers streaming, and adds turns of other sessions at a rate. Three phases repeat: without such turns; with turns
 * whose sessions stay on the node; with turns whose sessions another member takes before each turn, so that they return
 * with their states from memory to memory. That member is this process: a store without a model, so the device is the
 * node's.
 *
 *   node scripts/bench-moves.js MODEL postgres://… BLOBS [--streams 320] [--rates 4,16] [--seconds 8] [--rounds 2] [-- serve's flags …]
 *
 * At the end it prints where late tokens come from: of the gaps longer than 1.1 times the p99 of streams alone, how
 * many fall into each part of a move, and the share of time that this part takes.
 *
 * A process of its own reads the streams. Needs a build, an empty database, and --vocab FILE among serve's flags.
 * PROFILE=folder writes CPU profiles of the node's processes there.
 */
import { fork, spawn } from 'node:child_process'
import { once } from 'node:events'
import { Agent, request } from 'node:http'
import { setTimeout as delay } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'

const PORT = 8114
const BASE = `http://127.0.0.1:${PORT}`
const SELF = fileURLToPath(import.meta.url)
/** Enough that a session's turn ends before its next begins. */
const NUM_SESSIONS = 48
const TURN = { temperature: 0, ignore_eos: true, max_tokens: 4 }

/** Shorter gaps are not reported one by one. */
const LONG_MS = 10

const quantile = (sorted, share) => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? Number.NaN
const sortedOf = (values) => Float64Array.from(values).sort()

// --- the streams, in their own process -------------------------------------------------------------------------------

/** Keeps `count` answers streaming. Between the messages `begin` and `end` it records the gaps in each stream. */
function readStreams(count) {
  const agent = new Agent({ keepAlive: true, maxSockets: Number.POSITIVE_INFINITY })
  let gaps = null
  /** When each gap ended; milliseconds since 1970. */
  let ends = []
  let tokens = 0
  const failed = (error) => {
    process.stderr.write(`a stream failed: ${error}\n`)
    process.exit(1)
  }
  const follow = (index) => {
    const body = JSON.stringify({
      ...{ stream: true, temperature: 1, ignore_eos: true, max_tokens: 60_000, seed: index },
      prompt: Array.from({ length: 16 }, (_, i) => 1 + ((i * 37 + index * 53) % 250)),
    })
    let last = 0
    const headers = {
      'content-type': 'application/json',
      'content-length': Buffer.byteLength(body),
    }
    request(`${BASE}/v1/completions`, { method: 'POST', agent, headers })
      .once('response', (reply) => {
        if (reply.statusCode !== 200) failed(`status ${reply.statusCode}`)
        reply.on('data', (part) => {
          const now = performance.now()
          if (last === 0) process.send({ type: 'streaming' })
          if (gaps !== null && last > 0) {
            gaps.push(now - last)
            ends.push(performance.timeOrigin + now)
            tokens += part.toString('latin1').split('data: ').length - 1
          }
          last = now
        })
        reply.once('error', failed).once('end', () => failed('it ended'))
      })
      .once('error', failed)
      .end(body)
  }
  for (let i = 0; i < count; i++) follow(i)
  process.on('message', ({ type }) => {
    if (type === 'begin') {
      gaps = []
      ends = []
      tokens = 0
      return
    }
    const all = sortedOf(gaps)
    const long = gaps.flatMap((ms, i) => (ms > LONG_MS ? [[ends[i] - ms, ends[i]]] : []))
    gaps = null
    const [median, p99, p999] = [0.5, 0.99, 0.999].map((share) => quantile(all, share))
    process.send({ type: 'gaps', median, p99, p999, max: all.at(-1), tokens, long })
  })
  process.once('disconnect', () => process.exit())
}

// --- the member that takes sessions ----------------------------------------------------------------------------------

async function joinAsMember({ database: url, blobs, vocab }) {
  const { startStateServer } = await import('./state-server.js')
  const { Database } = await import('../dist/cluster/database.js')
  const { Members } = await import('../dist/cluster/members.js')
  const { CallerSeal } = await import('../dist/gateway/access/caller-seal.js')
  const { PUBLIC_TENANT } = await import('../dist/gateway/access/auth.js')
  const { identityOf } = await import('../dist/engine/kept/identity.js')
  const { modelKeyOf } = await import('../dist/state/model-key.js')
  const { sessionNamespace } = await import('../dist/state/namespace.js')
  const { openClusterStore } = await import('../dist/state/store/store-thread.js')
  const { Tokenizer } = await import('../dist/tokenizer/tokenizer.js')
  const database = await Database.open(url)
  const members = new Members(database)
  await members.refresh()
  const [node] = members.list
  const identity = identityOf(node.info.model, Tokenizer.fromFile(vocab).hash)
  if (modelKeyOf(identity) !== node.fingerprint) throw new Error('the model is another')
  const stateServer = await startStateServer()
  const own = `http://127.0.0.1:${stateServer.address().port}`
  const worker = { node: 'taker', url: own, model: 'nothing', slots: 1, info: {} }
  const store = await openClusterStore({
    database: url,
    blobs,
    identity,
    worker,
    isToldFirst: false,
  })
  const seal = new CallerSeal(database.secret)
  const namespace = sessionNamespace(database.secret, PUBLIC_TENANT)

  /** Takes a session from the node into this memory. */
  const take = async (id, timed = (_, work) => work) => {
    const released = fetch(`${BASE}/cluster/release`, {
      method: 'POST',
      headers: {
        'content-type': 'application/json',
        'x-skein-caller': seal.seal({ principal: null, mayTake: false }),
      },
      body: JSON.stringify({ model: node.model, sessions: [{ tenant: PUBLIC_TENANT, id }] }),
    })
    const reply = await timed('let go and offered by the node', released)
    const text = await reply.text()
    // Its last turn is still being written.
    if (reply.status === 409) {
      await delay(20)
      return take(id, timed)
    }
    if (!reply.ok) throw new Error(`not let go: ${reply.status} ${text}`)
    const { session } = await store.claim({ namespace, id }, false)
    const { record } = session
    const { key } = record.turns.find(({ turn }) => turn === record.head)
    const { state, tokens, tail } = await timed('fetched from the node', store.load(key, namespace))
    return { id, put: { key, floats: state, tokens, tail, namespace, isForeign: false } }
  }

  /** Offers it to the next member that asks. */
  const letGo = async ({ id, put }) => {
    await store.offer(put)
    await store.commit({ puts: [], sessions: [], deleteKeys: [], releases: [{ namespace, id }] })
  }

  const moves = async () => {
    const { rows } = await database.query(
      'select count(*) as count, count(*) filter (where is_direct) as direct from move',
    )
    return rows[0]
  }
  const close = async () => {
    await store.close()
    await database.close()
    stateServer.close()
  }
  return { take, letGo, moves, close, stateBytes: identity.layers * identity.channels * 66 * 4 }
}

/** The part of a move during which a late token was awaited; parts of several moves may overlap. */
function tellLate(phases, spans, lateMs) {
  const late = phases.flatMap(({ long }) => long).filter(([from, to]) => to - from > lateMs)
  const ms = phases.reduce((sum, phase) => sum + phase.ms, 0)
  const share = (part, whole) => `${((100 * part) / Math.max(1, whole)).toFixed(1)} %`
  console.log(`late, over ${lateMs.toFixed(1)} ms, while sessions move: ${late.length} gaps`)
  console.log('| part of a move | of the time | of the late gaps |')
  console.log('|---|--:|--:|')
  const parts = [...new Set(spans.map(({ what }) => what))]
  const meets = ([from, to], span) => span.from < to && span.to > from
  for (const what of parts) {
    const own = spans.filter((span) => span.what === what)
    const lasts = own.reduce((sum, { from, to }) => sum + to - from, 0)
    const hit = late.filter((gap) => own.some((span) => meets(gap, span)))
    console.log(`| ${what} | ${share(lasts, ms)} | ${share(hit.length, late.length)} |`)
  }
  const outside = late.filter((gap) => !spans.some((span) => meets(gap, span)))
  console.log(`| none | | ${share(outside.length, late.length)} |`)
}

// --- the whole -------------------------------------------------------------------------------------------------------

async function turn(id, index) {
  const began = performance.now()
  const reply = await fetch(`${BASE}/v1/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ ...TURN, session_id: id, prompt: [1 + (index % 200), 2, 3, 4] }),
  })
  const text = await reply.text()
  if (!reply.ok) throw new Error(`a turn failed: ${reply.status} ${text}`)
  return performance.now() - began
}

async function whenReady(server) {
  for (;;) {
    if (server.exitCode !== null) throw new Error(`skein serve ended with ${server.exitCode}`)
    await delay(200)
    const reply = await fetch(`${BASE}/readyz`).catch(() => null)
    if (reply?.ok) return
  }
}

async function main() {
  const at = process.argv.indexOf('--')
  const own = process.argv.slice(2, at < 0 ? undefined : at)
  const flags = at < 0 ? [] : process.argv.slice(at + 1)
  const text = (value) => ({ type: 'string', default: value })
  const { values, positionals } = parseArgs({
    args: own,
    allowPositionals: true,
    options: { streams: text('320'), rates: text('4,16'), seconds: text('8'), rounds: text('2') },
  })
  const [streams, seconds, rounds] = ['streams', 'seconds', 'rounds'].map((name) => Number(values[name]))
  const rates = values.rates.split(',').map(Number)
  const [model, database, blobs] = positionals
  const vocab = flags[flags.indexOf('--vocab') + 1]
  const folder = process.env.PROFILE
  const options = `--cpu-prof --cpu-prof-dir=${folder} --cpu-prof-interval=500`
  const profiled = folder === undefined ? {} : { NODE_OPTIONS: options }
  const cluster = ['--cluster', database, '--blobs', blobs, '--node-name', 'node']
  const server = spawn(
    process.execPath,
    [
      fileURLToPath(new URL('../dist/cli/main.js', import.meta.url)),
      ...['serve', model, '--port', String(PORT), '--slots', String(streams + 32)],
      ...['--log-level', 'warn', ...cluster, ...flags],
    ],
    { stdio: ['ignore', 'ignore', 'inherit'], env: { ...process.env, ...profiled } },
  )
  let reader = null
  try {
    await whenReady(server)
    const member = await joinAsMember({ database, blobs, vocab })
    const ids = Array.from({ length: NUM_SESSIONS }, (_, i) => `session ${i}`)
    for (const [i, id] of ids.entries()) await turn(id, i)
    reader = fork(SELF, ['streams', String(streams)])
    let numStreaming = 0
    await new Promise((resolve, reject) => {
      reader.on('message', ({ type }) => {
        if (type === 'streaming' && ++numStreaming === streams) resolve()
      })
      reader.once('exit', () => reject(new Error('the reader of streams ended')))
    })
    const warm = await member.take(ids[0])
    await member.letGo(warm)
    await turn(ids[0], 0)
    await delay(2000)
    const mebibytes = (member.stateBytes / 2 ** 20).toFixed(1)
    console.log(`${streams} streams; states of ${mebibytes} MiB; turns of ${TURN.max_tokens} tokens`)
    console.log(
      '| phase | tok/s | ITL median / p99 / p99.9 / longest ms | turns | turn median / p99 ms | out median / p99 ms |',
    )
    console.log('|---|--:|--:|--:|--:|--:|')
    let next = 0
    /** The parts of each move with start and end, milliseconds since 1970. */
    const spans = []
    const timed = async (what, work) => {
      const from = performance.timeOrigin + performance.now()
      const result = await work
      spans.push({ what, from, to: performance.timeOrigin + performance.now() })
      return result
    }
    const whileMoving = []
    const phase = async (name, perSecond, isMoving) => {
      const [turns, outs, going] = [[], [], []]
      const cycle = async (id, index) => {
        if (isMoving) {
          const began = performance.now()
          const taken = await member.take(id, timed)
          outs.push(performance.now() - began)
          await timed('offered by the member', member.letGo(taken))
        }
        turns.push(await (isMoving ? timed('its turn on the node', turn(id, index)) : turn(id, index)))
      }
      reader.send({ type: 'begin' })
      const began = performance.now()
      for (let i = 0; performance.now() - began < 1000 * seconds; i++) {
        if (perSecond === 0) await delay(100)
        else {
          going.push(cycle(ids[next++ % ids.length], i))
          await delay(Math.max(0, began + (1000 * (i + 1)) / perSecond - performance.now()))
        }
      }
      reader.send({ type: 'end' })
      const [answer] = await once(reader, 'message')
      const ms = performance.now() - began
      await Promise.all(going)
      const { median, p99, p999, max, tokens, long } = answer
      if (isMoving) whileMoving.push({ ms, long })
      else if (perSecond === 0) alone.push(p99)
      const of = (values) => {
        const all = sortedOf(values)
        return all.length === 0 ? '–' : `${quantile(all, 0.5).toFixed(0)} / ${quantile(all, 0.99).toFixed(0)}`
      }
      const gaps = [median, p99, p999, max].map((value) => value.toFixed(1)).join(' / ')
      const speed = ((1000 * tokens) / ms).toFixed(0)
      console.log(`| ${name} | ${speed} | ${gaps} | ${turns.length} | ${of(turns)} | ${of(outs)} |`)
      return p99
    }
    const ratios = []
    const alone = []
    for (let round = 0; round < rounds; round++) {
      const quiet = await phase('streams alone', 0, false)
      for (const rate of rates) {
        const stayed = await phase(`and ${rate} turns/s of sessions that stay`, rate, false)
        const moved = await phase(`and ${rate}/s of sessions that move`, rate, true)
        const [toAlone, toStayed] = [quiet, stayed].map((p99) => (moved / p99).toFixed(3))
        ratios.push(`${rate}/s: ${toAlone} (${toStayed})`)
      }
    }
    const { count, direct } = await member.moves()
    console.log(`ITL p99 with moves to that without (to that with turns that stay): ${ratios.join(', ')}`)
    console.log(`${count} moves, ${direct} from memory to memory`)
    tellLate(whileMoving, spans, 1.1 * Math.min(...alone))
    await member.close()
  } finally {
    reader?.removeAllListeners('exit')
    reader?.kill()
    server.kill(folder === undefined ? 'SIGKILL' : 'SIGTERM')
    if (folder !== undefined) await once(server, 'exit')
  }
}

if (process.argv[2] === 'streams') readStreams(Number(process.argv[3]))
else await main()
