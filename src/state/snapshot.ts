/**
 * A recurrent state outside its slot, with the tokens it has consumed, and its form as a file. A file says which model
 * it belongs to and proves that it is whole; `decodeSnapshot` verifies all of it before it returns anything. Knows
 * nothing of where files are kept.
 *
 * Layout, little-endian: magic (8) · format version u32 · header length u32 · header, JSON padded with blanks ·
 * tokens i32 · tail i32 · shift f32 · wkv f32 · SHA-256 of all before it (32).
 */
import { createHash } from 'node:crypto'
import { SkeinError } from '../errors.ts'

/** Structurally the backend's StateData: see backend/backend.ts for what the numbers mean. */
export interface StateArrays {
  readonly shift: Float32Array // [L, 2, C]
  readonly wkv: Float32Array // [L, H, N, N]
}

export interface Snapshot {
  /** All tokens that the state has consumed, in order, from the empty state on. */
  readonly tokens: Int32Array
  /** Tokens that belong to the conversation after those and that the state has not consumed. */
  readonly tail: Int32Array
  readonly state: StateArrays
}

/** What a state depends on. Two states of the same identity have the same shape and mean the same. */
export interface ModelIdentity {
  readonly architecture: string
  readonly layers: number
  readonly channels: number
  readonly heads: number
  readonly headSize: number
  /** Hash of the vocabulary: token ids mean nothing without it. */
  readonly vocabulary: string
  /** Fingerprint of the weights. */
  readonly weights: string
}

/** The header of a file. */
export interface SnapshotHeader extends ModelIdentity {
  readonly dtype: 'f32'
  /** Whose it is: a tenant's namespace; '' in a file that was handed out. */
  readonly namespace: string
  /** The state did not come from these tokens alone here (imported, tuned start): it must not serve as a prefix. */
  readonly isForeign: boolean
  readonly numTokens: number
  readonly numTail: number
}

const MAGIC = 'SKEINST\n'
const VERSION = 1
const PREAMBLE_BYTES = 16
const DIGEST_BYTES = 32
const ALIGNMENT = 16
/** Ids, shapes and two hashes are a few hundred bytes. */
const MAX_HEADER_BYTES = 4096

export function encodeSnapshot(
  { tokens, tail, state }: Snapshot,
  identity: ModelIdentity,
  owner: { readonly namespace: string; readonly isForeign: boolean },
): Uint8Array<ArrayBuffer> {
  const header: SnapshotHeader = {
    ...identity,
    ...owner,
    dtype: 'f32',
    numTokens: tokens.length,
    numTail: tail.length,
  }
  const json = Buffer.from(JSON.stringify(header))
  const headerBytes = Math.ceil(json.length / ALIGNMENT) * ALIGNMENT
  const parts = [tokens, tail, state.shift, state.wkv]
  const payload = parts.reduce((sum, part) => sum + part.byteLength, 0)
  const file = new Uint8Array(PREAMBLE_BYTES + headerBytes + payload + DIGEST_BYTES)
  const view = new DataView(file.buffer)
  file.set(Buffer.from(MAGIC), 0)
  view.setUint32(8, VERSION, true)
  view.setUint32(12, headerBytes, true)
  file.fill(0x20, PREAMBLE_BYTES, PREAMBLE_BYTES + headerBytes)
  file.set(json, PREAMBLE_BYTES)
  let at = PREAMBLE_BYTES + headerBytes
  for (const part of parts) {
    file.set(new Uint8Array(part.buffer, part.byteOffset, part.byteLength), at)
    at += part.byteLength
  }
  file.set(digestOf(file.subarray(0, at)), at)
  return file
}

/**
 * Throws invalid_request for what is no whole snapshot, state_incompatible for one of another model or format. The
 * arrays returned are copies; the file can be dropped.
 */
