/**
 * Which layers each device of a pipeline holds. Stages are ranges of layers, the embedding with the first and the head
 * with the last, such that the stage with most bytes of weights has as few as can be: it is the one that decides how
 * much memory a device needs, and about the slowest. Knows sizes, no device.
 */

import { PACKED_BLOCKS } from '../../backend/quantised.ts'
import { isPacked, isRounded, type PackedType, type WeightType } from '../../backend/weight-types.ts'
import { assert, SkeinError } from '../../errors.ts'
import { type Checkpoint, numElements, type TensorEntry } from '../formats/format.ts'
import { isHostTable } from '../formats/rwkv7-layout.ts'
import { fileType } from '../formats/tensor-values.ts'
import type { LayerRange } from '../model.ts'
import { quantisedType } from '../weights.ts'

/** Bytes of weights, in the order of the forward pass. */
interface ModelBytes {
  /** The embedding and its norm. */
  readonly input: number
  readonly layers: readonly number[]
  /** The head and its norm. */
  readonly output: number
}

const BITS: Readonly<Record<Exclude<WeightType, PackedType>, number>> = {
  f32: 32,
  f16: 16,
  bf16: 16,
  fp8: 8,
  i8: 8.5,
  q4: 4.5,
  nf4: 4.25,
}

/**
 * Bytes of the weights on devices once loaded, as far as the file tells: a backend may hold them in another precision. `holdsPacked`
 * false: the device holds matrices that the file has in GGUF's blocks as f16.
 */
export function modelBytes(checkpoint: Checkpoint, weightType?: WeightType, holdsPacked = true): ModelBytes {
  const sizes = { input: 0, layers: [] as number[], output: 0 }
  for (const entry of checkpoint.tensors.values()) {
    if (isHostTable(entry.name)) continue
    const bytes = (numElements(entry) * bitsOf(typeOf(entry, weightType, holdsPacked))) / 8
    const layer = /^blocks\.(\d+)\.(?!ln0\.)/.exec(entry.name)?.[1]
    if (layer !== undefined) sizes.layers[Number(layer)] = bytes + (sizes.layers[Number(layer)] ?? 0)
    else if (/^(emb|blocks\.0\.ln0)\./.test(entry.name)) sizes.input += bytes
    else sizes.output += bytes
  }
  return sizes
}

/** Bytes of the tables that stay in the host's memory, whatever the device. */
export function hostTableBytes({ tensors }: Checkpoint): number {
  return [...tensors.values()]
    .filter(({ name }) => isHostTable(name))
    .reduce((sum, entry) => sum + (numElements(entry) * BITS[entry.dtype]) / 8, 0)
}

function bitsOf(type: WeightType): number {
  if (!isPacked(type)) return BITS[type]
  const { elements, bytes } = PACKED_BLOCKS[type]
  return (8 * bytes) / elements
}

function typeOf(entry: TensorEntry, wanted: WeightType | undefined, holdsPacked: boolean): WeightType {
  const inFile = fileType(entry)
  const own = !holdsPacked && isPacked(inFile) ? 'f16' : inFile
  if (wanted === undefined) return own
  return isRounded(wanted) ? (quantisedType(entry.name, wanted) ?? own) : wanted
}

/** The ranges of `numStages` stages, in order; each has a layer at least. */
export function splitLayers(sizes: ModelBytes, numStages: number): LayerRange[] {
  const { layers } = sizes
  if (numStages < 1 || numStages > layers.length)
    throw new SkeinError(
      'invalid_request',
      `a model of ${layers.length} layers cannot be split over ${numStages} devices`,
      { param: 'pp-devices' },
    )
  return bestSplit(sizes, 0, numStages, new Map()).ranges
}

interface Split {
  readonly ranges: LayerRange[]
  /** Bytes of its largest stage. */
  readonly largest: number
}

/** The best way to split the layers from `from` on; what was found once is kept in `known`. */
function bestSplit(sizes: ModelBytes, from: number, numStages: number, known: Map<string, Split>): Split {
  const end = sizes.layers.length
  if (numStages === 1) return { ranges: [{ from, to: end }], largest: stageBytes(sizes, from, end) }
  const key = `${from} ${numStages}`
  let best = known.get(key)
  if (best !== undefined) return best
  for (let to = from + 1; to <= end - (numStages - 1); to++) {
    const rest = bestSplit(sizes, to, numStages - 1, known)
    const largest = Math.max(stageBytes(sizes, from, to), rest.largest)
    if (best === undefined || largest < best.largest) best = { ranges: [{ from, to }, ...rest.ranges], largest }
  }
  assert(best !== undefined, `no way to split ${end - from} layers over ${numStages} stages`)
  known.set(key, best)
  return best
}

/** Bytes of a stage of layers [from, to). */
export function stageBytes({ input, layers, output }: ModelBytes, from: number, to: number): number {
  const own = layers.slice(from, to).reduce((sum, bytes) => sum + bytes, 0)
  return own + (from === 0 ? input : 0) + (to === layers.length ? output : 0)
}
