// What state copies cost the steps beside them: node scripts/bench-copies.js MODEL [--device cuda:0] [--rows 320]
// [--seconds 12] [--rounds 2] [--loads 'nothing kept,both']. Runs the engine with that many requests at once; new ones
// start as others end. Four loads take turns for several rounds: nothing kept, prefixes kept, sessions kept (every
// other turn starts from memory), and both. Prints tokens per second, times between two steps, and the share of copies
// that were made. Needs a build.
import { parseArgs } from 'node:util'
import { plainRequest } from '../dist/bench/plain-request.js'
import { Engine } from '../dist/engine/engine.js'
import { DEFAULT_STATE_OPTIONS } from '../dist/engine/states.js'
import { parseDevice } from '../dist/host/device-choice.js'
import { loadRunner } from '../dist/host/load.js'

/** What request number i keeps. */
const LOADS = {
  'nothing kept': () => 'nothing',
  'prefixes kept': () => 'prefix',
  'sessions kept': () => 'turn',
  both: (i) => (i % 2 ? 'prefix' : 'turn'),
}

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    device: { type: 'string', default: 'cuda:0' },
    rows: { type: 'string', default: '320' },
    seconds: { type: 'string', default: '12' },
    rounds: { type: 'string', default: '2' },
    loads: { type: 'string', default: Object.keys(LOADS).join() },
    wkv: { type: 'string', default: 'fp32' },
  },
})
const [model = ''] = positionals
const [seconds, rounds, rows] = [values.seconds, values.rounds, values.rows].map(Number)
/** Further slots, for states of sessions and copies. */
const SPARE_SLOTS = 16
const PROMPT_TOKENS = 96
const ANSWER_TOKENS = 256
const WARM_UP_SECONDS = 6
const TURN = { ifMissing: 'create', ifBusy: 'wait', onCancel: 'drop' }

function openRunner() {
  const { wkv, device } = values
  const runner = loadRunner({ model, device: parseDevice(device), wkv, slots: rows + SPARE_SLOTS, maxTokens: 2048 })
  runner.warmUp()
  return runner
}

let serial = 0
function requestOf(load, vocabSize) {
  const i = serial++
  const kept = LOADS[load](i)
  const prompt = Int32Array.from(
    { length: PROMPT_TOKENS },
    (_, at) => 1 + ((i * 7919 + at * 104_729 + (i >> (at % 16))) % (vocabSize - 1)),
  )
  // Lengths differ, so that not all answers end in one step.
  const maxTokens = ANSWER_TOKENS / 2 + ((i * 37) % ANSWER_TOKENS)
  const request = plainRequest({ id: `r${i}`, prompt, maxTokens })
  if (kept === 'prefix') return request
  if (kept === 'nothing') return { ...request, cache: 'no-store' }
  // Two turns per session; the second comes when its state has left the slots.
  const id = `s${Math.floor(i / 4 / rows) * rows + (i % (2 * rows))}`
  return { ...request, session: { ...TURN, id } }
}

async function measure(engine, load) {
  const { vocabSize } = engine.info.model
  for (let i = 0; i < rows; i++) engine.submit(requestOf(load, vocabSize))
  const gaps = []
  const counts = { prefixes: 0, turns: 0, errors: 0 }
  let before = null
  let last = 0
  const began = performance.now()
  for (;;) {
    const { steps } = engine.stats
    const events = engine.turn()
    const now = performance.now()
    if (events !== null && events.length > 0) {
      if (before !== null) gaps.push(now - last)
      last = now
      for (const event of events) {
        if (event.type === 'error') counts.errors++
        if (event.type !== 'finish' && event.type !== 'error') continue
        if (before !== null && event.session !== undefined) counts.turns++
        else if (before !== null) counts.prefixes += 2
        engine.submit(requestOf(load, vocabSize))
      }
    }
    if (before === null && now - began > 1000 * WARM_UP_SECONDS) {
      before = { at: now, tokens: engine.stats.generatedTokens, steps }
      last = now
    }
    if (before !== null && now - before.at > 1000 * seconds) break
    await new Promise((resolve) => setImmediate(resolve))
  }
  const took = (performance.now() - before.at) / 1000
  const rate = (engine.stats.generatedTokens - before.tokens) / took
  for (const id of engine.liveIds) engine.cancel(id)
  while (engine.hasWork) {
    engine.turn()
    await new Promise((resolve) => setImmediate(resolve))
  }
  if (engine.failure !== null) throw engine.failure
  gaps.sort((a, b) => a - b)
  return { rate, gaps, counts, took }
}

const runner = openRunner()
/** Copies started, counted at the runner. */
const moves = { reads: 0, writes: 0 }
for (const [name, key] of [
  ['readState', 'reads'],
  ['writeState', 'writes'],
]) {
  const move = runner[name].bind(runner)
  runner[name] = (...args) => {
    moves[key]++
    return move(...args)
  }
}
const sizes = { slots: SPARE_SLOTS, memory: { count: 64, bytes: Number.POSITIVE_INFINITY } }
const limits = { ...DEFAULT_STATE_OPTIONS.limits, maxTurns: 2 }
const states = { ...DEFAULT_STATE_OPTIONS, sizes, limits, prefixBytes: 2e9 }
const bytes = { bytesOf: () => Uint8Array.of(97), encode: () => new Int32Array(0) }
const engine = new Engine(runner, bytes, {}, states)

const all = new Map(values.loads.split(',').map((load) => [load, []]))
for (let round = 0; round < rounds; round++) {
  for (const load of all.keys()) {
    const start = { ...moves }
    const result = await measure(engine, load)
    const { took } = result
    const perSecond = (count) => count / (took + WARM_UP_SECONDS)
    all.get(load).push({
      ...result,
      reads: perSecond(moves.reads - start.reads),
      writes: perSecond(moves.writes - start.writes),
    })
  }
}
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length
const at = (gaps, share) => gaps[Math.min(gaps.length - 1, Math.floor(share * gaps.length))]
let base = null
console.log(`${rows} rows, states of ${(runner.info.stateBytes / 1e6).toFixed(1)} MB, ${runner.info.device}`)
console.log('load            tokens/s   beside   step p50     p99     max ms   reads/s  asked/s  writes/s  errors')
for (const [load, results] of all) {
  const rate = mean(results.map((one) => one.rate))
  base ??= rate
  const step = [0.5, 0.99, 1].map((share) => mean(results.map(({ gaps }) => at(gaps, share))))
  const asked = mean(results.map(({ counts, took }) => (counts.prefixes + counts.turns) / took))
  const [reads, writes] = ['reads', 'writes'].map((key) => mean(results.map((one) => one[key])))
  const errors = results.reduce((sum, { counts }) => sum + counts.errors, 0)
  const cells = [
    rate.toFixed(0).padStart(8),
    `${((100 * rate) / base).toFixed(1)} %`.padStart(8),
    ...step.map((ms) => ms.toFixed(2).padStart(8)),
    reads.toFixed(0).padStart(9),
    asked.toFixed(0).padStart(8),
    writes.toFixed(0).padStart(8),
    String(errors).padStart(6),
  ]
  console.log(`${load.padEnd(15)} ${cells.join(' ')}`)
}
engine.dispose()
