/**
 * Drawing tokens, in float64, in the order of backend.ts: mask → bias → penalties → temperature → top-k, top-p and min-p on
 * one distribution → draw. Sorting the whole vocabulary is the definition; other backends must only agree with it.
 */
import { assert } from '../../errors.ts'
import type { PenaltyPool, Tensor } from '../backend.ts'
import {
  type Batch,
  MAX_TOP_LOGPROBS,
  maskWords,
  SAMPLE_FLOATS,
  SAMPLE_INTS,
  SampleFloat,
  SampleInt,
} from '../batch.ts'
import { RefPenaltyPool, type Seen } from './states.ts'
import { valuesOf } from './tensors.ts'

export function sample(batch: Batch, logits: Tensor, penalties: PenaltyPool): void {
  assert(penalties instanceof RefPenaltyPool, 'a penalty pool of another backend')
  const V = logits.shape[1]!
  for (let s = 0; s < batch.numSamples; s++) {
    const after = batch.sampleInts[s * SAMPLE_INTS + SampleInt.after]!
    if (after > 0 && batch.sampled[s - 1] !== after - 1) {
      batch.sampled[s] = -1
      continue
    }
    const row = batch.sampleRow[s]!
    const raw = valuesOf(logits).subarray(row * V, (row + 1) * V)
    batch.sampled[s] = raw.every(Number.isFinite) ? drawOne(batch, s, raw, penalties.seen(batch.sampleSlot[s]!)) : -1
  }
}

function drawOne(batch: Batch, s: number, raw: Float64Array, seen: Seen): number {
  const float = (name: keyof typeof SampleFloat) => batch.sampleFloats[s * SAMPLE_FLOATS + SampleFloat[name]]!
  const int = (name: keyof typeof SampleInt) => batch.sampleInts[s * SAMPLE_INTS + SampleInt[name]]!

  const scores = Float64Array.from(raw)
  const mask = int('mask')
  if (mask > 0) {
    const words = maskWords(raw.length)
    const row = batch.masks.subarray((mask - 1) * words, mask * words)
    for (let id = 0; id < raw.length; id++) if (((row[id >> 5]! >>> (id & 31)) & 1) === 0) scores[id] = -Infinity
  }
  for (let i = batch.biasStarts[s]!; i < batch.biasStarts[s + 1]!; i++)
    scores[batch.biasIds[i]!]! += batch.biasValues[i]!
  penalise(scores, seen, float('repetitionPenalty'), float('presencePenalty'), float('frequencyPenalty'))

  const greedy = float('temperature') <= 0 || int('topK') === 1 || float('topP') <= 0
  const key = [int('seedLow'), int('seedHigh'), int('position'), int('stream')] as const
  const token = greedy
    ? ranked(scores)[0]!
    : float('noise') > 0
      ? ranked(noisy(scores, float('temperature'), float('noise'), key))[0]!
      : drawFrom(
          nucleus(softmax(scores, float('temperature')), int('topK'), float('topP'), float('minP')),
          philox(...key),
        )

  count(seen, token, float('penaltyDecay'))
  if (int('topLogprobs') >= 0) reportLogprobs(batch, s, raw, token, int('topLogprobs'))
  return token
}

function penalise(scores: Float64Array, seen: Seen, repetition: number, presence: number, frequency: number): void {
  if (repetition !== 1)
    for (const token of new Set([...seen.prompt, ...seen.counts.keys()]))
      scores[token]! *= scores[token]! > 0 ? 1 / repetition : repetition
  for (const [token, times] of seen.counts) scores[token]! -= presence + frequency * times
}

function count(seen: Seen, token: number, decay: number): void {
  for (const [id, times] of seen.counts) seen.counts.set(id, times * decay)
  seen.counts.set(token, (seen.counts.get(token) ?? 0) + 1)
}

function softmax(scores: Float64Array, temperature: number): Float64Array {
  const best = scores.reduce((a, b) => Math.max(a, b))
  const weights = scores.map((score) => Math.exp((score - best) / temperature))
  const total = weights.reduce((a, b) => a + b)
  return weights.map((weight) => weight / total)
}

