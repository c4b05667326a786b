/**
 * Reads the directory of a zip whose entries are stored uncompressed, as torch.save writes it (zip64 included), and
 * says where each entry's bytes lie. Trusts nothing: every range is inside the file and overlaps no other. Checksums
 * are not compared: that would mean reading every byte, and torch can be told not to write them.
 */
import { textOf } from '../../../files/bytes.ts'
import { type ByteSource, checkRange, corrupt, quote, readBytes, unsupported } from '../byte-source.ts'

export interface ZipEntry {
  readonly name: string
  /** Offset of the first byte of content. */
  readonly offset: number
  readonly size: number
}

const END_SIZE = 22
const MAX_COMMENT = 0xffff
const LOCATOR_SIZE = 20
const CENTRAL_SIZE = 46
const LOCAL_SIZE = 30
/** The largest model has about 2200 tensors. */
const MAX_ENTRIES = 100_000
/** Read whole; 100 bytes an entry are usual. */
const MAX_DIRECTORY_BYTES = 64 * 1024 * 1024

const METHOD_NAMES: Readonly<Record<number, string>> = {
  8: 'deflate',
  9: 'deflate64',
  12: 'bzip2',
  14: 'lzma',
  93: 'zstandard',
}

export function readZip(source: ByteSource): ReadonlyMap<string, ZipEntry> {
  const directory = findDirectory(source)
  const entries = new Map<string, ZipEntry>()
  for (const record of readDirectory(source, directory)) {
    if (entries.has(record.name)) throw corrupt(source, `the zip lists ${quote(record.name)} twice`)
    entries.set(record.name, locateContent(source, record, directory.offset))
  }
  checkOverlaps(source, entries)
  return entries
}

interface Directory {
  readonly offset: number
  readonly size: number
  readonly count: number
}

function findDirectory(source: ByteSource): Directory {
  const tailSize = Math.min(source.size, END_SIZE + MAX_COMMENT)
  const tailOffset = source.size - tailSize
  const tail = new View(readBytes(source, tailOffset, tailSize, 'the end of the zip'))
  const at = findEndRecord(tail)
  if (at < 0) {
    throw corrupt(
      source,
      'begins as a zip but has no zip directory at its end; it is truncated or still being downloaded',
    )
  }
  const endOffset = tailOffset + at
  const count = tail.u16(at + 10)
  const size = tail.u32(at + 12)
  const offset = tail.u32(at + 16)
  const isZip64 = count === 0xffff || size === 0xffffffff || offset === 0xffffffff
  const directory = isZip64 ? readZip64End(source, endOffset) : { count, size, offset }
  checkDirectory(source, directory, endOffset)
  return directory
}

/** The record whose comment ends exactly where the file does; −1 if there is none. */
function findEndRecord(tail: View): number {
  for (let at = tail.length - END_SIZE; at >= 0; at--)
    if (tail.u32(at) === 0x06054b50 && at + END_SIZE + tail.u16(at + 20) === tail.length) return at
  return -1
}

function readZip64End(source: ByteSource, endOffset: number): Directory {
  const locatorOffset = endOffset - LOCATOR_SIZE
  const locator = new View(readBytes(source, locatorOffset, LOCATOR_SIZE, 'the zip64 locator'))
  if (locator.u32(0) !== 0x07064b50) throw corrupt(source, 'the zip64 locator is missing')
  const record = new View(readBytes(source, locator.u64(8), 56, 'the zip64 end record'))
  if (record.u32(0) !== 0x06064b50) throw corrupt(source, 'the zip64 end record is missing')
  return { count: record.u64(32), size: record.u64(40), offset: record.u64(48) }
}

function checkDirectory(source: ByteSource, directory: Directory, endOffset: number): void {
  const { count, size, offset } = directory
  checkRange(source, offset, size, 'the zip directory')
  if (offset + size > endOffset) throw corrupt(source, 'the zip directory overlaps its end record')
  if (count > MAX_ENTRIES || size > MAX_DIRECTORY_BYTES)
    throw unsupported(source, `a zip of ${count} entries; a checkpoint has at most ${MAX_ENTRIES}`)
}

interface CentralRecord {
  readonly name: string
  readonly size: number
  readonly headerOffset: number
}

