/**
 * A snapshot as a file. It says which model it belongs to and proves that it is whole; all of that is verified before
 * anything is returned. Knows nothing of where files are kept.
 *
 * Layout, little-endian: magic (8) · format version u32 · header length u32 · header, JSON padded with blanks ·
 * tokens i32 · tail i32 · the arrays of the state f32 (backend/state-shape.ts) · CRC-32 of all before it u32. Format 1, which is still read, ends with
 * the SHA-256 instead: neither keeps out who can write to the file, and the CRC takes a third of the time.
 */

import { lengthsOf, stateBytesOf } from '../backend/state-shape.ts'
import { assert, SkeinError } from '../errors.ts'
import { compareBytes, parsedJson, textOf, utf8 } from '../files/bytes.ts'
import { crc32, sha256 } from '../files/digest.ts'
import { atOnce, type Steps } from './in-turns.ts'
import type { ModelIdentity, Snapshot } from './snapshot.ts'

interface SnapshotOwner {
  /** Namespace of the tenant; '' in an exported file. */
  readonly namespace: string
  /**
   * The state does not follow from these tokens alone (imported, or after a tuned start state): it must not serve as a
   * prefix.
   */
  readonly isForeign: boolean
  /** Its name in a store, so that files there cannot be confused. Absent elsewhere, and in older files. */
  readonly key?: string | undefined
}

/** The header of a file. */
interface SnapshotHeader extends ModelIdentity, SnapshotOwner {
  readonly dtype: 'f32'
  readonly numTokens: number
  readonly numTail: number
}

const MAGIC = 'SKEINST\n'
const VERSION = 2
const PREAMBLE_BYTES = 16
/** Bytes of the checksum at the end, by format version. */
const CHECKSUM_BYTES: Readonly<Record<number, number>> = { 1: 32, 2: 4 }
const ALIGNMENT = 16
/** Looked at or copied in a millisecond. */
const PIECE_BYTES = 2 ** 20
/** Ids, shapes and two hashes are a few hundred bytes. */
const MAX_HEADER_BYTES = 4096

/** The content of a file; the numbers of the state's arrays, in their order, in any number of pieces. */
interface SnapshotContent extends Pick<Snapshot, 'tokens' | 'tail'> {
  readonly floats: readonly Float32Array[]
}

/** The file in parts, to be written one after the other, so that a large state is not copied. */
export function snapshotParts(content: SnapshotContent, identity: ModelIdentity, owner: SnapshotOwner): Uint8Array[] {
  const parts = summedParts(content, identity, owner)
  return [...parts, bytesIn(Uint32Array.of(parts.reduce(continueCrc, 0)))]
}

/** All but the checksum. */
function summedParts({ tokens, tail, floats }: SnapshotContent, identity: ModelIdentity, owner: SnapshotOwner) {
  const numFloats = floats.reduce((sum, piece) => sum + piece.length, 0)
  assert(4 * numFloats === stateBytesOf(identity), 'a state of another shape')
  const header = { ...identity, ...owner, dtype: 'f32' } as const
  const start = encodeHeader({ ...header, numTokens: tokens.length, numTail: tail.length })
  return [start, ...[tokens, tail, ...floats].map(bytesIn)]
}

function encodeHeader(header: SnapshotHeader): Uint8Array {
  const json = utf8(JSON.stringify(header))
  const headerBytes = Math.ceil(json.length / ALIGNMENT) * ALIGNMENT
  const start = new Uint8Array(PREAMBLE_BYTES + headerBytes).fill(0x20)
  const view = new DataView(start.buffer)
  start.set(utf8(MAGIC), 0)
  view.setUint32(8, VERSION, true)
  view.setUint32(12, headerBytes, true)
  start.set(json, PREAMBLE_BYTES)
  return start
}

export function encodeSnapshot(
  snapshot: Snapshot,
  identity: ModelIdentity,
  owner: SnapshotOwner,
): Uint8Array<ArrayBuffer> {
  return atOnce(encoding(snapshot, identity, owner))
}

