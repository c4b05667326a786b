/**
 * Writes RWKV-7 and RWKV-6 checkpoints of random weights: the shapes of the released sizes for benches, small ones for
 * tests. The spreads are chosen so that activations stay of order one, decays and learning rates vary over their range,
 * and ReLU² is zero as often as in trained models. The text of such a model means nothing.
 */

import { BYTES_PER_ELEMENT, encodeFloats } from '../backend/half.ts'
import type { SourceType } from '../backend/weight-types.ts'
import type { Checkpoint, TensorEntry } from '../model/formats/format.ts'
import { type NamedShape, type Rwkv7Dimensions, type Rwkv7Ranks, rwkv7Tensors } from '../model/formats/rwkv7-layout.ts'
import { type PthOptions, type PthTensor, writePth } from '../model/formats/torch/pth-writer.ts'
import { seededRandom } from './serve/random.ts'

export type RandomModelSize = keyof typeof SIZES

interface ModelSize {
  readonly layers: number
  readonly channels: number
  /** Rows of the per-token matrix of RWKV-7a. */
  readonly deepEmbed?: number
}

/** Layers and channels of the released models, and `tiny` for tests. */
const SIZES = {
  tiny: { layers: 3, channels: 512 },
  '0.1b': { layers: 12, channels: 768 },
  '0.4b': { layers: 24, channels: 1024 },
  '1.5b': { layers: 24, channels: 2048 },
  '2.9b': { layers: 32, channels: 2560 },
  '7.2b': { layers: 32, channels: 4096 },
  '13.3b': { layers: 61, channels: 4096 },
  '7a-0.1b': { layers: 12, channels: 768, deepEmbed: 32 },
} as const satisfies Readonly<Record<string, ModelSize>>

// Object.keys loses the names of SIZES.
export const RANDOM_MODEL_SIZES = Object.keys(SIZES) as readonly RandomModelSize[]

/** Low-rank sizes of the released models, by channels. */
const RANKS: Readonly<Record<number, Rwkv7Ranks>> = {
  512: { w: 64, a: 64, v: 32, g: 128 },
  768: { w: 64, a: 64, v: 32, g: 128 },
  1024: { w: 64, a: 64, v: 32, g: 160 },
  2048: { w: 96, a: 96, v: 64, g: 256 },
  2560: { w: 96, a: 96, v: 64, g: 320 },
  4096: { w: 128, a: 128, v: 96, g: 480 },
}

export function randomModelDimensions(size: RandomModelSize): Rwkv7Dimensions {
  const { layers, channels, deepEmbed }: ModelSize = SIZES[size]
  return {
    layers,
    channels,
    heads: channels / 64,
    headSize: 64,
    ffnSize: 4 * channels,
    vocabSize: 65536,
    ranks: { ...RANKS[channels]!, ...(deepEmbed !== undefined && { s: deepEmbed }) },
  }
}

/** Writes a model of a released size in bf16, always the same. Returns the path. */
export function writeRandomModel(path: string, size: RandomModelSize): string {
  writeRandomWeights(path, randomModelDimensions(size), { seed: 1, dtype: 'bf16' })
  return path
}

/** A bf16 checkpoint of a released size without a file, all zeros, to record a model without weights. */
export function shapesOnly(size: RandomModelSize): Checkpoint {
  const entries = rwkv7Tensors(randomModelDimensions(size)).map(({ name, shape }): TensorEntry => {
    const read = (start: number, end: number) => new Uint8Array(2 * (end - start))
    return { name, shape, dtype: 'bf16', read }
  })
  const tensors = new Map(entries.map((entry) => [entry.name, entry]))
  return { path: size, format: 'pth', fileBytes: 0, tensors, close() {} }
}

interface RandomWeightsOptions extends PthOptions {
  readonly seed: number
  readonly dtype: SourceType
}

export function writeRandomWeights(path: string, dimensions: Rwkv7Dimensions, options: RandomWeightsOptions): void {
  writeRandomTensors(path, rwkv7Tensors(dimensions), dimensions, options)
}

type Widths = Pick<Rwkv7Dimensions, 'channels' | 'ffnSize'>

/** The same for tensors of another architecture. */
export function writeRandomTensors(
  path: string,
  shapes: readonly NamedShape[],
  dimensions: Widths,
  options: RandomWeightsOptions,
): void {
  const { dtype } = options
  const source = new RandomSource(options.seed)
  const tensors = shapes.map(({ name, shape }): PthTensor => {
    const count = shape.reduce((product, size) => product * size, 1)
    const distribution = distributionOf(name, shape, dimensions)
    return { name, shape, dtype, chunks: () => source.draw(distribution, count, dtype) }
  })
  writePth(path, tensors, options)
}

type Distribution =
  | { readonly kind: 'normal'; readonly mean: number; readonly deviation: number }
  /** From 0 to 1. */
  | { readonly kind: 'uniform' }
  | { readonly kind: 'constant'; readonly value: number }

const normal = (deviation: number, mean = 0): Distribution => ({ kind: 'normal', mean, deviation })
const constant = (value: number): Distribution => ({ kind: 'constant', value })