export function decodeSnapshot(
  file: Uint8Array,
  identity: ModelIdentity,
): { readonly snapshot: Snapshot; readonly header: SnapshotHeader } {
  const { header, payloadStart } = readHeader(file)
  checkIdentity(header, identity)
  const { numTokens, numTail, layers, channels, heads, headSize } = header
  const lengths = [numTokens, numTail, layers * 2 * channels, layers * heads * headSize * headSize]
  const expected = payloadStart + 4 * lengths.reduce((a, b) => a + b, 0) + DIGEST_BYTES
  if (file.length !== expected) {
    throw damaged(`it has ${file.length} bytes; ${expected} were expected`)
  }
  const end = file.length - DIGEST_BYTES
  if (!Buffer.from(digestOf(file.subarray(0, end))).equals(file.subarray(end))) {
    throw damaged('its checksum does not match its content')
  }
  let at = payloadStart
  const [tokens, tail, shift, wkv] = lengths.map((length) => {
    // Not file.slice: that of a Buffer is no copy.
    const bytes = new Uint8Array(4 * length)
    bytes.set(file.subarray(at, at + 4 * length))
    at += 4 * length
    return bytes.buffer
  }) as [ArrayBuffer, ArrayBuffer, ArrayBuffer, ArrayBuffer] // one for each of four lengths
  const state = { shift: new Float32Array(shift), wkv: new Float32Array(wkv) }
  if (!hasOnlyNumbers(state)) throw damaged('its state has values that are not finite')
  const snapshot = { tokens: new Int32Array(tokens), tail: new Int32Array(tail), state }
  return { snapshot, header }
}

function hasOnlyNumbers({ shift, wkv }: StateArrays): boolean {
  return isFiniteArray(shift) && isFiniteArray(wkv)
}

/** A plain loop: a callback per element takes ten times as long, over millions of them. */
function isFiniteArray(values: Float32Array): boolean {
  for (let i = 0; i < values.length; i++) if (!Number.isFinite(values[i])) return false
  return true
}

/** Tokens of the whole conversation: those consumed and the tail. */
export function transcriptOf({ tokens, tail }: Pick<Snapshot, 'tokens' | 'tail'>): Int32Array {
  return joinTokens(tokens, tail)
}

export function joinTokens(...parts: readonly ArrayLike<number>[]): Int32Array {
  const joined = new Int32Array(parts.reduce((sum, part) => sum + part.length, 0))
  let at = 0
  for (const part of parts) {
    joined.set(part, at)
    at += part.length
  }
  return joined
}

export function bytesOf(state: StateArrays): number {
  return state.shift.byteLength + state.wkv.byteLength
}

function readHeader(file: Uint8Array): { header: SnapshotHeader; payloadStart: number } {
  const view = new DataView(file.buffer, file.byteOffset, file.byteLength)
  if (file.length < PREAMBLE_BYTES || Buffer.from(file.subarray(0, 8)).toString() !== MAGIC) {
    throw new SkeinError('invalid_request', 'this is not a state that Skein exported')
  }
  const version = view.getUint32(8, true)
  if (version !== VERSION) {
    throw incompatible(`it has format version ${version}; this Skein reads version ${VERSION}`)
  }
  const headerBytes = view.getUint32(12, true)
  const payloadStart = PREAMBLE_BYTES + headerBytes
  if (headerBytes > MAX_HEADER_BYTES || payloadStart > file.length) {
    throw damaged('its header is longer than it can be')
  }
  const text = Buffer.from(file.subarray(PREAMBLE_BYTES, payloadStart)).toString()
  return { header: parseHeader(text), payloadStart }
}

function parseHeader(text: string): SnapshotHeader {
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch {
    throw damaged('its header is not JSON')
  }
  if (typeof value !== 'object' || value === null) throw damaged('its header is not an object')
  const fields = new Map<string, unknown>(Object.entries(value))
  const strings = ['architecture', 'vocabulary', 'weights', 'namespace', 'dtype']
  const counts = ['layers', 'channels', 'heads', 'headSize', 'numTokens', 'numTail']
  const isCount = (field: unknown) => Number.isInteger(field) && Number(field) >= 0
  const isValid =
    strings.every((name) => typeof fields.get(name) === 'string') &&
    counts.every((name) => isCount(fields.get(name))) &&
    typeof fields.get('isForeign') === 'boolean'
  if (!isValid) throw damaged('its header lacks a field')
  return value as SnapshotHeader // every field was checked above
}

/** What a person would call each part of the identity. */
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

function digestOf(bytes: Uint8Array): Uint8Array {
  return createHash('sha256').update(bytes).digest()
}

function damaged(what: string): SkeinError {
  return new SkeinError('invalid_request', `the state is damaged: ${what}`)
}

function incompatible(why: string): SkeinError {
  return new SkeinError('state_incompatible', `the state does not fit: ${why}`)
}