/** The whole file, a megabyte per step. The snapshot must not change meanwhile. */
export function* encoding(
  { state, ...text }: Snapshot,
  identity: ModelIdentity,
  owner: SnapshotOwner,
): Steps<Uint8Array<ArrayBuffer>> {
  const parts = summedParts({ ...text, floats: state }, identity, owner)
  const size = parts.reduce((sum, part) => sum + part.length, 0)
  const file = new Uint8Array(size + CHECKSUM_BYTES[VERSION]!)
  let at = 0
  let crc = 0
  for (const piece of parts.flatMap(piecesOf)) {
    file.set(piece, at)
    at += piece.length
    crc = continueCrc(crc, piece)
    yield
  }
  file.set(bytesIn(Uint32Array.of(crc)), at)
  return file
}

interface DecodedSnapshot {
  readonly snapshot: Snapshot
  readonly header: SnapshotHeader
}

/**
 * Throws invalid_request when the file is not a whole snapshot, state_incompatible when it is of another model or
 * format. The returned arrays are copies; the file can be dropped.
 */
export function decodeSnapshot(file: Uint8Array, identity: ModelIdentity): DecodedSnapshot {
  return atOnce(decoding(file, identity))
}

/** As decodeSnapshot, but where alignment allows it the state is a view of the file, which must not change any more. */
export function viewSnapshot(file: Uint8Array, identity: ModelIdentity): DecodedSnapshot {
  return atOnce(decoding(file, identity, true))
}

/** As decodeSnapshot, a megabyte per step. The file must not change meanwhile. */
export function* decoding(file: Uint8Array, identity: ModelIdentity, mayView = false): Steps<DecodedSnapshot> {
  const { header, version, payloadStart } = readHeader(file)
  checkIdentity(header, identity)
  const { numTokens, numTail } = header
  const lengths = [numTokens, numTail, ...lengthsOf(header)]
  const payload = 4 * lengths.reduce((a, b) => a + b, 0)
  const expected = payloadStart + payload + CHECKSUM_BYTES[version]!
  if (file.length !== expected) throw damaged(`it has ${file.length} bytes; ${expected} were expected`)
  yield* checkSum(file, version)
  let at = file.byteOffset + payloadStart
  const isView = mayView && at % 4 === 0
  const [tokens, tail, ...arrays] = lengths.map((length) => {
    const start = at
    at += 4 * length
    return { buffer: file.buffer, start, length }
  })
  const state: Float32Array[] = []
  for (const array of arrays) state.push(yield* floatsOf(array, isView))
  // Copies: tokens stay in memory longer than the state, and a view would keep all of the file.
  const text = { tokens: tokensOf(tokens!), tail: tokensOf(tail!) }
  return { snapshot: { ...text, state }, header }
}

interface Place {
  readonly buffer: ArrayBufferLike
  /** In bytes. */
  readonly start: number
  /** In numbers of four bytes. */
  readonly length: number
}

/** A copy: a file may begin at any byte, in a buffer with other things in it. */
function tokensOf({ buffer, start, length }: Place): Int32Array {
  const tokens = new Int32Array(length)
  bytesIn(tokens).set(new Uint8Array(buffer, start, 4 * length))
  return tokens
}

function* floatsOf({ buffer, start, length }: Place, isView: boolean): Steps<Float32Array> {
  const floats = isView ? new Float32Array(buffer, start, length) : new Float32Array(length)
  for (let at = 0; at < length; at += PIECE_BYTES / 4) {
    const piece = floats.subarray(at, at + PIECE_BYTES / 4)
    if (!isView) bytesIn(piece).set(new Uint8Array(buffer, start + 4 * at, piece.byteLength))
    if (!isFiniteArray(piece)) throw damaged('its state has values that are not finite')
    yield
  }
  return floats
}

/**
 * A number that is not finite times zero is NaN. Four sums, since one would make each addition wait for the one before.
 */
function isFiniteArray(values: Float32Array): boolean {
  let [a, b, c, d] = [0, 0, 0, 0]
  const end = values.length - (values.length % 4)
  for (let i = 0; i < end; i += 4) {
    a += values[i]! * 0
    b += values[i + 1]! * 0
    c += values[i + 2]! * 0
    d += values[i + 3]! * 0
  }
  for (let i = end; i < values.length; i++) a += values[i]! * 0
  return a + b + c + d === 0
}

