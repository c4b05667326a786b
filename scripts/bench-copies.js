// How long copies of states hold up the engine's thread: node scripts/bench-copies.js [layers, default 32]. The states are
// real ones of the CPU (4096 channels: with 32 layers those of a 7.2B model); the model is a pause of 10 ms that draws a
// fixed token. Compares copies made at once with copies in pieces. Needs a build.
import { createCpuBackend } from '../dist/backend/cpu/cpu.js'
import { plainRequest } from '../dist/bench/plain-request.js'
import { Engine } from '../dist/engine/engine.js'
import { DEFAULT_STATE_OPTIONS } from '../dist/engine/states.js'

const [layers = 32] = process.argv.slice(2).map(Number)
const stateShape = { layers, channels: 4096, heads: 64, headSize: 64 }
const NUM_SLOTS = 16
const NUM_STREAMS = 3
const PAUSE_MS = 10

const tokenBytes = { bytesOf: () => Uint8Array.of(97), encode: () => new Int32Array(0) }
const nothing = new Int32Array(new SharedArrayBuffer(4))
let pausedMs = 0

function pause() {
  const began = performance.now()
  Atomics.wait(nothing, 0, 0, PAUSE_MS)
  pausedMs += performance.now() - began
}

function createRunner() {
  const backend = createCpuBackend({ threads: 1 })
  const states = backend.statePool(stateShape, NUM_SLOTS)
  for (let slot = 0; slot < NUM_SLOTS; slot++) states.clear(slot) // touches its memory
  const step = (rows) => {
    pause()
    return rows.map(({ samples }) => ({
      drawn: samples.map(() => ({ token: 5, logprob: null })),
    }))
  }
  return {
    info: {
      architecture: 'rwkv7',
      vocabSize: 10,
      numParameters: 0,
      stateShape,
      weightType: 'f32',
      weightBytes: 0,
      tableBytes: 0,
      stateBytes: states.bytesPerSlot,
      fingerprint: '',
      device: backend.description,
    },
    numSlots: NUM_SLOTS,
    maxTokens: 512,
    maxLogits: NUM_SLOTS,
    maxSamples: NUM_SLOTS,
    maxFlights: 1,
    feedsDraws: true,
    step,
    launch(rows) {
      const results = step(rows)
      return { isDone: true, results: () => results }
    },
    clearSlot: (slot) => states.clear(slot),
    copySlot: (from, to) => states.copy(from, to),
    poisonSlot: (slot) => states.poison(slot),
    resetPenalties: () => {},
    readState: (slot) => states.read(slot),
    readLayers: (slot, from, to, into) => states.readLayers(slot, from, to, into),
    writeState: (slot, state) => states.write(slot, state),
    writeLayers: (slot, from, to, state) => states.writeLayers(slot, from, to, state),
    dispose: () => backend.dispose(),
  }
}

const TURN = { ifMissing: 'create', ifBusy: 'wait', onCancel: 'drop' }
/** Sessions of which the next is never in a slot. */
const NUM_IN_MEMORY = 5

/** Each begins a request now and then. */
const LOADS = {
  'no requests': () => ({}),
  'requests that keep nothing': () => ({ cache: 'no-store' }),
  'turns that leave their slots': (i) => ({ session: { ...TURN, id: `s${i}` } }),
  'turns with a stop string': (i) => ({
    session: { ...TURN, id: `s${i}` },
    stop: { strings: ['b'], tokens: [], ignoreEos: true },
  }),
  'prompts that are kept': (i) => ({
    prompt: Int32Array.from({ length: 40 }, (_, at) => (i >> at) & 1),
  }),
  'turns from memory': (i) => ({ session: { ...TURN, id: `m${i % NUM_IN_MEMORY}` } }),
}

function measure(engine, name, numSteps, serial) {
  for (let i = 0; i < NUM_STREAMS; i++) {
    const id = `stream ${serial} ${i}`
    engine.submit(plainRequest({ id, maxTokens: 1e6, cache: 'no-store' }))
  }
  const times = []
  for (let step = 0; step < numSteps; step++) {
    if (step % 16 === 0 && name !== 'no requests') {
      const i = (serial * numSteps + step) / 16
      engine.submit(plainRequest({ id: `r${i}`, ...LOADS[name](i) }))
    }
    const began = performance.now()
    pausedMs = 0
    engine.step()
    times.push(performance.now() - began - pausedMs)
  }
  for (const id of engine.liveIds) engine.cancel(id)
  while (engine.hasWork) engine.step()
  if (engine.failure !== null) throw engine.failure
  return times.toSorted((a, b) => a - b)
}

function report(copies, name, runs) {
  const middle = (of) => runs.map(of).toSorted((a, b) => a - b)[Math.floor(runs.length / 2)]
  const show = (ms) => ms.toFixed(1).padStart(6)
  const p99 = middle((times) => times[Math.floor(0.99 * times.length)])
  const longest = middle((times) => times.at(-1))
  console.log(
    `${copies.padEnd(10)} ${name.padEnd(30)} p99 ${show(p99)} ms   longest ${show(longest)} ms`,
  )
}

for (const [copies, pieceBytes] of [
  ['at once', Number.POSITIVE_INFINITY],
  ['in pieces', DEFAULT_STATE_OPTIONS.pieceBytes],
]) {
  const sizes = { slots: 2, memory: { count: 8, bytes: Number.POSITIVE_INFINITY } }
  const states = { ...DEFAULT_STATE_OPTIONS, sizes, pieceBytes, prefixBytes: 4e8 }
  const engine = new Engine(createRunner(), tokenBytes, {}, states)
  let serial = 0
  for (const name of Object.keys(LOADS)) {
    const runs = Array.from({ length: 7 }, () => measure(engine, name, 128, serial++))
    report(copies, name, runs)
  }
  engine.dispose()
}
