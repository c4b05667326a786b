/**
 * Writes a checkpoint, from whatever format it was read and with adapters merged, as a `.pth` or safetensors file under
 * native names. Tensors pass through in pieces, so a model larger than memory can be converted.
 */
import { extname } from 'node:path'
import { BYTES_PER_ELEMENT } from '../backend/half.ts'
import type { SourceType } from '../backend/weight-types.ts'
import { SkeinError } from '../errors.ts'
import { type Checkpoint, numElements, type TensorEntry } from './formats/format.ts'
import { SCHEME_KEY, VERSION_KEY } from './formats/safetensors/quantised.ts'
import { writeSafetensors } from './formats/safetensors/writer.ts'
import { heldType, writtenTensor } from './formats/tensor-values.ts'
import { writePth } from './formats/torch/pth-writer.ts'

interface ConvertOptions {
  /** Default: as stored; packed tensors as f16. */
  readonly dtype?: SourceType | undefined
  readonly onProgress?: ((doneBytes: number, totalBytes: number) => void) | undefined
}

export function convertCheckpoint(
  checkpoint: Checkpoint,
  path: string,
  { dtype, onProgress }: ConvertOptions = {},
): void {
  const entries = [...checkpoint.tensors.values()]
  const typeOf = (entry: TensorEntry) => dtype ?? heldType(entry)
  const sizeOf = (entry: TensorEntry) => numElements(entry) * BYTES_PER_ELEMENT[typeOf(entry)]
  const totalBytes = entries.reduce((sum, entry) => sum + sizeOf(entry), 0)
  let doneBytes = 0
  const tensors = entries.map((entry) =>
    writtenTensor(entry, typeOf(entry), (elements) => {
      doneBytes += elements * BYTES_PER_ELEMENT[typeOf(entry)]
      onProgress?.(doneBytes, totalBytes)
    }),
  )
  switch (extname(path).toLowerCase()) {
    case '.pth':
      writePth(path, tensors)
      return
    case '.safetensors':
      writeSafetensors(path, tensors, { ...textsOf(checkpoint), format: 'pt' })
      return
  }
  throw new SkeinError('invalid_request', `${path} ends in neither .pth nor .safetensors`)
}

/** Short texts that the file said of itself: its name, licence and the like. Of rounding nothing: it is undone here. */
function textsOf({ metadata = new Map() }: Checkpoint): Record<string, string> {
  const texts: Record<string, string> = {}
  for (const [key, value] of metadata) {
    if (key === SCHEME_KEY || key === VERSION_KEY) continue
    if (typeof value === 'string' && value.length < 1024) texts[key] = value
  }
  return texts
}
