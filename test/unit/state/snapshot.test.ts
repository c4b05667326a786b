import { createHash } from 'node:crypto'
import { crc32 } from 'node:zlib'
import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { SkeinError } from '../../../src/errors.ts'
import { joinBytes } from '../../../src/files/bytes.ts'
import type { ModelIdentity, Snapshot } from '../../../src/state/snapshot.ts'
import {
  decodeSnapshot,
  encodeSnapshot,
  encoding,
  snapshotParts,
  viewSnapshot,
} from '../../../src/state/snapshot-file.ts'

const IDENTITY: ModelIdentity = {
  architecture: 'rwkv7',
  layers: 2,
  channels: 4,
  heads: 2,
  headSize: 2,
  vocabulary: 'vocabulary hash',
  weights: 'weights hash',
}

const SNAPSHOT: Snapshot = {
  tokens: Int32Array.of(5, 6, 7, 70_000),
  tail: Int32Array.of(8),
  state: [
    Float32Array.from({ length: 16 }, (_, i) => Math.fround(i / 3)),
    Float32Array.from({ length: 16 }, (_, i) => Math.fround(-i / 7)),
  ],
}
const OWNER = { namespace: 'tenant hash', isForeign: false }
const FILE = encodeSnapshot(SNAPSHOT, IDENTITY, OWNER)

/** The message of the error from decoding; it must be a refusal, never a crash. */
function refusal(file: Uint8Array, identity = IDENTITY): string {
  try {
    decodeSnapshot(file, identity)
  } catch (error) {
    if (!(error instanceof SkeinError)) throw error
    if (error.status < 400 || error.status >= 500) throw error
    return `${error.code}: ${error.message}`
  }
  return 'accepted'
}

/** A file changed on purpose, with a correct checksum. */
function resealed(change: (file: Uint8Array) => void): Uint8Array {
  const file = FILE.slice()
  change(file)
  const end = file.length - 4
  new DataView(file.buffer).setUint32(end, crc32(file.subarray(0, end)), true)
  return file
}

/** In format 1. */
function inFormat1(): Uint8Array {
  const content = FILE.slice(0, -4)
  new DataView(content.buffer).setUint32(8, 1, true)
  return joinBytes([content, createHash('sha256').update(content).digest()])
}

test('is read back bit for bit, whatever the alignment of the bytes', () => {
  for (const offset of [0, 1, 2, 3]) {
    const moved = new Uint8Array(FILE.length + offset)
    moved.set(FILE, offset)
    const { snapshot, header } = decodeSnapshot(moved.subarray(offset), IDENTITY)
    expect(snapshot).toEqual(SNAPSHOT)
    expect(viewSnapshot(moved.subarray(offset), IDENTITY).snapshot).toEqual(SNAPSHOT)
    // From Node's pool, among others.
    const pooled = Buffer.from(FILE)
    const fromPool = decodeSnapshot(pooled, IDENTITY).snapshot
    pooled.fill(0xff)
    expect(fromPool).toEqual(SNAPSHOT)
    expect(header).toMatchObject({ ...IDENTITY, ...OWNER, numTokens: 4, numTail: 1 })
  }
})

test('the source may be in pieces, and a view keeps no tokens of it', () => {
  const { tokens, tail, state } = SNAPSHOT
  const floats = [state[0]!.slice(0, 5), state[0]!.slice(5), state[1]!.slice(0, 1), state[1]!.slice(1)]
  const file = joinBytes(snapshotParts({ tokens, tail, floats }, IDENTITY, OWNER))
  expect(file).toEqual(FILE)
  const { snapshot } = viewSnapshot(file, IDENTITY)
  expect(snapshot.state[1]!.buffer).toBe(file.buffer)
  expect(snapshot.tokens.buffer).not.toBe(file.buffer)
  const missing = floats.slice(1)
  expect(() => snapshotParts({ tokens, tail, floats: missing }, IDENTITY, OWNER)).toThrow('shape')
})

