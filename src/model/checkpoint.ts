/**
 * A checkpoint as the rest of the program sees it, whatever its file format: named tensors whose bytes are read when
 * asked for, so that loading never holds a second copy of the weights. Every format fills this interface under the
 * native RWKV names. Knows nothing of architectures.
 */

import { createHash } from 'node:crypto'
import { existsSync } from 'node:fs'
import type { MatrixSource, SourceType } from '../backend/backend.ts'
import { SkeinError } from '../errors.ts'
import { CHECKPOINT_SUFFIXES } from '../files/checkpoint-suffix.ts'
import { type ByteSource, openFile, quote } from './formats/byte-source.ts'
import {
  type Checkpoint,
  type FileFormat,
  numElements,
  type ReadableFormat,
  type TensorEntry,
} from './formats/format.ts'
import { openGguf } from './formats/gguf/checkpoint.ts'
import { BYTES_PER_ELEMENT, decodeFloats, elementBits, encodeFloats } from './formats/half.ts'
import { openHuggingFace } from './formats/hugging-face.ts'
import { withNativeNames } from './formats/native-names.ts'
import { statIfThere } from './formats/open-file.ts'
import { recogniseFormat } from './formats/recognise.ts'
import { quantisedSourceOf } from './formats/safetensors/quantised.ts'
import { openSafetensors } from './formats/safetensors/safetensors.ts'
import { openLegacyTorch } from './formats/torch/legacy.ts'
import { openPth } from './formats/torch/pth.ts'

/** A file recognised by content, not by name (`path` may lack its suffix), or a Hugging Face directory. */
export function openCheckpoint(path: string): Checkpoint {
  const found = existingPath(path)
  const checkpoint = found.isDirectory ? openHuggingFace(found.path) : openAny(found.path)
  try {
    return withNativeNames(checkpoint)
  } catch (error) {
    checkpoint.close()
    throw error
  }
}

/** Whether there is something at the path that openCheckpoint would try to read. */
export function existsCheckpoint(path: string): boolean {
  return ['', ...CHECKPOINT_SUFFIXES].some((suffix) => existsSync(`${path}${suffix}`))
}

/** Whether the path is a GGUF file, by its first bytes. */
export function isGguf(path: string): boolean {
  if (!statIfThere(path)?.isFile()) return false
  const source = openFile(path)
  try {
    return recogniseFormat(source).readable === 'gguf'
  } finally {
    source.close()
  }
}

const READERS: Readonly<Record<ReadableFormat, (source: ByteSource) => Checkpoint>> = {
  zip: openPth,
  'legacy torch': openLegacyTorch,
  safetensors: openSafetensors,
  gguf: openGguf,
}

function openAny(path: string): Checkpoint {
  const source = openFile(path)
  try {
    const format = recogniseFormat(source)
    if (format.readable) return READERS[format.readable](source)
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

export function matrixSource(entry: TensorEntry): MatrixSource {
  const { name, dtype } = entry
  const [rows, columns] = matrixShape(entry)
  const quantised = quantisedSourceOf(entry)
  return {
    name,
    rows,
    columns,
    dtype,
    readRows: (start, end) => entry.read(start * columns, end * columns),
    ...(quantised && { quantised }),
  }
}

/**
 * The type a tensor is held in when nobody asks for another. Packed weights read as f32, and a 16-bit float is finer
 * than any of their steps, so f32 would double the memory for nothing.
 */
export function heldType({ dtype, packed }: Pick<TensorEntry, 'dtype' | 'packed'>): SourceType {
  return packed ? 'f16' : dtype
}

/** Elements of a tensor in another type. One that f16 cannot hold is refused, as backends do: it would be infinite. */
export function converted(
  { name, dtype }: Pick<TensorEntry, 'name' | 'dtype'>,
  bytes: Uint8Array,
  to: SourceType,
): Uint8Array {
  const values = decodeFloats(bytes, dtype)
  if (
    to === 'f16' &&
    values.some((value) => Math.abs(value) >= F16_OVERFLOW && value - value === 0)
  )
    throw new SkeinError(
      'unsupported_weights',
      `${quote(name)} has a weight beyond ±65504, which does not fit f16; use bf16 or f32`,
    )
  return encodeFloats(values, to)
}

/** The smallest magnitude that rounds to an infinite f16. */
const F16_OVERFLOW = 65520

/** The same matrix, rounded to f16 as it is read. */
export function halvedSource(source: MatrixSource): MatrixSource {
  const readRows = (start: number, end: number) =>
    converted(source, source.readRows(start, end), 'f16')
  return { ...source, dtype: 'f16', readRows }
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

/** Only a regular file or a directory is opened: a pipe or a device could block for ever. */
function existingPath(path: string): { readonly path: string; readonly isDirectory: boolean } {
  for (const suffix of ['', ...CHECKPOINT_SUFFIXES]) {
    const candidate = `${path}${suffix}`
    const stats = statIfThere(candidate)
    if (!stats) continue
    if (!stats.isFile() && !stats.isDirectory()) throw unreadable(candidate, { found: 'a device' })
    return { path: candidate, isDirectory: stats.isDirectory() }
  }
  throw new SkeinError(
    'not_found',
    `${path}: no such file, with or without ${CHECKPOINT_SUFFIXES.join(', ')}; check the path`,
  )
}

function unreadable(path: string, format: Omit<FileFormat, 'readable'>): SkeinError {
  const advice = format.advice ?? 'give the .pth, .safetensors or .gguf file of an RWKV model'
  return new SkeinError('unsupported_weights', `${path} is ${format.found}; ${advice}`)
}
