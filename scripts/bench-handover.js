// How long both processes are blocked while a large state is exported from a worker and imported again: node
// scripts/bench-handover.js [layers, default 32] [times, default 10]. Three streams run meanwhile. Needs a build.
import { fork } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { plainRequest } from '../dist/bench/plain-request.js'
import { channelToChild, channelToParent } from '../dist/engine/client/process-channel.js'
import { RemoteEngineClient } from '../dist/engine/client/remote-client.js'
import { serveEngine } from '../dist/engine/client/worker-loop.js'
import { Engine } from '../dist/engine/engine.js'
import { DEFAULT_STATE_OPTIONS } from '../dist/engine/states.js'
import { createRunner, paused, tokenBytes } from './large-states.js'

const [layers = 32, times = 10] = process.argv.slice(2).map(Number)
const NUM_STREAMS = 3

/** The longest wait of an immediate since the last call, without the pauses that stand for model steps. */
function watchLoop() {
  let longest = 0
  let last = performance.now()
  const tick = () => {
    const now = performance.now()
    longest = Math.max(longest, now - last - paused.ms)
    paused.ms = 0
    last = now
    setImmediate(tick)
  }
  tick()
  return () => {
    const ms = longest
    longest = 0
    return ms
  }
}

async function serve() {
  const longest = watchLoop()
  const sizes = { slots: 2, memory: { count: 8, bytes: Number.POSITIVE_INFINITY } }
  const engine = new Engine(createRunner(layers), tokenBytes, {}, { ...DEFAULT_STATE_OPTIONS, sizes })
  process.on('message', (message) => {
    if (message.type === 'longest') process.send({ type: 'longest', ms: longest() })
  })
  process.exit(await serveEngine(engine, channelToParent()))
}

async function drive() {
  const child = fork(fileURLToPath(import.meta.url), process.argv.slice(2), {
    serialization: 'advanced',
    env: { ...process.env, SKEIN_BENCH_WORKER: '1' },
  })
  const longestThere = () =>
    new Promise((resolve) => {
      const listen = (message) => {
        if (message.type !== 'longest') return
        child.off('message', listen)
        resolve(message.ms)
      }
      child.on('message', listen)
      child.send({ type: 'longest' })
    })
  const client = await RemoteEngineClient.connect(channelToChild(child))
  const use = { id: 's', ifMissing: 'create', ifBusy: 'wait', onCancel: 'drop' }
  for await (const _ of client.generate(plainRequest({ session: use })));
  for (let i = 0; i < NUM_STREAMS; i++) {
    const request = plainRequest({ id: `stream ${i}`, maxTokens: 1e6, cache: 'no-store' })
    void (async () => {
      for await (const _ of client.generate(request));
    })().catch(() => {})
  }
  const longestHere = watchLoop()
  const measure = async (name, work) => {
    const rows = []
    for (let i = 0; i < times; i++) {
      longestHere()
      await longestThere()
      const began = performance.now()
      await work(i)
      rows.push([performance.now() - began, longestThere(), longestHere()])
    }
    const of = async (column) => (await Promise.all(rows.map((row) => row[column]))).toSorted((a, b) => a - b)
    const [took, there, here] = [await of(0), await of(1), await of(2)]
    const show = (values) =>
      `median ${values[Math.floor(values.length / 2)].toFixed(1)}, longest ${values.at(-1).toFixed(1)} ms`
    console.log(`${name.padEnd(8)} took ${show(took)}; worker held up ${show(there)}; gateway ${show(here)}`)
  }
  let bytes = new Uint8Array(0)
  await measure('nothing', () => new Promise((resolve) => setTimeout(resolve, 300)))
  await measure('export', async () => {
    bytes = await client.call('sessions.export', { tenant: '', id: 's' })
  })
  console.log(`${(bytes.length / 1e6).toFixed(1)} MB`)
  await measure('import', (i) => client.call('sessions.import', { tenant: '', id: `i${i}`, bytes }))
  await client.close()
  process.exit()
}

await (process.env.SKEIN_BENCH_WORKER ? serve() : drive())
