/**
 * How much a model on the GPU differs from f32 on the CPU, with states in f32 and in f16: the error of the logits after
 * a prompt of 6 tokens and over 256 greedy steps of one token, relative to the largest logit, and how many best tokens
 * agree with the CPU. If they differ, the CPU's logits of both show how close it was. Prints a table for
 * docs/dev/numerics.md; random weights, seeded.
 *
 *   node test/cuda/numerics.ts [DEVICE] SIZE…       0.1b 0.4b 1.5b 7.2b; cuda:0 by default
 */
import { RANDOM_MODEL_SIZES } from '../../src/bench/random-model.ts'
import { randomModel } from '../../src/cli/bench/random-model.ts'
import { parseDevice } from '../../src/host/device-choice.ts'
import { loadRunner } from '../../src/host/load.ts'
import type { Runner } from '../../src/model/runner.ts'
import { someTokens } from '../helpers/runner.ts'

const PROMPT = 6
const STEPS = 256
/** Tokens that the CPU reads at a time. */
const CHUNK = 32

const [first = '', ...others] = process.argv.slice(2)
const device = parseDevice(first) ?? 'cuda:0'
const names = parseDevice(first) === undefined ? [first, ...others] : others
const sizes = RANDOM_MODEL_SIZES.filter((size) => names.includes(size))

/** Logits after each token of the row, in one step. */
function logitsOf(runner: Runner, tokens: Int32Array): Float32Array[] {
  const [row] = runner.step([{ slot: 0, tokens, samples: [], allLogits: true }])
  const vocab = runner.info.vocabSize
  return Array.from(tokens, (_, t) => row!.logits!.slice(t * vocab, (t + 1) * vocab))
}

function bestOf(logits: Float32Array): number {
  let best = 0
  for (let id = 1; id < logits.length; id++) if (logits[id]! > logits[best]!) best = id
  return best
}

/** The answer to the prompt, one token per step, and the logits that each token was the best of. */
function answer(runner: Runner, prompt: Int32Array) {
  runner.clearSlot(0)
  const logits = [logitsOf(runner, prompt).at(-1)!]
  const tokens = [bestOf(logits[0]!)]
  while (tokens.length < STEPS) {
    logits.push(logitsOf(runner, Int32Array.of(tokens.at(-1)!))[0]!)
    tokens.push(bestOf(logits.at(-1)!))
  }
  return { tokens, logits }
}

/** The same logits with f32 on the CPU, which reads the same answer. */
function expectedOf(runner: Runner, prompt: Int32Array, answered: readonly number[]) {
  runner.clearSlot(0)
  const all = Int32Array.of(...prompt, ...answered.slice(0, -1))
  const logits: Float32Array[] = []
  for (let t = 0; t < all.length; t += CHUNK) logits.push(...logitsOf(runner, all.subarray(t, t + CHUNK)))
  return logits.slice(prompt.length - 1)
}

function largest(logits: Float32Array): number {
  return logits.reduce((most, x) => Math.max(most, Math.abs(x)), 0)
}

/** Relative to the largest logit. */
function errorOf(actual: Float32Array, expected: Float32Array): number {
  return largest(actual.map((x, id) => x - expected[id]!)) / largest(expected)
}

function compare(gpu: Runner, cpu: Runner) {
  const prompt = someTokens(PROMPT, 3)
  const { tokens, logits } = answer(gpu, prompt)
  const expected = expectedOf(cpu, prompt, tokens)
  const errors = logits.map((row, i) => errorOf(row, expected[i]!))
  const gaps = tokens.flatMap((token, i) => {
    const row = expected[i]!
    const best = bestOf(row)
    return best === token ? [] : [(row[best]! - row[token]!) / largest(row)]
  })
  return { tokens, first: errors[0]!, worst: Math.max(...errors), gaps }
}

const short = (x: number) => x.toExponential(1)
process.stdout.write(
  '| model | states | after 6 tokens | worst of 256 steps | same best token | largest gap of the others | as with f32 states |\n' +
    '|---|---|--:|--:|--:|--:|--:|\n',
)
for (const size of sizes) {
  const model = randomModel(size)
  const cpu = loadRunner({ model, device: 'cpu', quant: 'f32', slots: 1, maxTokens: CHUNK })
  let withF32: readonly number[] | null = null
  for (const wkv of ['fp32', 'fp16'] as const) {
    const gpu = loadRunner({ model, device, wkv, slots: 1, maxTokens: CHUNK })
    const { tokens, first, worst, gaps } = compare(gpu, cpu)
    const differs = withF32?.findIndex((token, i) => token !== tokens[i]) ?? -1
    const same = withF32 === null ? '' : differs < 0 ? 'all 256' : `the first ${differs}`
    const agree = `${STEPS - gaps.length} of ${STEPS}`
    const gap = gaps.length === 0 ? '' : short(Math.max(...gaps))
    const cells = [size, wkv, short(first), short(worst), agree, gap, same]
    process.stdout.write(`| ${cells.join(' | ')} |\n`)
    withF32 ??= tokens
    gpu.dispose()
  }
  cpu.dispose()
}
