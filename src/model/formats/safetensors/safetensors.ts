/**
 * Reads safetensors: eight bytes of length, a JSON header that places every tensor, then the tensors end to end. The
 * header is held to what the format demands: ranges that follow each other without hole or overlap and fill the file.
 * Knows nothing of what the names mean.
 */

import { BYTES_PER_ELEMENT } from '../../../backend/half.ts'
import type { QuantisedType, SourceType } from '../../../backend/weight-types.ts'
import { isObject, viewOf } from '../../../files/bytes.ts'
import { type ByteSource, checkRange, corrupt, quote, readBytes, unsupported } from '../byte-source.ts'
import type { Checkpoint, TensorEntry } from '../format.ts'
import { placedEntry, ReadBuffer } from '../read-buffer.ts'
import { quantisedEntry, SCALE_SUFFIX, schemeOf } from './quantised.ts'

/** The format's own limit. */
const MAX_HEADER_BYTES = 100_000_000
const MAX_RANK = 8
const MAX_TENSORS = 100_000
const METADATA = '__metadata__'

const DTYPES: ReadonlyMap<string, SourceType> = new Map([
  ['F32', 'f32'],
  ['F16', 'f16'],
  ['BF16', 'bf16'],
])
/** Types of quantised weights, in files that declare them. */
const BYTE_TYPES: ReadonlySet<string> = new Set(['I8', 'U8'])

/** Takes over the source: `close` of the checkpoint closes it. If this throws, the caller still owns it. */
export function openSafetensors(source: ByteSource): Checkpoint {
  const { header, dataOffset } = readHeader(source)
  const placed = Object.entries(header)
    .filter(([name]) => name !== METADATA)
    .map(([name, value]) => placeTensor(source, name, value))
  if (placed.length > MAX_TENSORS)
    throw unsupported(source, `has ${placed.length} tensors; a checkpoint has at most ${MAX_TENSORS}`)
  checkLayout(source, placed, source.size - dataOffset)
  const metadata = readMetadata(source, header[METADATA])
  const tensors = entriesOf(source, placed, dataOffset, schemeOf(source, metadata))
  const { path, size } = source
  const close = () => source.close()
  return { path, format: 'safetensors', tensors, metadata, fileBytes: size, close }
}

/** Tensors by name; those of bytes together with their scales, which are none of their own. */
function entriesOf(source: ByteSource, placed: readonly Placed[], dataOffset: number, scheme: QuantisedType | null) {
  const buffer = new ReadBuffer(source)
  const stored = new Map(placed.map(({ start, ...tensor }) => [tensor.name, { ...tensor, offset: dataOffset + start }]))
  const tensors = new Map<string, TensorEntry>()
  for (const tensor of stored.values()) {
    const { name, shape, offset } = tensor
    const dtype = DTYPES.get(tensor.dtype)
    if (dtype) {
      const isScale =
        name.endsWith(SCALE_SUFFIX) && BYTE_TYPES.has(stored.get(name.slice(0, -SCALE_SUFFIX.length))?.dtype ?? '')
      if (!isScale) tensors.set(name, placedEntry(buffer, { name, shape, dtype, offset }))
      continue
    }
    if (!scheme)
      throw unsupported(source, `tensor ${quote(name)} is of type ${quote(tensor.dtype)}; weights are F32, F16 or BF16`)
    tensors.set(name, quantisedEntry(source, scheme, tensor, stored.get(name + SCALE_SUFFIX)))
  }
  return tensors
}

type Json = Readonly<Record<string, unknown>>

function readHeader(source: ByteSource): { readonly header: Json; readonly dataOffset: number } {
  const length = Number(viewOf(readBytes(source, 0, 8, 'the header length')).getBigUint64(0, true))
  if (length > MAX_HEADER_BYTES)
    throw unsupported(source, `its header is ${length} bytes; at most ${MAX_HEADER_BYTES} are read`)
  const bytes = readBytes(source, 8, length, 'the header')
  const header = parseJson(source, bytes)
  if (!isObject(header)) throw corrupt(source, 'its header is not a JSON object')
  return { header, dataOffset: 8 + length }
}

function parseJson(source: ByteSource, bytes: Uint8Array): unknown {
  try {
    return JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(bytes))
  } catch {
    throw corrupt(source, 'its header is not JSON; the file is damaged, download it again')
  }
}

interface Placed {
  readonly name: string
  /** The format's own name of the type. */
  readonly dtype: string
  readonly shape: readonly number[]
  /** Bytes [start, end) of the data that follows the header. */
  readonly start: number
  readonly end: number
}

function placeTensor(source: ByteSource, name: string, value: unknown): Placed {
  const what = `tensor ${quote(name)}`
  if (!isObject(value)) throw corrupt(source, `${what} is not described by an object`)
  const { dtype: type, shape, data_offsets: offsets } = value
  if (typeof type !== 'string' || !isSizes(shape) || !isSizes(offsets) || offsets.length !== 2)
    throw corrupt(source, `${what} lacks a dtype, a shape or data_offsets of whole numbers`)
  const elementBytes = bytesPerElement(type)
  if (elementBytes === undefined)
    throw unsupported(source, `${what} is of type ${quote(type)}; weights are F32, F16 or BF16`)
  if (shape.length > MAX_RANK) throw unsupported(source, `${what} has ${shape.length} dimensions`)
  const [start, end] = [offsets[0]!, offsets[1]!]
  // A product beyond 2^53 loses digits, and is then no file's size either.
  const bytes = shape.reduce((product, size) => product * size, elementBytes)
  if (end - start !== bytes)
    throw corrupt(source, `${what} of shape [${shape}] and type ${type} has ${end - start} bytes`)
  return { name, dtype: type, shape, start, end }
}

function bytesPerElement(type: string): number | undefined {
  const dtype = DTYPES.get(type)
  return dtype ? BYTES_PER_ELEMENT[dtype] : BYTE_TYPES.has(type) ? 1 : undefined
}

/** Neither hole nor overlap nor rest: what the header does not name cannot hide in the file. */
function checkLayout(source: ByteSource, tensors: readonly Placed[], dataBytes: number): void {
  const ordered = tensors.toSorted((a, b) => a.start - b.start || a.end - b.end)
  let at = 0
  for (const { name, start, end } of ordered) {
    const problem = start < at ? 'overlaps the one before it' : 'begins after a hole'
    if (start !== at) throw corrupt(source, `tensor ${quote(name)} ${problem}`)
    at = end
  }
  if (at > dataBytes) checkRange(source, source.size - dataBytes, at, 'the data')
  if (at < dataBytes) throw corrupt(source, `${dataBytes - at} bytes at its end belong to no tensor`)
}

function readMetadata(source: ByteSource, value: unknown): ReadonlyMap<string, string> {
  if (value === undefined) return new Map()
  if (!isObject(value)) throw corrupt(source, 'its metadata is not an object')
  const entries = Object.entries(value)
  if (!entries.every((entry): entry is [string, string] => typeof entry[1] === 'string'))
    throw corrupt(source, 'its metadata holds something that is not text')
  return new Map(entries)
}

function isSizes(value: unknown): value is readonly number[] {
  return Array.isArray(value) && value.every((size: unknown) => Number.isSafeInteger(size) && Number(size) >= 0)
}
