// How long copies of states hold up the engine's thread: node scripts/bench-copies.js [layers, default 32]. The states are
// real ones of the CPU (4096 channels: with 32 layers those of a 7.2B model); the model is a pause of 10 ms that draws a
// fixed token. Compares copies made at once with copies in pieces. Needs a build.
import { plainRequest } from '../dist/bench/plain-request.js'
import { Engine } from '../dist/engine/engine.js'
import { DEFAULT_STATE_OPTIONS } from '../dist/engine/states.js'
import { createRunner, paused, tokenBytes } from './large-states.js'

const [layers = 32] = process.argv.slice(2).map(Number)
const NUM_STREAMS = 3
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
    paused.ms = 0
    engine.step()
    times.push(performance.now() - began - paused.ms)
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
  const engine = new Engine(createRunner(layers), tokenBytes, {}, states)
  let serial = 0
  for (const name of Object.keys(LOADS)) {
    const runs = Array.from({ length: 7 }, () => measure(engine, name, 128, serial++))
    report(copies, name, runs)
  }
  engine.dispose()
}
