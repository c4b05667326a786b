// How long it takes to store and load states of a large model, and how long the engine's thread is blocked meanwhile:
// node scripts/bench-store.js [MiB of wkv, default 32] [number of states, default 24]. Needs a build. Writes to a new
// temporary folder and removes it.
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { openStore } from '../dist/state/store/store-thread.js'

const [mebibytes = 32, count = 24] = process.argv.slice(2).map(Number)
const heads = 64
const identity = {
  architecture: 'rwkv7',
  layers: mebibytes,
  channels: 64 * heads,
  heads,
  headSize: 64,
  vocabulary: 'v',
  weights: 'w',
}
const state = [
  new Float32Array(mebibytes * 2 * 64 * heads).map((_, i) => Math.sin(i)),
  new Float32Array(mebibytes * heads * 64 * 64).map((_, i) => Math.cos(i)),
]
const dataFolder = mkdtempSync(join(tmpdir(), 'skein-bench-store-'))
const bytes = state[0].byteLength + state[1].byteLength

/** Ticks every millisecond. The longest pause between two ticks is how long a step would have waited. */
let longest = 0
let last = performance.now()
let isOver = false
function tick() {
  const now = performance.now()
  longest = Math.max(longest, now - last - 1)
  last = now
  if (!isOver) setTimeout(tick, 1)
}

function report(name, times) {
  const sorted = times.toSorted((a, b) => a - b)
  const at = (share) => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))]
  const [median, p99, stall] = [at(0.5), at(0.99), longest].map((ms) => ms.toFixed(1).padStart(7))
  console.log(`${name.padEnd(28)} median ${median} ms   p99 ${p99} ms   longest stall ${stall} ms`)
  longest = 0
}

async function timed(work) {
  const began = performance.now()
  await work()
  return performance.now() - began
}

function changeOf(i) {
  const key = `key${i}`
  const tokens = Int32Array.from({ length: 2000 }, (_, at) => at + i)
  const turn = { turn: 1, parent: 0, createdAt: 1, key, numTokens: 2001, bytes, isForeign: false }
  const times = { createdAt: 1, updatedAt: i, ttlMs: null }
  const record = { version: 1, head: 1, nextTurn: 2, turns: [turn], ...times }
  const put = { key, tokens, tail: Int32Array.of(1), floats: state }
  return {
    puts: [{ ...put, namespace: 'n', isForeign: false }],
    sessions: [{ namespace: 'n', id: `s${i}`, record }],
    deleteKeys: [],
  }
}

const store = await openStore({ dataFolder, identity, isDurable: true })
tick()
console.log(`${count} states of ${(bytes / 1e6).toFixed(1)} MB`)
const saves = []
for (let i = 0; i < count; i++) saves.push(await timed(() => store.commit(changeOf(i))))
report('save, synced', saves)
const loads = []
for (let i = 0; i < 10 * count; i++) {
  loads.push(await timed(() => store.load(`key${i % count}`, 'n')))
}
report('load', loads)
const busy = []
let isSaving = true
const saving = (async () => {
  for (let i = count; isSaving; i++) await store.commit(changeOf(i))
})()
for (let i = 0; i < 10 * count; i++) busy.push(await timed(() => store.load(`key${i % count}`, 'n')))
isSaving = false
await saving
report('load while others are saved', busy)
const claims = []
for (let i = 0; i < 200; i++) {
  claims.push(await timed(() => store.claim({ namespace: 'n', id: `new${i}` }, true)))
}
report('claim of a new session', claims)
isOver = true
await store.close()
rmSync(dataFolder, { recursive: true })
