/**
 * A checkpoint as the rest of the program sees it, whatever its file format: named tensors whose bytes are read when
 * asked for, so that loading never holds a second copy of the weights. Every format fills this interface under the
 * native RWKV names. Knows nothing of architectures.
 */
import { createHash } from 'node:crypto'
import { statSync } from 'node:fs'
import type { MatrixSource, SourceType } from '../backend/backend.ts'
import { SkeinError } from '../errors.ts'
import { openFile } from './formats/byte-source.ts'
import { BYTES_PER_ELEMENT, decodeFloats, elementBits } from './formats/half.ts'
import { openPth } from './formats/pth.ts'
import { type FileFormat, recogniseFormat } from './formats/recognise.ts'

export interface TensorEntry {
  readonly name: string
  readonly shape: readonly number[]
  readonly dtype: SourceType
  /**
   * Little-endian elements [start, end) in row-major order, at an address fit for their type. The view is valid until
   * the next read of any tensor of this checkpoint: all share one buffer.
   */
  read(start: number, end: number): Uint8Array
}

export interface Checkpoint {
  readonly path: string
  readonly format: 'pth'
  readonly tensors: ReadonlyMap<string, TensorEntry>
  readonly fileBytes: number
  close(): void
}

/** Recognised by content, not by name; `path` may lack its `.pth`. */
export function openCheckpoint(path: string): Checkpoint {
  const source = openFile(existingFile(path))
  try {
    const format = recogniseFormat(source)
    if (format.readable === 'zip') return openPth(source)
    throw unreadable(source.path, format)
  } catch (error) {
    source.close()
    throw error
  }
}

/** The whole tensor as f32; for the small ones. */
export function readFloats(entry: TensorEntry): Float32Array {
  return decodeFloats(entry.read(0, numElements(entry)), entry.dtype)
}

/** Product of the shape. Readers have checked that it is a safe integer and within the file. */
export function numElements(entry: { readonly shape: readonly number[] }): number {
  return entry.shape.reduce((product, size) => product * size, 1)
}

export function matrixSource(entry: TensorEntry): MatrixSource {
  const { name, dtype } = entry
  const [rows, columns] = matrixShape(entry)
  return {
    name,
    rows,
    columns,
    dtype,
    readRows: (start, end) => entry.read(start * columns, end * columns),
  }
}

/** The transpose, held in memory: for low-rank factors, which are stored [in, out]. */
export function transposedSource(entry: TensorEntry): MatrixSource {
  const { name, dtype } = entry
  const [columns, rows] = matrixShape(entry)
  const bits = transpose(elementBits(entry.read(0, rows * columns), dtype), columns, rows)
  const bytes = new Uint8Array(bits.buffer)
  const rowBytes = columns * BYTES_PER_ELEMENT[dtype]
  return {
    name,
    rows,
    columns,
    dtype,
    readRows: (start, end) => bytes.subarray(start * rowBytes, end * rowBytes),
  }
}

function matrixShape(entry: TensorEntry): readonly [rows: number, columns: number] {
  const [rows, columns] = entry.shape
  if (rows === undefined || columns === undefined || entry.shape.length !== 2) {
    throw new SkeinError(
      'unsupported_weights',
      `${entry.name} has shape [${entry.shape.join(', ')}]; a matrix was expected`,
    )
  }
  return [rows, columns]
}

function transpose(
  from: Uint16Array | Uint32Array,
  rows: number,
  columns: number,
): Uint16Array | Uint32Array {
  const to = from.slice()
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      to[column * rows + row] = from[row * columns + column]!
    }
  }
  return to
}

/** Tensors up to this many bytes are hashed whole. */
const WHOLE_TENSOR_BYTES = 16 * 1024
const NUM_SAMPLES = 16
const SAMPLE_BYTES = 512

/**
 * Sha256 (hex) over the sorted names, types, shapes and a sample of the bytes of every tensor: cheap for a file of
 * any size, the same in every format that stores the same values. Axes of size 1 do not count: formats differ in them.
 */
export function fingerprint(checkpoint: Checkpoint): string {
  const hash = createHash('sha256')
  for (const name of [...checkpoint.tensors.keys()].sort()) {
    const entry = checkpoint.tensors.get(name)! // a key of the map
    const shape = entry.shape.filter((size) => size !== 1)
    hash.update(`${JSON.stringify([name, entry.dtype, shape])}\n`)
    for (const [start, end] of sampledRanges(entry)) hash.update(entry.read(start, end))
  }
  return hash.digest('hex')
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

/** Only a regular file is opened: a pipe or a device could block for ever. */
function existingFile(path: string): string {
  for (const candidate of [path, `${path}.pth`]) {
    const stats = statSync(candidate, { throwIfNoEntry: false })
    if (stats?.isFile()) return candidate
    if (stats)
      throw unreadable(candidate, { found: stats.isDirectory() ? 'a directory' : 'a device' })
  }
  throw new SkeinError('not_found', `${path}: no such file, with or without .pth; check the path`)
}

function unreadable(path: string, format: Omit<FileFormat, 'readable'>): SkeinError {
  const advice = format.advice ?? 'give the .pth file of an RWKV model'
  return new SkeinError('unsupported_weights', `${path} is ${format.found}; ${advice}`)
}