function* checkSum(file: Uint8Array, version: number): Steps<void> {
  const end = file.length - CHECKSUM_BYTES[version]!
  const content = file.subarray(0, end)
  const sum = version === 1 ? sha256().update(content).digest() : yield* crcOf(content)
  if (compareBytes(sum, file.subarray(end)) !== 0) throw damaged('its checksum does not match its content')
}

function* crcOf(bytes: Uint8Array): Steps<Uint8Array> {
  let crc = 0
  for (const piece of piecesOf(bytes)) {
    crc = continueCrc(crc, piece)
    yield
  }
  return bytesIn(Uint32Array.of(crc))
}

/** Given no bytes, crc32 would begin anew. */
function continueCrc(crc: number, bytes: Uint8Array): number {
  return bytes.length === 0 ? crc : crc32(bytes, crc)
}

function piecesOf(bytes: Uint8Array): Uint8Array[] {
  const count = Math.ceil(bytes.length / PIECE_BYTES)
  return Array.from({ length: count }, (_, i) => bytes.subarray(i * PIECE_BYTES, (i + 1) * PIECE_BYTES))
}

function bytesIn({ buffer, byteOffset, byteLength }: ArrayBufferView): Uint8Array {
  return new Uint8Array(buffer, byteOffset, byteLength)
}

function readHeader(file: Uint8Array) {
  const view = new DataView(file.buffer, file.byteOffset, file.byteLength)
  if (file.length < PREAMBLE_BYTES || textOf(file.subarray(0, 8)) !== MAGIC)
    throw new SkeinError('invalid_request', 'this is not a state that Skein exported')
  const version = view.getUint32(8, true)
  if (CHECKSUM_BYTES[version] === undefined)
    throw incompatible(`it has format version ${version}; this Skein reads versions 1 to ${VERSION}`)
  const headerBytes = view.getUint32(12, true)
  const payloadStart = PREAMBLE_BYTES + headerBytes
  if (headerBytes > MAX_HEADER_BYTES || payloadStart > file.length) throw damaged('its header is longer than it can be')
  const text = textOf(file.subarray(PREAMBLE_BYTES, payloadStart))
  return { header: parseHeader(text), version, payloadStart }
}

function parseHeader(text: string): SnapshotHeader {
  const value = parsedJson(text)
  if (value === undefined) throw damaged('its header is not JSON')
  if (typeof value !== 'object' || value === null) throw damaged('its header is not an object')
  const fields = new Map<string, unknown>(Object.entries(value))
  const strings = ['architecture', 'vocabulary', 'weights', 'namespace', 'dtype']
  const counts = ['layers', 'channels', 'heads', 'headSize', 'numTokens', 'numTail']
  const isCount = (field: unknown) => Number.isInteger(field) && Number(field) >= 0
  const isValid =
    strings.every((name) => typeof fields.get(name) === 'string') &&
    counts.every((name) => isCount(fields.get(name))) &&
    typeof fields.get('isForeign') === 'boolean' &&
    ['undefined', 'string'].includes(typeof fields.get('key'))
  if (!isValid) throw damaged('its header lacks a field')
  return value as SnapshotHeader // every field was checked above
}

/** A readable name for each part of the identity. */
const PARTS: readonly (readonly [keyof ModelIdentity, string])[] = [
  ['architecture', 'architecture'],
  ['layers', 'number of layers'],
  ['channels', 'number of channels'],
  ['heads', 'number of heads'],
  ['headSize', 'head size'],
  ['vocabulary', 'vocabulary'],
  ['weights', 'weights'],
]

function checkIdentity(header: SnapshotHeader, identity: ModelIdentity): void {
  if (header.dtype !== 'f32') throw incompatible(`its numbers are ${header.dtype}, not f32`)
  for (const [part, name] of PARTS) {
    if (header[part] === identity[part]) continue
    throw incompatible(`its ${name} is ${header[part]}; this model's is ${identity[part]}`)
  }
}

function damaged(what: string): SkeinError {
  return new SkeinError('invalid_request', `the state is damaged: ${what}`)
}

function incompatible(why: string): SkeinError {
  return new SkeinError('state_incompatible', `the state does not fit: ${why}`)
}
