/**
 * Whether a GPU's logits depend on how a prompt is cut and on the other rows, at real sizes (R3 and R4 of
 * docs/dev/reliability.md); random weights, seeded.
 *
 *   node test/cuda/invariance.ts DEVICE SIZE [LONGEST] [STATES]       cuda:0 7.2b 16384 fp32
 *
 * Cuts: prompts of lengths around every boundary, up to LONGEST tokens, read in pieces of 1, 16, 128, 512 and 4,096,
 * then 64 greedy tokens. Each is compared with pieces of 4,096. Batches: rows with prompts of their own, 16 greedy
 * steps together, in order and permuted, compared bit for bit with each other and by value with each row alone.
 */
import { RANDOM_MODEL_SIZES } from '../../src/bench/random-model.ts'
import { randomModel } from '../../src/cli/bench/random-model.ts'
import { parseDevice } from '../../src/host/device-choice.ts'
import { loadRunner } from '../../src/host/load.ts'
import type { BatchRow } from '../../src/model/runner.ts'
import { draw, someTokens } from '../helpers/runner.ts'

const WHOLE = 4096
const PIECES = [WHOLE, 512, 128, 16, 1]
const EDGES = [16, 32, 128, 512, 2048]
const LONG = [2050, 8192, 16_384]
const ANSWER = 64
const BATCHES = [1, 2, 7, 32, 128, 320, 960]
/** Rows of a batch that also run alone. */
const ALONE = 32
const STEPS = 16

const [device = 'cuda:0', size = '1.5b', longest = '2050', wkv = 'fp32'] = process.argv.slice(2)
const runner = loadRunner({
  model: randomModel(RANDOM_MODEL_SIZES.find((name) => name === size)!),
  device: parseDevice(device)!,
  wkv: wkv === 'fp16' ? 'fp16' : 'fp32',
  slots: Math.max(...BATCHES),
  maxTokens: WHOLE,
})

interface Seen {
  readonly token: number
  /** The distance of the second best logit from the best, relative to the largest. */
  readonly gap: number
  readonly logits: Float32Array
}

function seen(logits: Float32Array): Seen {
  let [best, next, most] = [0, -1, 0]
  for (let id = 0; id < logits.length; id++) {
    const x = logits[id]!
    most = Math.max(most, Math.abs(x))
    if (x > logits[best]!) [best, next] = [id, best]
    else if (id !== best && (next < 0 || x > logits[next]!)) next = id
  }
  return { token: best, gap: (logits[best]! - logits[next]!) / most, logits }
}

/** One step; what each row's last token says. */
function step(rows: readonly { slot: number; tokens: Int32Array }[], isRead = true): Seen[] {
  const batch: BatchRow[] = rows.map((row) => ({ ...row, samples: [], allLogits: isRead }))
  const results = runner.step(batch)
  return isRead ? results.map(({ logits }) => seen(Float32Array.from(logits!))) : []
}

/** The last token is fed alone, so that every way ends with the same step. */
function answer(prompt: Int32Array, piece: number): Seen[] {
  runner.clearSlot(0)
  const last = prompt.length - 1
  for (let t = 0; t < last; t += piece)
    step([{ slot: 0, tokens: prompt.subarray(t, Math.min(t + piece, last)) }], false)
  const all = step([{ slot: 0, tokens: prompt.subarray(last) }])
  while (all.length < ANSWER) all.push(...step([{ slot: 0, tokens: Int32Array.of(all.at(-1)!.token) }]))
  return all
}

function largest(logits: Float32Array): number {
  return logits.reduce((most, x) => Math.max(most, Math.abs(x)), 0)
}

/** Absolute, and relative to the largest logit. */
function distance(a: Float32Array, b: Float32Array): [number, number] {
  const absolute = a.reduce((most, x, i) => Math.max(most, Math.abs(x - b[i]!)), 0)
  return [absolute, absolute / largest(b)]
}

const short = (x: number) => (x === 0 ? '0' : x.toExponential(1))
const say = (...cells: (string | number)[]) => process.stdout.write(`| ${cells.join(' | ')} |\n`)

