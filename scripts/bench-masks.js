// What grammars cost a step: node scripts/bench-masks.js [MODEL] [--device cuda:0] [--wkv fp16] [--rows 32,320]
// [--seconds 3] [--rounds 2]. Runs the engine with that many answers at once. Four loads take turns: all free, all held
// to any JSON object, to a JSON schema (whose certain text is fed, not drawn), and to a pattern whose counts make masks
// slow. The vocabulary is artificial, as large as the World one. Without a MODEL the weights are random ones of 0.1B.
// Needs a build.
import { parseArgs } from 'node:util'
import { plainRequest } from '../dist/bench/plain-request.js'
import { randomModel } from '../dist/cli/bench/random-model.js'
import { Engine } from '../dist/engine/engine.js'
import { parseDevice } from '../dist/host/device-choice.js'
import { loadRunner } from '../dist/host/load.js'

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    device: { type: 'string', default: 'cuda:0' },
    wkv: { type: 'string', default: 'fp16' },
    rows: { type: 'string', default: '32,320' },
    seconds: { type: 'string', default: '3' },
    rounds: { type: 'string', default: '2' },
  },
})
const model = positionals[0] ?? randomModel('0.1b')
const [seconds, rounds] = [values.seconds, values.rounds].map(Number)
const allRows = values.rows.split(',').map(Number)
const WARM_UP_SECONDS = 1

const person = {
  type: 'object',
  properties: { name: { type: 'string' }, age: { type: 'integer' }, kind: { enum: ['child', 'adult', 'guest'] } },
  required: ['name', 'age', 'kind'],
}
const LOADS = {
  free: undefined,
  json: { type: 'schema', schema: { type: 'object' } },
  schema: { type: 'schema', schema: { type: 'array', items: person } },
  bounded: { type: 'regex', pattern: '([a-z]{1,9} [0-9]{1,3}[,;] ?)+' },
}

/** Tokens like a real vocabulary's: bytes, words with and without a space, punctuation, other letters. */
function tokens(vocabSize) {
  const all = new Set(Array.from({ length: 128 }, (_, byte) => String.fromCharCode(byte)))
  const signs = ['"', '{', '}', '[', ']', ':', ',', '(', ')', '.', ';', '=', '\\', '/', "'", ' ', '\n']
  const pairs = signs.flatMap((one) => signs.map((two) => one + two))
  const marks = [...pairs, ...signs.flatMap((one) => pairs.slice(0, 60).map((two) => one + two))]
  const syllables = 'ba ce di fo gu ha in jo ka le mi no pe qu ra st ti un ve wo xy za er on al th'
  const parts = syllables.split(' ')
  for (const mark of marks) all.add(mark)
  for (let i = 0; i < 1000; i++) all.add(String(i))
  for (let i = 0; i < 8000; i++) all.add(String.fromCodePoint(0x4e00 + i))
  for (let i = 0; all.size < vocabSize - 1; i++) {
    let word = ''
    for (let left = i + 1; left > 0; left = Math.floor(left / parts.length)) {
      word += parts[left % parts.length]
    }
    all.add(word).add(` ${word}`)
  }
  const bytes = [...all].slice(0, vocabSize - 1).map((text) => new TextEncoder().encode(text))
  const none = new Uint8Array(0)
  return { bytesOf: (id) => (id === 0 ? none : (bytes[id - 1] ?? none)) }
}

const slots = Math.max(...allRows)
const runner = loadRunner({
  model,
  device: parseDevice(values.device),
  wkv: values.wkv,
  slots,
  maxTokens: Math.max(512, slots),
})
runner.warmUp()
const engine = new Engine(runner, tokens(runner.info.vocabSize))

// Token ids below this exist in every measured vocabulary.
const numAsked = Math.min(9000, runner.info.vocabSize - 1)
let serial = 0
async function measure(load, rows) {
  const ask = () => {
    const prompt = Int32Array.from({ length: 16 }, (_, at) => 1 + ((serial * 31 + at * 7) % numAsked))
    const held = LOADS[load] === undefined ? {} : { constraint: LOADS[load] }
    const id = `r${serial++}`
    engine.submit(plainRequest({ id, prompt, maxTokens: 60_000, ...held }))
  }
  for (let i = 0; i < rows; i++) ask()
  const steps = []
  let began = null
  let [last, numDrawn] = [0, 0]
  for (;;) {
    const before = engine.stats
    const events = engine.turn()
    const now = performance.now()
    const { running, prefilling } = before
    const hasStepped = engine.stats.steps > before.steps
    if (began === null && running === rows && prefilling === 0) began = now
    const isWarm = began !== null && now - began > 1000 * WARM_UP_SECONDS
    if (isWarm && hasStepped) {
      if (last > 0) steps.push(now - last)
      last = now
    }
    if (events !== null) {
      for (const { type, error } of events) {
        if (type === 'error') throw new Error(`an answer failed: ${error.message}`)
        // New answers replace it: random texts end at random.
        if (type === 'finish') ask()
      }
    }
    if (isWarm && numDrawn === 0) numDrawn = -engine.stats.generatedTokens
    if (isWarm && now - began > 1000 * (WARM_UP_SECONDS + seconds)) break
    await new Promise((resolve) => setImmediate(resolve))
  }
  numDrawn += engine.stats.generatedTokens
  for (const id of engine.liveIds) engine.cancel(id)
  while (engine.hasWork) {
    engine.turn()
    await new Promise((resolve) => setImmediate(resolve))
  }
  if (engine.failure !== null) throw engine.failure
  steps.sort((a, b) => a - b)
  const at = (share) => steps[Math.floor(share * (steps.length - 1))]
  return { rate: numDrawn / seconds, p50: at(0.5), p99: at(0.99) }
}

console.log(`${model}, ${values.wkv}, ${runner.info.device}`)
console.log('  rows  load       tokens/s  of free   step p50 ms     p99')
for (const rows of allRows) {
  const results = new Map(Object.keys(LOADS).map((load) => [load, []]))
  for (let round = 0; round < rounds; round++) {
    for (const load of results.keys()) results.get(load).push(await measure(load, rows))
  }
  const mean = (load, what) => results.get(load).reduce((sum, one) => sum + one[what], 0) / results.get(load).length
  for (const load of results.keys()) {
    const [rate, p50, p99] = ['rate', 'p50', 'p99'].map((what) => mean(load, what))
    const share = `${((100 * rate) / mean('free', 'rate')).toFixed(1)} %`
    console.log(
      `${String(rows).padStart(6)}  ${load.padEnd(9)} ${rate.toFixed(0).padStart(9)} ${share.padStart(8)} ${p50.toFixed(2).padStart(13)} ${p99.toFixed(2).padStart(7)}`,
    )
  }
}
engine.dispose()
