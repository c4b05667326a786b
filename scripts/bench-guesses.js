// How often guesses are right, with trained models: node scripts/bench-guesses.js MODEL --vocab FILE [--device cpu] [--quant int8]
// [--threads 1] and one or both of
//   --draft FILE --text FILE   how often a draft model draws what the model draws after passages of the text, and what this makes
//                              of a 7.2B and a draft of 0.1B on an H200 (docs/dev/measurements.md, On a GPU)
//   --copies FILE              copying tasks ([{"prompt", "answer"}]): the engine with and without lookup, one answer at once and 32
// Needs a build. tools/trained-models trains such models and writes such tasks.
import { readFileSync } from 'node:fs'
import { parseArgs } from 'node:util'
import { plainRequest, SEEDED_SAMPLING, sampleSpec } from '../dist/bench/plain-request.js'
import { loadTokenizer } from '../dist/host/checkpoints/open-model.js'
import { loadEngine, loadRunner } from '../dist/host/load.js'

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    vocab: { type: 'string' },
    device: { type: 'string', default: 'cpu' },
    quant: { type: 'string', default: 'file' },
    threads: { type: 'string', default: '1' },
    draft: { type: 'string' },
    text: { type: 'string' },
    copies: { type: 'string' },
    tokens: { type: 'string', default: '128' },
  },
})
const { vocab, device, quant } = values
const choice = { model: positionals[0], vocab, device, quant, threads: Number(values.threads) }
const tokenizer = loadTokenizer(choice)
const numTokens = Number(values.tokens)
/** As in src/engine/speculation/draft.ts. */
const COOLER = 0.7
const PASSAGES = 32
const PROMPT = 64

/** Milliseconds of steps of a 7.2B in f16 by their tokens, of a step of the draft model, and between steps with guesses. */
const H200 = { steps: [[1, 2.8], [2, 3.53], [4, 3.46], [6, 3.54], [8, 3.66]], draft: 0.24, gap: 0.21 } // biome-ignore format: a table
const LENGTHS = [0, 1, 2, 3, 4, 5, 6, 7]

/** For each passage, whether the draft model draws each token that the model draws after the same text. */
function agreement(temperature) {
  const ids = tokenizer.encode(readFileSync(values.text, 'utf8'))
  const apart = Math.floor(ids.length / PASSAGES)
  const slots = Array.from({ length: PASSAGES }, (_, slot) => slot)
  const size = { slots: PASSAGES, maxTokens: PASSAGES * PROMPT }
  const runners = [choice.model, values.draft].map((model) => loadRunner({ ...choice, ...size, model }))
  let fed = slots.map((slot) => Int32Array.from(ids.slice(slot * apart, slot * apart + PROMPT)))
  for (const runner of runners) for (const slot of slots) runner.clearSlot(slot)
  const agreed = slots.map(() => [])
  for (let position = 0; position < numTokens; position++) {
    const [drawn, guessed] = runners.map((runner, i) => {
      const own = (i === 0 ? 1 : COOLER) * temperature
      const rows = slots.map((slot) => ({
        slot,
        tokens: fed[slot],
        samples: [sampleSpec({ slot, position, stream: slot, temperature: own })],
      }))
      return runner.step(rows).map(({ drawn: [{ token }] }) => token)
    })
    for (const slot of slots) agreed[slot].push(drawn[slot] === guessed[slot])
    fed = drawn.map((token) => Int32Array.of(token))
  }
  for (const runner of runners) runner.dispose()
  return agreed
}

/** Tokens per second with so many guesses always: those after a wrong one are lost. Rows of more than eight tokens would feed again some that were right. */
function rateOf(agreed, length, isFree) {
  let [tokens, time] = [0, 0]
  for (const isRight of agreed) {
    for (let at = 0; at < isRight.length; ) {
      const guesses = Math.min(length, isRight.length - 1 - at)
      time += H200.steps.find(([most]) => 1 + guesses <= most)[1]
      if (guesses > 0) time += H200.gap + (isFree ? 0 : guesses * H200.draft)
      const wrong = isRight.slice(at, at + guesses).indexOf(false)
      const right = wrong === -1 ? guesses : wrong
      tokens += right + 1
      at += right + 1
    }
  }
  return (1000 * tokens) / time
}

