#!/usr/bin/env node
/**
 * Greedy answers of one device, for an oracle of other code to judge:
 *
 *   node scripts/greedy-answers.mjs MODEL|SIZE DEVICE OUT.json [quant] [rows] [prompts] [tokens]
 *   python3 tools/oracle/answers.py MODEL OUT.json …
 *
 * SIZE (tiny, 0.1b, 0.4b, …) is a model of random weights, the same on every machine. Half of the prompts are pieces of the
 * demo's samples where MODEL is the demo, the others tokens at random; 200 prompts of 4 to 64 tokens, 256 tokens each, at
 * most `rows` answers in a step. Needs dist/.
 */
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { sampleSpec } from '../dist/bench/plain-request.js'
import { RANDOM_MODEL_SIZES, writeRandomModel } from '../dist/bench/random-model.js'
import { seededRandom } from '../dist/bench/serve/random.js'
import { parseDevice, prepareDevice } from '../dist/host/device-choice.js'
import { loadRunner } from '../dist/host/load.js'

const [name, deviceName, out, quant = 'file', ...numbers] = process.argv.slice(2)
const [rows = 200, numPrompts = 200, numTokens = 256] = numbers.map(Number)
const [SHORTEST, LONGEST, STEP_TOKENS] = [4, 64, 512]

const random = seededRandom(23)
const pick = (count) => Math.floor(random() * count)

function promptsFor(model, vocabSize) {
  const isDemo = model.endsWith('demo.pth')
  const samples = isDemo ? JSON.parse(readFileSync(model.replace(/pth$/, 'samples.json'), 'utf8')) : []
  return Array.from({ length: numPrompts }, (_, i) => {
    const length = SHORTEST + pick(LONGEST - SHORTEST + 1)
    if (!isDemo || i % 2 === 1) return Array.from({ length }, () => 1 + pick(vocabSize - 1))
    const { prompt_ids, answer_ids } = samples[pick(samples.length)]
    const text = [...prompt_ids, ...answer_ids].filter((token) => token !== 0)
    const start = pick(Math.max(1, text.length - SHORTEST))
    return text.slice(start, start + length)
  })
}

function modelFile() {
  if (!RANDOM_MODEL_SIZES.includes(name)) return name
  const path = join(tmpdir(), `skein-random-${name}.pth`)
  return existsSync(path) ? path : writeRandomModel(path, name)
}

const model = modelFile()
const choice = { model, device: parseDevice(deviceName), quant, slots: rows, maxTokens: STEP_TOKENS }
await prepareDevice(choice)
const runner = loadRunner(choice)
const prompts = promptsFor(model, runner.info.vocabSize)
const answers = prompts.map(() => [])
const logprobs = prompts.map(() => [])

const land = async (step) => {
  const flight = runner.launch(step)
  while (!flight.isDone) await flight.landing
  return flight.result()
}

/** The next step of each: its prompt at first, then what it drew last; no more tokens than fit. */
async function run(group) {
  for (const [slot] of group.entries()) runner.clearSlot(slot)
  const take = (i, slot) => {
    const position = answers[i].length
    const tokens = Int32Array.from(position === 0 ? prompts[i] : [answers[i].at(-1)])
    return { slot, tokens, samples: [sampleSpec({ slot, seed: 7n, temperature: 0, position, logprobs: 0 })] }
  }
  for (let position = 0; position < numTokens; position++) {
    const waiting = group.map((i, slot) => [i, take(i, slot)])
    while (waiting.length > 0) {
      let room = STEP_TOKENS
      const fits = waiting.findIndex(([, { tokens }]) => {
        room -= tokens.length
        return room < 0
      })
      const now = waiting.splice(0, fits === -1 ? waiting.length : fits)
      for (const [j, { drawn }] of (await land(now.map(([, row]) => row))).entries()) {
        answers[now[j][0]].push(drawn[0].token)
        logprobs[now[j][0]].push(Number(drawn[0].logprob.logprob.toPrecision(7)))
      }
    }
  }
}

const began = performance.now()
const all = [...prompts.keys()]
for (let at = 0; at < all.length; at += rows) await run(all.slice(at, at + rows))
const { device, weightType } = runner.info
writeFileSync(out, JSON.stringify({ device, weightType, rows, prompts, answers, logprobs }))
const seconds = (performance.now() - began) / 1000
console.log(`${name} ${device}, ${weightType}, ${rows} rows: ${prompts.length} answers, ${seconds.toFixed(1)} s`)
runner.dispose()
process.exit(0)