test('a state of several megabytes is processed in small steps, to the same bytes and back', () => {
  const shape = { layers: 9, channels: 1600, heads: 25, headSize: 64 }
  const identity = { ...IDENTITY, ...shape }
  const wkv = Float32Array.from({ length: 9 * 25 * 4096 }, (_, i) => Math.fround(Math.sin(i)))
  const state = [new Float32Array(9 * 2 * 1600).fill(3), wkv]
  const snapshot = { ...SNAPSHOT, state }
  const { tokens, tail } = snapshot
  const parts = snapshotParts({ tokens, tail, floats: state }, identity, OWNER)
  const steps = encoding(snapshot, identity, OWNER)
  let numSteps = 0
  while (steps.next().done !== true) numSteps++
  expect(numSteps).toBeGreaterThan(3)
  const file = encodeSnapshot(snapshot, identity, OWNER)
  expect(Buffer.compare(file, joinBytes(parts))).toBe(0)
  for (const decode of [decodeSnapshot, viewSnapshot]) {
    const decoded = decode(file, identity).snapshot
    expect(decoded.tokens).toEqual(tokens)
    expect(Buffer.compare(new Uint8Array(decoded.state[1]!.slice().buffer), new Uint8Array(wkv.buffer))).toBe(0)
  }
  new DataView(file.buffer).setFloat32(file.length - 8, Number.NaN, true)
  expect(refusal(file, identity)).toContain('checksum')
})

test.each([
  ['no tokens', { tokens: new Int32Array(0) }],
  ['no tail', { tail: new Int32Array(0) }],
])('%s', (_, part) => {
  const snapshot = { ...SNAPSHOT, ...part }
  const file = encodeSnapshot(snapshot, IDENTITY, OWNER)
  expect(decodeSnapshot(file, IDENTITY).snapshot).toEqual(snapshot)
})

test('the first format can still be read, with its checksum verified', () => {
  const file = inFormat1()
  expect(decodeSnapshot(file, IDENTITY).snapshot).toEqual(SNAPSHOT)
  file[file.length - 40]! ^= 1
  expect(refusal(file)).toContain('checksum')
})

test.each(Object.keys(IDENTITY) as (keyof ModelIdentity)[])('a different %s is refused', (part) => {
  const other = { ...IDENTITY, [part]: typeof IDENTITY[part] === 'number' ? 3 : 'other' }
  expect(refusal(FILE, other)).toMatch(/^state_incompatible: .*(3|other)$/)
})

describe('damage', () => {
  test('every flipped bit is refused', () => {
    for (let at = 0; at < FILE.length; at++) {
      const file = FILE.slice()
      file[at]! ^= 1 << (at % 8)
      expect(refusal(file)).toMatch(/^(invalid_request|state_incompatible): /)
    }
  })

  test('every shorter file is refused, and a longer one', () => {
    for (let length = 0; length < FILE.length; length++) {
      expect(refusal(FILE.slice(0, length))).toMatch(/^invalid_request: /)
    }
    expect(refusal(Uint8Array.of(...FILE, 0))).toContain('bytes')
  })

  test('random bytes after a valid start are refused', () => {
    fc.assert(
      fc.property(fc.nat(200), fc.uint8Array({ maxLength: 600 }), (kept, noise) => {
        expect(refusal(Uint8Array.of(...FILE.slice(0, kept), ...noise))).not.toBe('accepted')
      }),
      { numRuns: 2000, seed: 5 },
    )
  })

  test('values that are not finite are refused although the checksum is right', () => {
    const nan = resealed((file) => file.fill(0xff, file.length - 8, file.length - 4))
    expect(refusal(nan)).toContain('not finite')
  })

  test('a later format is refused by name', () => {
    const later = resealed((file) => new DataView(file.buffer).setUint32(8, 3, true))
    expect(refusal(later)).toContain('format version 3')
  })
})