function* readDirectory(source: ByteSource, directory: Directory): Generator<CentralRecord> {
  const bytes = readBytes(source, directory.offset, directory.size, 'the zip directory')
  const view = new View(bytes)
  let at = 0
  for (let i = 0; i < directory.count; i++) {
    if (at + CENTRAL_SIZE > view.length || view.u32(at) !== 0x02014b50)
      throw corrupt(source, `entry ${i} of the zip directory is damaged`)
    const nameEnd = at + CENTRAL_SIZE + view.u16(at + 28)
    const extraEnd = nameEnd + view.u16(at + 30)
    const next = extraEnd + view.u16(at + 32)
    if (next > view.length) throw corrupt(source, `entry ${i} of the zip directory is damaged`)
    const name = textOf(bytes.subarray(at + CENTRAL_SIZE, nameEnd))
    yield readCentralRecord(source, name, view, at, nameEnd, extraEnd)
    at = next
  }
}

function readCentralRecord(
  source: ByteSource,
  name: string,
  view: View,
  at: number,
  extraStart: number,
  extraEnd: number,
): CentralRecord {
  const flags = view.u16(at + 8)
  const method = view.u16(at + 10)
  if (flags & 1) throw unsupported(source, `zip entry ${quote(name)} is encrypted`)
  if (method !== 0) {
    const packed = METHOD_NAMES[method] ?? `method ${method}`
    throw unsupported(
      source,
      `zip entry ${quote(name)} is compressed (${packed}); torch.save stores entries uncompressed, re-pack with "zip -0"`,
    )
  }
  const fields = [view.u32(at + 24), view.u32(at + 20), view.u32(at + 42)]
  readZip64Fields(source, name, view, fields, extraStart, extraEnd)
  const [size, packedSize, headerOffset] = [fields[0]!, fields[1]!, fields[2]!]
  if (size !== packedSize) throw corrupt(source, `zip entry ${quote(name)} has two different sizes`)
  return { name, size, headerOffset }
}

/** Replaces saturated 32-bit fields, in their fixed order, by those of the zip64 extra field. */
function readZip64Fields(source: ByteSource, name: string, view: View, fields: number[], start: number, end: number) {
  if (!fields.includes(0xffffffff)) return
  for (let at = start; at + 4 <= end; ) {
    const fieldEnd = at + 4 + view.u16(at + 2)
    if (view.u16(at) === 0x0001) {
      let from = at + 4
      for (const [i, field] of fields.entries()) {
        if (field !== 0xffffffff || from + 8 > Math.min(fieldEnd, end)) continue
        fields[i] = view.u64(from)
        from += 8
      }
      return
    }
    at = fieldEnd
  }
  throw corrupt(source, `zip entry ${quote(name)} lacks its zip64 sizes`)
}

/** The content follows the local header, whose name and extra field have lengths of their own. */
function locateContent(source: ByteSource, record: CentralRecord, limit: number): ZipEntry {
  const { name, size, headerOffset } = record
  const what = `zip entry ${quote(name)}`
  const header = new View(readBytes(source, headerOffset, LOCAL_SIZE, what))
  if (header.u32(0) !== 0x04034b50) throw corrupt(source, `${what} has no header at its offset`)
  const offset = headerOffset + LOCAL_SIZE + header.u16(26) + header.u16(28)
  checkRange(source, offset, size, what)
  if (offset + size > limit) throw corrupt(source, `${what} overlaps the zip directory`)
  return { name, offset, size }
}

function checkOverlaps(source: ByteSource, entries: ReadonlyMap<string, ZipEntry>): void {
  const ordered = [...entries.values()].sort((a, b) => a.offset - b.offset)
  for (const [i, entry] of ordered.entries()) {
    const next = ordered[i + 1]
    if (next && entry.offset + entry.size > next.offset)
      throw corrupt(source, `zip entries ${quote(entry.name)} and ${quote(next.name)} overlap`)
  }
}

/** Little-endian integers of a byte array; offsets are the caller's care. */
class View {
  readonly length: number
  readonly #view: DataView

  constructor(bytes: Uint8Array) {
    this.length = bytes.byteLength
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)
  }

  u16(at: number): number {
    return this.#view.getUint16(at, true)
  }

  u32(at: number): number {
    return this.#view.getUint32(at, true)
  }

  /** Beyond 2^53 it is not exact, and outside every file; range checks refuse it. */
  u64(at: number): number {
    return Number(this.#view.getBigUint64(at, true))
  }
}
