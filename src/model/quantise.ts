/**
 * Writes a checkpoint with its large matrices rounded, as a safetensors file that loads with the same bits that rounding
 * at load gives. Tensors pass through in blocks of rows. Knows no device: who rounds is the caller's choice.
 */

import { BYTES_PER_ELEMENT } from '../backend/half.ts'
import { numScales, valueBytes } from '../backend/quantised.ts'
import type { MatrixSource, QuantisedRows, QuantisedType } from '../backend/weight-types.ts'
import { SkeinError } from '../errors.ts'
import { quote } from './formats/byte-source.ts'
import { type Checkpoint, numElements, type TensorEntry } from './formats/format.ts'
import { quantisedSourceOf, SCALE_SUFFIX, SCHEME_KEY, VERSION, VERSION_KEY } from './formats/safetensors/quantised.ts'
import { type WrittenBytes, type WrittenTensor, writeSafetensors } from './formats/safetensors/writer.ts'
import { heldType, matrixSource, writtenTensor } from './formats/tensor-values.ts'
import { quantisedType } from './weights.ts'

/** Rounds rows [start, end) of a source. */
export type Quantiser = (type: QuantisedType, source: MatrixSource, start: number, end: number) => QuantisedRows

interface QuantiseOptions {
  readonly scheme: QuantisedType
  readonly quantise: Quantiser
  readonly onProgress?: ((doneBytes: number, totalBytes: number) => void) | undefined
}

const PIECE_BYTES = 16 << 20

export function quantiseCheckpoint(
  checkpoint: Checkpoint,
  path: string,
  { scheme, quantise, onProgress = () => {} }: QuantiseOptions,
): void {
  const entries = [...checkpoint.tensors.values()]
  refuseQuantised(checkpoint, entries)
  const totalBytes = entries.reduce((sum, entry) => sum + numElements(entry) * BYTES_PER_ELEMENT[entry.dtype], 0)
  let doneBytes = 0
  const onPiece = (bytes: number) => {
    doneBytes += bytes
    onProgress(doneBytes, totalBytes)
  }
  const tensors = entries.flatMap((entry) => {
    const type = quantisedType(entry.name, scheme)
    if (type) return roundedTensors(entry, type, quantise, onPiece)
    // In the file's type; a matrix that another scheme packed, in the type that loading would give it.
    return writtenTensor(entry, heldType(entry), (elements) => onPiece(elements * BYTES_PER_ELEMENT[entry.dtype]))
  })
  writeSafetensors(path, tensors, { [SCHEME_KEY]: scheme, [VERSION_KEY]: VERSION })
}

/** Rounding what is rounded would add a second error to the first. */
function refuseQuantised({ path }: Checkpoint, entries: readonly TensorEntry[]): void {
  const rounded = entries.find(quantisedSourceOf)
  if (!rounded) return
  const message = `${path} is quantised already (${quote(rounded.name)}: ${quantisedSourceOf(rounded)?.type}); give the original file`
  throw new SkeinError('unsupported_weights', message)
}

/** The values, then the scales, which are kept until their turn comes. */
function roundedTensors(
  entry: TensorEntry,
  type: QuantisedType,
  quantise: Quantiser,
  onPiece: (bytes: number) => void,
): (WrittenTensor | WrittenBytes)[] {
  const source = matrixSource(entry)
  const { name, rows, columns } = source
  if (columns % 2 !== 0)
    throw new SkeinError(
      'unsupported_weights',
      `${name} has ${columns} columns; two weights share a byte, so an even number was expected`,
    )
  const scales: Uint8Array[] = []
  const rowBytes = columns * BYTES_PER_ELEMENT[entry.dtype]
  const step = Math.max(1, Math.floor(PIECE_BYTES / rowBytes))
  function* chunks() {
    for (let start = 0; start < rows; start += step) {
      const end = Math.min(start + step, rows)
      const rounded = quantise(type, source, start, end)
      scales.push(rounded.scales)
      yield rounded.values
      onPiece((end - start) * rowBytes)
    }
  }
  return [
    { name, shape: [rows, valueBytes(type, columns)], dtype: type === 'i8' ? 'i8' : 'u8', chunks },
    { name: name + SCALE_SUFFIX, shape: [rows, numScales(type, columns)], dtype: 'bf16', chunks: () => scales },
  ]
}