if (values.draft !== undefined)
  for (const temperature of [0, 0.8, 1]) {
    const agreed = agreement(temperature)
    const share = agreed.flat().filter(Boolean).length / agreed.flat().length
    const plain = rateOf(agreed, 0, false)
    const rates = LENGTHS.map((length) => `${length} ${(rateOf(agreed, length, false) / plain).toFixed(2)}x`)
    console.log(
      `temperature ${temperature}: ${(100 * share).toFixed(1)} % of ${agreed.flat().length} guesses are right; by their number in a step: ${rates.join(', ')}`,
    )
  }

/** All tasks, so many at once: what was answered, tokens and tokens per second of wall and processor time. */
function answerAll(engine, tasks, streams, temperature) {
  const [answers, guesses] = [new Map(), { accepted: 0, rejected: 0 }]
  let [next, tokens] = [0, 0]
  const ask = () => {
    if (next === tasks.length) return
    const id = String(next++)
    const { prompt, length } = tasks[id]
    engine.submit(
      plainRequest({ id, prompt, maxTokens: length, sampling: { ...SEEDED_SAMPLING, temperature }, cache: 'no-store' }),
    )
  }
  for (let i = 0; i < streams; i++) ask()
  const begin = [performance.now(), process.cpuUsage().user]
  const [steps, promptTokens] = [engine.stats.steps, engine.stats.promptTokens]
  while (engine.hasWork)
    for (const event of engine.step()) {
      if (event.type === 'text') answers.set(event.id, [...(answers.get(event.id) ?? []), ...event.tokens])
      if (event.type === 'error') throw new Error(event.error.message)
      if (event.type !== 'finish') continue
      tokens += event.completionTokens
      for (const kind of ['accepted', 'rejected']) guesses[kind] += event.guesses?.lookup?.[kind] ?? 0
      ask()
    }
  const ms = [performance.now() - begin[0], (process.cpuUsage().user - begin[1]) / 1000]
  return {
    answers,
    guesses,
    tokens,
    ms,
    steps: engine.stats.steps - steps,
    promptTokens: engine.stats.promptTokens - promptTokens,
  }
}

if (values.copies !== undefined) {
  const tasks = JSON.parse(readFileSync(values.copies, 'utf8')).map(({ prompt, answer }) => {
    const wanted = tokenizer.encode(answer)
    return { prompt: Int32Array.of(0, ...tokenizer.encode(prompt)), wanted, length: wanted.length }
  })
  const open = async (speculate) => (await loadEngine({ ...choice, slots: 32, speculate })).engine
  const [off, lookup] = [await open('off'), await open('lookup')]
  for (const streams of [1, 32])
    for (const temperature of [0, 0.8]) {
      answerAll(lookup, tasks.slice(0, 4), streams, temperature)
      const [plain, guessed] = [off, lookup].map((engine) => answerAll(engine, tasks, streams, temperature))
      const same = tasks.filter(
        (_, i) => `${plain.answers.get(String(i))}` === `${guessed.answers.get(String(i))}`,
      ).length
      const right = tasks.flatMap(({ wanted }, i) =>
        Array.from(wanted, (token, at) => token === plain.answers.get(String(i))[at]),
      )
      const { accepted, rejected } = guessed.guesses
      const per = ({ tokens, ms }) => ms.map((one) => ((1000 * tokens) / one).toFixed(0)).join(' / ')
      console.log(
        `${streams} at once, temperature ${temperature}: ${((100 * right.filter(Boolean).length) / right.length).toFixed(1)} % of tokens as asked; ${accepted} of ${accepted + rejected} guesses right, ${((100 * accepted) / guessed.tokens).toFixed(0)} % of the tokens; steps ${plain.steps} -> ${guessed.steps}; tokens/s of wall / processor time ${per(plain)} -> ${per(guessed)} (${(plain.ms[0] / guessed.ms[0]).toFixed(2)}x / ${(plain.ms[1] / guessed.ms[1]).toFixed(2)}x); ${same} of ${tasks.length} answers the same`,
      )
    }
  for (const engine of [off, lookup]) await engine.close()
}
