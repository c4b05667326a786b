/** Checkpoints for tests: `.pth` files of given numbers, and small random models. */

import { encodeFloats } from '../../src/backend/half.ts'
import type { SourceType } from '../../src/backend/weight-types.ts'
import { writeRandomTensors, writeRandomWeights } from '../../src/bench/random-model.ts'
import { type Rwkv6Ranks, rwkv6Tensors } from '../../src/model/formats/rwkv6-layout.ts'
import type { Rwkv7Ranks } from '../../src/model/formats/rwkv7-layout.ts'
import { type PthOptions, writePth as writePthFile, ZipWriter } from '../../src/model/formats/torch/pth-writer.ts'

export interface PthTensorValues {
  readonly name: string
  readonly shape: readonly number[]
  readonly dtype?: SourceType
  /** The storage: exactly the tensor, row-major, unless strides or an offset say otherwise. */
  readonly values: ArrayLike<number>
  /** In elements. */
  readonly strides?: readonly number[]
  readonly storageOffset?: number
}

/** dtype defaults to f32. Values are rounded to it. */
export function writePth(path: string, tensors: readonly PthTensorValues[], options: PthOptions = {}): void {
  const files = tensors.map(({ values, dtype = 'f32', ...tensor }) => {
    const bytes = encodeFloats(Float32Array.from(values), dtype)
    return { ...tensor, dtype, storageElements: values.length, chunks: () => [bytes] }
  })
  writePthFile(path, files, options)
}

export interface RandomRwkv7Options extends PthOptions {
  readonly layers?: number
  /** A multiple of the head size. */
  readonly channels?: number
  readonly headSize?: number
  readonly vocab?: number
  readonly ranks?: Partial<Rwkv7Ranks>
  readonly ffn?: number
  readonly seed?: number
  readonly dtype?: SourceType
}

/** A random RWKV-7 model; by default 2 layers, 128 channels, 512 tokens, f32. Returns the path. */
export function writeRandomRwkv7(path: string, options: RandomRwkv7Options = {}): string {
  const { layers = 2, channels = 128, headSize = 64, vocab = 512, ranks = {} } = options
  const { ffn = 4 * channels, seed = 1, dtype = 'f32', ...pth } = options
  const dimensions = {
    layers,
    channels,
    heads: channels / headSize,
    headSize,
    ffnSize: ffn,
    vocabSize: vocab,
    ranks: { w: 32, a: 32, v: 16, g: 32, ...ranks },
  }
  writeRandomWeights(path, dimensions, { ...pth, seed, dtype })
  return path
}

export interface RandomRwkv6Options extends Omit<RandomRwkv7Options, 'ranks'> {
  readonly ranks?: Partial<Rwkv6Ranks>
}

/** A random RWKV-6 model; by default 2 layers, 128 channels, 512 tokens, f32. Returns the path. */
export function writeRandomRwkv6(path: string, options: RandomRwkv6Options = {}): string {
  const { layers = 2, channels = 128, headSize = 64, vocab = 512, ranks = {} } = options
  const { ffn = 3.5 * channels, seed = 1, dtype = 'f32', ...pth } = options
  const dimensions = {
    layers,
    channels,
    heads: channels / headSize,
    headSize,
    ffnSize: ffn,
    vocabSize: vocab,
    ranks: { mix: 32, decay: 64, ...ranks },
  }
  writeRandomTensors(path, rwkv6Tensors(dimensions), dimensions, { ...pth, seed, dtype })
  return path
}

/** An uncompressed zip of the given entries, for checkpoints whose pickle our writers would not make. */
export function writeZip(
  path: string,
  entries: Readonly<Record<string, Uint8Array | string>>,
  options: { readonly zip64?: boolean } = {},
): string {
  const zip = new ZipWriter(path, options)
  for (const [name, content] of Object.entries(entries)) {
    const bytes = Buffer.from(content)
    zip.add(name, bytes.length, [bytes])
  }
  zip.close()
  return path
}
