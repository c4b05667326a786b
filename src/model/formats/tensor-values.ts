/**
 * The tensors of a checkpoint as the numbers and matrices that a model is made of, read when asked for. Knows nothing of
 * files or architectures.
 */

import { BYTES_PER_ELEMENT, decodeFloats, elementBits, encodeFloats } from '../../backend/half.ts'
import type { MatrixSource, SourceType, WeightType } from '../../backend/weight-types.ts'
import { SkeinError } from '../../errors.ts'
import { quote } from './byte-source.ts'
import { numElements, type TensorEntry } from './format.ts'
import { packedSourceOf } from './gguf/packed-source.ts'
import { quantisedSourceOf } from './safetensors/quantised.ts'
import type { WrittenTensor } from './safetensors/writer.ts'

/** The whole tensor as f32; for the small ones. */
export function readFloats(entry: TensorEntry): Float32Array {
  return decodeFloats(entry.read(0, numElements(entry)), entry.dtype)
}

export function matrixSource(entry: TensorEntry): MatrixSource {
  const { name, dtype } = entry
  const [rows, columns] = matrixShape(entry)
  const quantised = quantisedSourceOf(entry)
  const packed = packedSourceOf(entry)
  return {
    name,
    rows,
    columns,
    dtype,
    readRows: (start, end) => entry.read(start * columns, end * columns),
    ...(quantised && { quantised }),
    ...(packed && { packed }),
  }
}

/** The same without the blocks that the file holds it in. */
export function unpackedSource(entry: TensorEntry): MatrixSource {
  const { packed, ...source } = matrixSource(entry)
  return source
}

/** The default type of a large matrix: the file's own, few-bit types included. */
export function fileType(entry: TensorEntry): WeightType {
  return packedSourceOf(entry)?.type ?? quantisedSourceOf(entry)?.type ?? heldType(entry)
}

/**
 * The same where only plain types will do. Packed weights read as f32, and a 16-bit float is finer than any of their
 * steps, so f32 would double the memory for nothing.
 */
export function heldType({ dtype, packed }: Pick<TensorEntry, 'dtype' | 'packed'>): SourceType {
  return packed ? 'f16' : dtype
}

/** Elements of a tensor in another type. One that f16 cannot hold is refused, as backends do: it would be infinite. */
function converted(
  { name, dtype }: Pick<TensorEntry, 'name' | 'dtype'>,
  bytes: Uint8Array,
  to: SourceType,
): Uint8Array {
  const values = decodeFloats(bytes, dtype)
  if (to === 'f16' && values.some((value) => Math.abs(value) >= F16_OVERFLOW && value - value === 0))
    throw new SkeinError(
      'unsupported_weights',
      `${quote(name)} has a weight beyond ±65504, which does not fit f16; use bf16 or f32`,
    )
  return encodeFloats(values, to)
}

/** Read, and converted, in pieces; `onPiece` is told of their elements. */
export function writtenTensor(
  entry: TensorEntry,
  dtype: SourceType,
  onPiece: (elements: number) => void,
): WrittenTensor {
  const { name, shape } = entry
  const count = numElements(entry)
  function* chunks() {
    for (let start = 0; start < count; start += PIECE_ELEMENTS) {
      const end = Math.min(start + PIECE_ELEMENTS, count)
      const stored = entry.read(start, end)
      yield dtype === entry.dtype ? stored : converted(entry, stored, dtype)
      onPiece(end - start)
    }
  }
  return { name, shape, dtype, chunks }
}

const PIECE_ELEMENTS = 4 << 20

/** The smallest magnitude that rounds to an infinite f16. */
const F16_OVERFLOW = 65520

/** The same matrix, rounded to f16 as it is read. */
export function halvedSource(source: MatrixSource): MatrixSource {
  const readRows = (start: number, end: number) => converted(source, source.readRows(start, end), 'f16')
  return { ...source, dtype: 'f16', readRows }
}

/** The transpose, held in memory from the first of `readRows` on: for low-rank factors, which are stored [in, out]. */
export function transposedSource(entry: TensorEntry): MatrixSource {
  const { name, dtype } = entry
  const [columns, rows] = matrixShape(entry)
  const transposed = () => {
    const bits = elementBits(entry.read(0, rows * columns), dtype)
    return new Uint8Array(transpose(bits, columns, rows).buffer)
  }
  const rowBytes = columns * BYTES_PER_ELEMENT[dtype]
  let bytes: Uint8Array | undefined
  return {
    name,
    rows,
    columns,
    dtype,
    turned: matrixSource(entry),
    readRows(start, end) {
      bytes ??= transposed()
      return bytes.subarray(start * rowBytes, end * rowBytes)
    },
  }
}

function matrixShape(entry: TensorEntry): readonly [rows: number, columns: number] {
  const [rows, columns] = entry.shape
  if (rows === undefined || columns === undefined || entry.shape.length !== 2) {
    const message = `${entry.name} has shape [${entry.shape.join(', ')}]; a matrix was expected`
    throw new SkeinError('unsupported_weights', message)
  }
  return [rows, columns]
}

/** Rows and columns of a tile, which passes through memory of its own: rows of a matrix evict each other from the cache. */
const TILE = 32

export function transpose(from: Uint16Array | Uint32Array, rows: number, columns: number): Uint16Array | Uint32Array {
  const empty = (count: number) => (from instanceof Uint16Array ? new Uint16Array(count) : new Uint32Array(count))
  const to = empty(from.length)
  const tile = empty(TILE * TILE)
  for (let firstRow = 0; firstRow < rows; firstRow += TILE) {
    const height = Math.min(TILE, rows - firstRow)
    for (let first = 0; first < columns; first += TILE) {
      const width = Math.min(TILE, columns - first)
      for (let row = 0; row < height; row++) {
        const at = (firstRow + row) * columns + first
        for (let column = 0; column < width; column++) tile[column * TILE + row] = from[at + column]!
      }
      for (let column = 0; column < width; column++) {
        const at = (first + column) * rows + firstRow
        for (let row = 0; row < height; row++) to[at + row] = tile[column * TILE + row]!
      }
    }
  }
  return to
}
