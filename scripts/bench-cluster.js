// Measures a cluster's database and storage: node scripts/bench-cluster.js postgres://… BLOBS [MiB of wkv, default 32]
// Prints milliseconds of claims, of turns with small and large states, and of session moves between two workers, in
// turn from memory to memory and through the storage. Needs a build and an empty database; BLOBS is s3://… or
// file:///….
import { loadavg } from 'node:os'
import { openClusterStore } from '../dist/state/store/store-thread.js'
import { startStateServer } from './state-server.js'

const [database, blobs, mebibytes = 32] = process.argv.slice(2)

function identityOf(layers, heads) {
  const shape = { layers, channels: 64 * heads, heads, headSize: 64 }
  return { architecture: 'rwkv7', ...shape, vocabulary: 'v', weights: 'w' }
}

const stateServer = await startStateServer()

function open(node, identity) {
  const url = `http://127.0.0.1:${stateServer.address().port}`
  const worker = { node, url, model: 'bench', slots: 1, info: {} }
  return openClusterStore({ database, blobs, identity, worker, isToldFirst: false })
}

const nameOf = (id) => ({ namespace: 'n', id })

function changeOf({ layers, heads }, id, version) {
  const floats = [
    new Float32Array(layers * 2 * 64 * heads).fill(version),
    new Float32Array(layers * heads * 64 * 64).fill(1 / version),
  ]
  const bytes = floats.reduce((sum, each) => sum + each.byteLength, 0)
  const key = `${id} ${version} ${Math.random()}`
  const turn = {
    turn: version,
    parent: version - 1,
    createdAt: 1,
    key,
    numTokens: 2001,
    bytes,
    isForeign: false,
  }
  const times = { createdAt: 1, updatedAt: version, ttlMs: null }
  const record = { version, head: version, nextTurn: version + 1, turns: [turn], ...times }
  const text = { tokens: new Int32Array(2000), tail: Int32Array.of(1) }
  return {
    puts: [{ key, ...text, floats, namespace: 'n', isForeign: false }],
    sessions: [{ ...nameOf(id), record }],
    deleteKeys: [],
  }
}

async function measure(name, count, work) {
  const times = []
  for (let i = 1; i <= count; i++) {
    const began = performance.now()
    await work(i)
    times.push(performance.now() - began)
  }
  tell(name, times)
}

function tell(name, times) {
  times.sort((a, b) => a - b)
  const at = (share) => times[Math.min(times.length - 1, Math.floor(share * times.length))].toFixed(2)
  console.log(`${name.padEnd(44)} ${at(0.5).padStart(9)} ${at(0.99).padStart(9)}`)
}

console.log(`${''.padEnd(44)} ${'median'.padStart(9)} ${'p99'.padStart(9)}`)
const small = identityOf(2, 2)
const run = Math.random().toString(36).slice(2)
const one = await open('one', small)
await measure('take a new session', 500, (i) => one.claim(nameOf(`${run} ${i}`), true))
await measure('publish a turn, state of 67 KB in the row', 300, (i) => one.commit(changeOf(small, `${run} 1`, i)))
await one.close()
const large = identityOf(Number(mebibytes), 64)
const [from, to] = [await open('from', large), await open('to', large)]
const id = `${run} large`
await from.claim(nameOf(id), true)
await measure(`publish a turn, state of ${mebibytes} MiB as a blob`, 20, (i) => from.commit(changeOf(large, id, i)))
let [owner, next] = [from, to]
const times = { 'from memory to memory': [], 'by way of the storage': [] }
for (let i = 0; i < 60; i++) {
  const isDirect = i % 2 === 0
  const { session: before } = await owner.claim(nameOf(id), false)
  const { key } = before.record.turns[0]
  const { state, ...text } = await owner.load(key, 'n')
  const began = performance.now()
  if (isDirect) await owner.offer({ key, ...text, floats: state, namespace: 'n', isForeign: false })
  await owner.commit({ puts: [], sessions: [], deleteKeys: [], releases: [nameOf(id)] })
  await next.claim(nameOf(id), false)
  await next.load(key, 'n')
  times[isDirect ? 'from memory to memory' : 'by way of the storage'].push(performance.now() - began)
  ;[owner, next] = [next, owner]
}
for (const [way, all] of Object.entries(times)) tell(`move ${way}`, all)
console.log(`load of the machine ${loadavg()[0].toFixed(1)}`)
stateServer.close()
await from.commit({ puts: [], sessions: [{ ...nameOf(id), record: null }], deleteKeys: [] })
await from.close()
await to.close()