function cuts(): void {
  const edges = EDGES.flatMap((edge) => [edge - 1, edge, edge + 1])
  const lengths = [1, 2, ...edges, ...LONG].filter((length) => length <= Number(longest))
  const whole = new Map(lengths.map((length) => [length, answer(someTokens(length, length), WHOLE)]))
  say(
    'pieces',
    'lengths',
    'logits bit for bit',
    'worst, absolute',
    'worst, relative',
    'same 64 tokens',
    'gaps at others',
  )
  for (const piece of PIECES.slice(1)) {
    const errors: [number, number][] = []
    const gaps: number[] = []
    for (const [length, expected] of whole) {
      const got = answer(someTokens(length, length), piece)
      errors.push(distance(got[0]!.logits, expected[0]!.logits))
      const at = got.findIndex(({ token }, i) => token !== expected[i]!.token)
      if (at >= 0) gaps.push(expected[at]!.gap)
    }
    const [absolute, relative] = [0, 1].map((i) => Math.max(...errors.map((error) => error[i]!)))
    const equal = errors.filter(([error]) => error === 0).length
    const same = `${lengths.length - gaps.length} of ${lengths.length}`
    say(piece, lengths.length, equal, short(absolute!), short(relative!), same, gaps.map(short).join(', '))
  }
}

interface Ran {
  readonly tokens: number[]
  /** After the last step. */
  readonly logits: Float32Array
}

/** Reads each row's prompt, then makes greedy steps of all rows; row r is in slot r, the steps have them in this order. */
function together(order: readonly number[]): Map<number, Ran> {
  for (const row of order) runner.clearSlot(row)
  // As many prompts in each step, whatever the order.
  for (let i = 0; i < order.length; i += 64)
    step(
      order.slice(i, i + 64).map((slot) => ({ slot, tokens: someTokens(16, slot) })),
      false,
    )
  const tokens = new Map(order.map((row) => [row, [1 + row]]))
  for (let t = 0; t < STEPS; t++) {
    const rows = order.map((slot) => ({
      slot,
      tokens: Int32Array.of(tokens.get(slot)!.at(-1)!),
      samples: [draw(slot, { temperature: 0, position: t })],
    }))
    for (const [i, { drawn }] of runner.step(rows).entries()) tokens.get(order[i]!)!.push(drawn[0]!.token)
  }
  const last = order.map((slot) => ({ slot, tokens: Int32Array.of(1), samples: [], allLogits: true }))
  const results = runner.step(last)
  return new Map(
    order.map((row, i) => [row, { tokens: tokens.get(row)!, logits: Float32Array.from(results[i]!.logits!) }]),
  )
}

function permuted(rows: readonly number[]): number[] {
  return [...rows].sort((a, b) => ((a * 7919) % 1009) - ((b * 7919) % 1009))
}

function batches(): void {
  const alone = Array.from({ length: ALONE }, (_, row) => together([row]).get(row)!)
  say('rows', 'permuted: same bits', 'alone: same bits', 'worst, relative', `same ${STEPS} tokens`)
  for (const size of BATCHES) {
    const rows = Array.from({ length: size }, (_, row) => row)
    const inOrder = together(rows)
    const mixed = together(permuted(rows))
    const same = (a: Ran, b: Ran) => a.tokens.every((token, t) => token === b.tokens[t])
    const equal = (a: Ran, b: Ran) => same(a, b) && distance(a.logits, b.logits)[0] === 0
    const numPermuted = rows.filter((row) => equal(mixed.get(row)!, inOrder.get(row)!)).length
    const compared = rows.slice(0, ALONE)
    const [numEqual, numSame] = [equal, same].map(
      (holds) => compared.filter((row) => holds(inOrder.get(row)!, alone[row]!)).length,
    )
    const errors = compared
      .filter((row) => same(inOrder.get(row)!, alone[row]!))
      .map((row) => distance(inOrder.get(row)!.logits, alone[row]!.logits)[1])
    const of = ` of ${compared.length}`
    say(size, `${numPermuted} of ${size}`, numEqual + of, short(Math.max(0, ...errors)), numSame + of)
  }
}

cuts()
batches()
runner.dispose()