function noisy(
  scores: Float64Array,
  temperature: number,
  noise: number,
  key: readonly [seedLow: number, seedHigh: number, position: number, stream: number],
): Float64Array {
  let four = philoxFour(...key, 1)
  return scores.map((score, i) => {
    if (i > 0 && i % 4 === 0) four = philoxFour(...key, 1 + i / 4)
    return score / temperature + noise * four[i % 4]!
  })
}

/** Token ids from best to worst, ties by the smaller id. */
function ranked(scores: Float64Array): number[] {
  return Array.from(scores.keys()).sort((a, b) => scores[b]! - scores[a]! || a - b)
}

/** The kept tokens, best first, with their share of the whole distribution. */
function nucleus(
  probabilities: Float64Array,
  topK: number,
  topP: number,
  minP: number,
): readonly (readonly [token: number, probability: number])[] {
  const order = ranked(probabilities)
  const floor = minP * probabilities[order[0]!]!
  const kept: [number, number][] = []
  let mass = 0
  for (const token of order) {
    const probability = probabilities[token]!
    const isFull = (topK > 0 && kept.length >= topK) || (topP < 1 && mass >= topP)
    if (kept.length > 0 && (isFull || probability < floor || probability === 0)) break
    kept.push([token, probability])
    mass += probability
  }
  return kept
}

/** The token at which the running sum passes u × the kept mass. u in [0, 1). */
function drawFrom(kept: readonly (readonly [number, number])[], u: number): number {
  const target = u * kept.reduce((sum, [, probability]) => sum + probability, 0)
  let sum = 0
  for (const [token, probability] of kept) {
    sum += probability
    if (sum > target) return token
  }
  return kept.at(-1)![0]
}

/** Log-probabilities of the model itself: of the logits before bias, penalties and temperature. */
function reportLogprobs(batch: Batch, s: number, raw: Float64Array, token: number, k: number): void {
  const best = raw.reduce((a, b) => Math.max(a, b))
  const logTotal = best + Math.log(raw.reduce((sum, logit) => sum + Math.exp(logit - best), 0))
  batch.sampledLogprob[s] = raw[token]! - logTotal
  for (const [i, id] of ranked(raw).slice(0, k).entries()) {
    batch.topIds[s * MAX_TOP_LOGPROBS + i] = id
    batch.topLogprobs[s * MAX_TOP_LOGPROBS + i] = raw[id]! - logTotal
  }
}

/**
 * Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): a random number that is a
 * function of a key and a counter, so that a draw depends on its request and position alone and never on its batch.
 */
const MULTIPLIER_0 = 0xd2511f53n
const MULTIPLIER_1 = 0xcd9e8d57n
const WEYL_0 = 0x9e3779b9
const WEYL_1 = 0xbb67ae85

/** Uniform in [0, 1) with 24 bits, from key (seedLow, seedHigh) and counter (position, stream, 0, 0). */
export function philox(seedLow: number, seedHigh: number, position: number, stream: number): number {
  return philoxFour(seedLow, seedHigh, position, stream, 0)[0]
}

/** Four uniforms in [0, 1) with 24 bits, from key (seedLow, seedHigh) and counter (position, stream, block, 0). */
function philoxFour(
  seedLow: number,
  seedHigh: number,
  position: number,
  stream: number,
  block: number,
): [number, number, number, number] {
  let [c0, c1, c2, c3] = [position >>> 0, stream >>> 0, block >>> 0, 0]
  let [k0, k1] = [seedLow >>> 0, seedHigh >>> 0]
  for (let round = 0; round < 10; round++) {
    const p0 = MULTIPLIER_0 * BigInt(c0)
    const p1 = MULTIPLIER_1 * BigInt(c2)
    const next0 = (high(p1) ^ c1 ^ k0) >>> 0
    const next2 = (high(p0) ^ c3 ^ k1) >>> 0
    ;[c0, c1, c2, c3] = [next0, low(p1), next2, low(p0)]
    k0 = (k0 + WEYL_0) >>> 0
    k1 = (k1 + WEYL_1) >>> 0
  }
  return [uniform(c0), uniform(c1), uniform(c2), uniform(c3)]
}

function uniform(word: number): number {
  return (word >>> 8) * 2 ** -24
}

function high(product: bigint): number {
  return Number(product >> 32n)
}

function low(product: bigint): number {
  return Number(product & 0xffffffffn)
}
