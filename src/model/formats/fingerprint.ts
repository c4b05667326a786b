/** Identifies the weights of a model, whatever file they are in. */

import { BYTES_PER_ELEMENT } from '../../backend/half.ts'
import { hexOf, sha256 } from '../../files/digest.ts'
import { type Checkpoint, numElements, type TensorEntry } from './format.ts'

/** Tensors up to this many bytes are hashed whole. */
const WHOLE_TENSOR_BYTES = 16 * 1024
const NUM_SAMPLES = 16
const SAMPLE_BYTES = 512

/**
 * Sha256 (hex) over the sorted names, types, shapes and a sample of the bytes of every tensor: cheap for a file of
 * any size, the same in every format that stores the same values. Axes of size 1 do not count: formats differ in them.
 */
export function fingerprint(checkpoint: Checkpoint): string {
  const hash = sha256()
  for (const name of [...checkpoint.tensors.keys()].sort()) {
    const entry = checkpoint.tensors.get(name)! // a key of the map
    const shape = entry.shape.filter((size) => size !== 1)
    hash.update(`${JSON.stringify([name, entry.dtype, shape])}\n`)
    for (const [start, end] of sampledRanges(entry)) hash.update(entry.read(start, end))
  }
  return hexOf(hash.digest())
}

/** Evenly spaced, the first and last elements included. */
function sampledRanges(entry: TensorEntry): [start: number, end: number][] {
  const count = numElements(entry)
  const size = BYTES_PER_ELEMENT[entry.dtype]
  if (count * size <= WHOLE_TENSOR_BYTES) return [[0, count]]
  const length = SAMPLE_BYTES / size
  return Array.from({ length: NUM_SAMPLES }, (_, i) => {
    const start = Math.floor((i * (count - length)) / (NUM_SAMPLES - 1))
    return [start, start + length]
  })
}
