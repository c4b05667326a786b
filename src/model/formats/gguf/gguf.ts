/**
 * Reads the header of a GGUF file, versions 2 and 3: metadata, and the name, shape, type and place of every tensor.
 * Trusts nothing: counts and lengths are held against the bytes that are left before anything is made of them, and
 * every tensor lies inside the file and overlaps no other. Knows nothing of what keys and names mean.
 */
import { type ByteSource, checkRange, corrupt, quote, readBytes, unsupported } from '../byte-source.ts'
import { BLOCK_SIZES, GGUF_TYPES, type GgufType, OTHER_GGUF_TYPES } from './types.ts'

export interface GgufTensor {
  readonly name: string
  /** Outermost axis first, as everywhere here; the file has them the other way round. */
  readonly shape: readonly number[]
  readonly type: GgufType
  /** In the file. */
  readonly offset: number
  readonly bytes: number
}

export interface Gguf {
  readonly values: ReadonlyMap<string, string | number | boolean>
  readonly texts: ReadonlyMap<string, readonly string[]>
  readonly numbers: ReadonlyMap<string, readonly number[]>
  readonly tensors: readonly GgufTensor[]
}

const VERSIONS = [2, 3]
const DEFAULT_ALIGNMENT = 32
const MAX_ALIGNMENT = 1 << 20
const MAX_KEYS = 10_000
const MAX_TENSORS = 100_000
const MAX_RANK = 4
const MAX_NAME = 1024
const MAX_TEXT_BYTES = 16 * 1024 * 1024
/** The largest array in use is the vocabulary. */
const MAX_ITEMS = 1_048_576
const MAX_HEADER_BYTES = 100 * 1024 * 1024

export function readGguf(source: ByteSource): Gguf {
  const reader = new HeaderReader(source)
  reader.skip(4, 'the magic') // recognised by it
  const version = reader.u32()
  if (!VERSIONS.includes(version)) throw unsupported(source, `is GGUF version ${version}; versions 2 and 3 are read`)
  const numTensors = reader.count(MAX_TENSORS, 'tensors')
  const numKeys = reader.count(MAX_KEYS, 'keys')
  const metadata = readMetadata(reader, numKeys)
  const infos = Array.from({ length: numTensors }, () => readInfo(reader))
  const alignment = alignmentOf(source, metadata.values)
  const dataOffset = Math.ceil(reader.position / alignment) * alignment
  const tensors = infos.map((info) => placeTensor(source, info, dataOffset, alignment))
  checkNamesAndOverlaps(source, tensors)
  return { ...metadata, tensors }
}

function readMetadata(reader: HeaderReader, count: number): Omit<Gguf, 'tensors'> {
  const values = new Map<string, string | number | boolean>()
  const texts = new Map<string, readonly string[]>()
  const numbers = new Map<string, readonly number[]>()
  const seen = new Set<string>()
  for (let i = 0; i < count; i++) {
    const key = reader.text(MAX_NAME)
    if (seen.has(key)) throw corrupt(reader.source, `has the key ${quote(key)} twice`)
    seen.add(key)
    const type = reader.u32()
    if (type !== ARRAY) values.set(key, reader.value(type))
    else readArray(reader, key, texts, numbers)
  }
  return { values, texts, numbers }
}

function readArray(
  reader: HeaderReader,
  key: string,
  texts: Map<string, readonly string[]>,
  numbers: Map<string, readonly number[]>,
): void {
  const type = reader.u32()
  const count = reader.count(MAX_ITEMS, `items of ${quote(key)}`)
  if (type === ARRAY) throw unsupported(reader.source, `has an array of arrays, ${quote(key)}`)
  if (type === STRING) {
    texts.set(
      key,
      Array.from({ length: count }, () => reader.text(MAX_TEXT_BYTES)),
    )
    return
  }
  numbers.set(
    key,
    Array.from({ length: count }, () => Number(reader.value(type))),
  )
}

interface TensorInfo {
  readonly name: string
  readonly shape: readonly number[]
  readonly type: number
  /** From the start of the data. */
  readonly start: number
}

function readInfo(reader: HeaderReader): TensorInfo {
  const name = reader.text(MAX_NAME)
  const rank = reader.u32()
  if (rank > MAX_RANK) throw corrupt(reader.source, `tensor ${quote(name)} has ${rank} dimensions, more than 4`)
  const shape = Array.from({ length: rank }, () => reader.u64()).reverse()
  return { name, shape, type: reader.u32(), start: reader.u64() }
}

function alignmentOf(source: ByteSource, values: Gguf['values']): number {
  const alignment = values.get('general.alignment') ?? DEFAULT_ALIGNMENT
  const isPower = typeof alignment === 'number' && /^10*$/.test(alignment.toString(2))
  if (isPower && alignment <= MAX_ALIGNMENT) return alignment
  throw corrupt(source, `has an alignment of ${quote(String(alignment))}, not a power of two`)
}