/** Mean of ln2.bias: a direction common to all tokens, along which the rows of ffn.key are shifted down. */
const LN2_BIAS = 0.25
const KEY_GAIN = 0.6
/** Standard normal quantile of 0.88, the share of zero ReLU² outputs in trained RWKV-7 models. */
const ZERO_QUANTILE = 1.175

/** By the name of a tensor in its block: how its numbers lie, by what comes in and goes out. */
const DISTRIBUTIONS: readonly (readonly [RegExp, (shape: readonly number[], widths: Widths) => Distribution])[] = [
  [/^att\.[wav]2$|^ffn\.s2$/, ([inner]) => normal(0.3 / Math.sqrt(inner!))],
  [/^att\.time_(maa|decay)_w2$/, (shape) => normal(0.3 / Math.sqrt(shape.at(-2)!))],
  [/^att\.g2$/, ([inner]) => normal(1 / Math.sqrt(inner!))],
  [/^att\.[wavg]1$|^att\.time_(maa|decay)_w1$|^ffn\.s1$/, (_, widths) => normal(gainOf(widths))],
  [/\.(x_[rwkvag]|time_maa_[xwkvrg])$/, () => ({ kind: 'uniform' })],
  [/^(emb\.weight|att\.a0|att\.time_faaaa|ffn\.s_emb\.weight)$/, () => normal(0.5)],
  [/^ln1\.bias$/, () => normal(0.02)],
  [/^ln2\.bias$/, () => normal(0.02, LN2_BIAS)],
  [/^att\.(w0|time_decay)$/, () => normal(1.5, -2)],
  [/^att\.v0$/, () => normal(0.3, 0.7)],
  [/^att\.k_k$/, () => normal(0.1, 0.85)],
  [/^att\.k_a$/, () => normal(0.1, 1)],
  [/^att\.r_k$/, () => normal(0.1)],
  [/^(att\.(receptance|key|value)|ffn\.s_emb_x)\.weight$/, (_, widths) => normal(0.5 * gainOf(widths))],
  [/^att\.output\.weight$/, (_, widths) => normal(0.2 * gainOf(widths))],
  [/^ffn\.key\.weight$/, (_, widths) => normal(KEY_GAIN * gainOf(widths), -keyShift(widths.channels))],
  [/^ffn\.s0$/, () => normal(0.2, 1)],
  [/^ffn\.value\.weight$/, (_, { ffnSize }) => normal(0.3 / Math.sqrt(ffnSize))],
  [/^(att\.gate|ffn\.receptance|head)\.weight$/, (_, widths) => normal(gainOf(widths))],
  [/\.bias$/, () => constant(0)],
]

function gainOf({ channels }: Widths): number {
  return 1 / Math.sqrt(channels)
}

function distributionOf(name: string, shape: readonly number[], widths: Widths): Distribution {
  const local = name.replace(/^blocks\.\d+\./, '')
  const found = DISTRIBUTIONS.find(([pattern]) => pattern.test(local))
  return found === undefined ? constant(1) : found[1](shape, widths) // ln0, ln_x, ln_out and the other norms' weights
}

/**
 * How far to shift each element of ffn.key below zero, so that a product is negative with the wanted probability. Its
 * input, a uniform mix of two different tokens' norms, has variance 2/3 about the common bias.
 */
function keyShift(channels: number): number {
  return (ZERO_QUANTILE * KEY_GAIN * Math.sqrt(2 / 3 + LN2_BIAS ** 2)) / (channels * LN2_BIAS)
}

/** A prime, so that rows of a large matrix, which reuse the pool, start at different places in it. */
const POOL_SIZE = 262_139

/**
 * A pool of standard normal and one of uniform numbers. Drawing copies and scales from a random place; the gigabytes of
 * a large model repeat one scaled pool. That is enough, because the weights need to look random only to arithmetic.
 */
class RandomSource {
  readonly #random: () => number
  readonly #normal = new Float32Array(POOL_SIZE)
  readonly #uniform = new Float32Array(POOL_SIZE)

  constructor(seed: number) {
    this.#random = seededRandom(seed)
    for (let i = 0; i < POOL_SIZE; i++) {
      // Box-Muller; 1 − u keeps the logarithm finite.
      const radius = Math.sqrt(-2 * Math.log(1 - this.#random()))
      this.#normal[i] = radius * Math.cos(2 * Math.PI * this.#random())
      this.#uniform[i] = this.#random()
    }
  }

  *draw(distribution: Distribution, count: number, dtype: SourceType): Generator<Uint8Array> {
    const start = Math.floor(this.#random() * POOL_SIZE)
    const block = encodeFloats(this.#block(distribution, start, Math.min(count, POOL_SIZE)), dtype)
    const size = BYTES_PER_ELEMENT[dtype]
    for (let done = 0; done < count; done += POOL_SIZE)
      yield block.subarray(0, Math.min(count - done, POOL_SIZE) * size)
  }

  #block(distribution: Distribution, start: number, count: number): Float32Array {
    if (distribution.kind === 'constant') return new Float32Array(count).fill(distribution.value)
    const isNormal = distribution.kind === 'normal'
    const pool = isNormal ? this.#normal : this.#uniform
    const mean = isNormal ? distribution.mean : 0
    const deviation = isNormal ? distribution.deviation : 1
    return Float32Array.from({ length: count }, (_, i) => mean + deviation * pool[(start + i) % POOL_SIZE]!)
  }
}