function placeTensor(
  source: ByteSource,
  { name, shape, type: number, start }: TensorInfo,
  dataOffset: number,
  alignment: number,
): GgufTensor {
  const what = `tensor ${quote(name)}`
  const type = GGUF_TYPES.get(number)
  if (!type) {
    const named = OTHER_GGUF_TYPES.get(number) ?? `number ${number}`
    const known = [...GGUF_TYPES.values()].join(', ')
    throw unsupported(source, `${what} is of type ${named}; ${known} are read`)
  }
  const block = BLOCK_SIZES[type]
  if ((shape.at(-1) ?? 1) % block.elements !== 0)
    throw corrupt(source, `${what} has rows of ${shape.at(-1)}, not whole blocks of ${type}`)
  // A product beyond 2^53 loses digits, and is then outside every file too.
  const elements = shape.reduce((product, size) => product * size, 1)
  const bytes = (elements / block.elements) * block.bytes
  if (start % alignment !== 0) throw corrupt(source, `${what} is not aligned to ${alignment}`)
  checkRange(source, dataOffset + start, bytes, what)
  return { name, shape, type, offset: dataOffset + start, bytes }
}

function checkNamesAndOverlaps(source: ByteSource, tensors: readonly GgufTensor[]): void {
  const names = new Set<string>()
  for (const { name } of tensors) {
    if (names.has(name)) throw corrupt(source, `holds tensor ${quote(name)} twice`)
    names.add(name)
  }
  const ordered = tensors.toSorted((a, b) => a.offset - b.offset)
  for (const [i, { name, offset, bytes }] of ordered.entries()) {
    const next = ordered[i + 1]
    if (next && offset + bytes > next.offset)
      throw corrupt(source, `tensors ${quote(name)} and ${quote(next.name)} overlap`)
  }
}

const STRING = 8
const ARRAY = 9
const BLOCK_BYTES = 1 << 20

/** Walks through the header, a block of the file in memory at a time. */
class HeaderReader {
  readonly source: ByteSource
  #block: Uint8Array = new Uint8Array(0)
  #blockOffset = 0
  #at = 0

  constructor(source: ByteSource) {
    this.source = source
  }

  get position(): number {
    return this.#at
  }

  skip(length: number, what: string): void {
    checkRange(this.source, this.#at, length, what)
    this.#at += length
    if (this.#at > MAX_HEADER_BYTES)
      throw unsupported(this.source, `its header is larger than ${MAX_HEADER_BYTES} bytes`)
  }

  u32(): number {
    return this.#take(4, (view, at) => view.getUint32(at, true))
  }

  /** Beyond 2^53 it is not exact, and outside every file; range checks refuse it. */
  u64(): number {
    return this.#take(8, (view, at) => Number(view.getBigUint64(at, true)))
  }

  /** How many follow: not more than the limit, nor than the bytes that are left. */
  count(limit: number, what: string): number {
    const count = this.u64()
    const left = this.source.size - this.#at
    if (count > left) throw corrupt(this.source, `claims ${count} ${what} in ${left} bytes`)
    if (count > limit) throw unsupported(this.source, `has ${count} ${what}; at most ${limit}`)
    return count
  }

  text(limit: number): string {
    const length = this.u64()
    if (length > limit) throw corrupt(this.source, `has a text of ${length} bytes at ${this.#at}; at most ${limit}`)
    const start = this.#at
    this.skip(length, 'a text')
    return UTF8.decode(this.#view(start, length))
  }

  value(type: number): string | number | boolean {
    if (type === STRING) return this.text(MAX_TEXT_BYTES)
    const scalar = SCALARS.get(type)
    if (!scalar) throw corrupt(this.source, `has a value of type ${type}, which does not exist`)
    return this.#take(scalar.bytes, scalar.read)
  }

  #take<T>(length: number, read: (view: DataView, at: number) => T): T {
    const start = this.#at
    this.skip(length, 'the header')
    const bytes = this.#view(start, length)
    return read(new DataView(bytes.buffer, bytes.byteOffset, length), 0)
  }

  /** Bytes of the file; the range has been checked. */
  #view(offset: number, length: number): Uint8Array {
    const isInside = offset >= this.#blockOffset && offset + length <= this.#blockOffset + this.#block.byteLength
    if (!isInside) {
      const size = Math.min(Math.max(length, BLOCK_BYTES), this.source.size - offset)
      this.#block = readBytes(this.source, offset, size, 'the header')
      this.#blockOffset = offset
    }
    const start = offset - this.#blockOffset
    return this.#block.subarray(start, start + length)
  }
}

/** Bytes that are not UTF-8 become U+FFFD: no name that means anything has them. */
const UTF8 = new TextDecoder('utf-8', { ignoreBOM: true })

interface Scalar {
  readonly bytes: number
  readonly read: (view: DataView, at: number) => number | boolean
}

const SCALARS: ReadonlyMap<number, Scalar> = new Map<number, Scalar>([
  [0, { bytes: 1, read: (view, at) => view.getUint8(at) }],
  [1, { bytes: 1, read: (view, at) => view.getInt8(at) }],
  [2, { bytes: 2, read: (view, at) => view.getUint16(at, true) }],
  [3, { bytes: 2, read: (view, at) => view.getInt16(at, true) }],
  [4, { bytes: 4, read: (view, at) => view.getUint32(at, true) }],
  [5, { bytes: 4, read: (view, at) => view.getInt32(at, true) }],
  [6, { bytes: 4, read: (view, at) => view.getFloat32(at, true) }],
  [7, { bytes: 1, read: (view, at) => view.getUint8(at) !== 0 }],
  [10, { bytes: 8, read: (view, at) => Number(view.getBigUint64(at, true)) }],
  [11, { bytes: 8, read: (view, at) => Number(view.getBigInt64(at, true)) }],
  [12, { bytes: 8, read: (view, at) => view.getFloat64(at, true) }],
])
