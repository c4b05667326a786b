import { createHash } from 'node:crypto'
import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { SkeinError } from '../../../src/errors.ts'
import {
  decodeSnapshot,
  encodeSnapshot,
  type ModelIdentity,
  type Snapshot,
} from '../../../src/state/snapshot.ts'

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
  state: {
    shift: Float32Array.from({ length: 16 }, (_, i) => Math.fround(i / 3)),
    wkv: Float32Array.from({ length: 16 }, (_, i) => Math.fround(-i / 7)),
  },
}
const OWNER = { namespace: 'tenant hash', isForeign: false }
const FILE = encodeSnapshot(SNAPSHOT, IDENTITY, OWNER)

/** The message of what decoding throws; it must be a refusal, never a crash. */
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

/** A file changed on purpose: its checksum is right again. */
function resealed(change: (file: Uint8Array) => void): Uint8Array {
  const file = FILE.slice()
  change(file)
  const end = file.length - 32
  file.set(createHash('sha256').update(file.subarray(0, end)).digest(), end)
  return file
}

test('comes back bit for bit, whatever the alignment of the bytes', () => {
  for (const offset of [0, 1, 2, 3]) {
    const moved = new Uint8Array(FILE.length + offset)
    moved.set(FILE, offset)
    const { snapshot, header } = decodeSnapshot(moved.subarray(offset), IDENTITY)
    expect(snapshot).toEqual(SNAPSHOT)
    expect(decodeSnapshot(Buffer.from(FILE), IDENTITY).snapshot).toEqual(SNAPSHOT)
    expect(header).toMatchObject({ ...IDENTITY, ...OWNER, numTokens: 4, numTail: 1 })
  }
})

test.each(Object.keys(IDENTITY) as (keyof ModelIdentity)[])('another %s is refused', (part) => {
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

  test('random bytes after a good start are refused', () => {
    fc.assert(
      fc.property(fc.nat(200), fc.uint8Array({ maxLength: 600 }), (kept, noise) => {
        expect(refusal(Uint8Array.of(...FILE.slice(0, kept), ...noise))).not.toBe('accepted')
      }),
      { numRuns: 2000, seed: 5 },
    )
  })

  test('values that are not finite are refused though the checksum is right', () => {
    const nan = resealed((file) => file.fill(0xff, file.length - 36, file.length - 32))
    expect(refusal(nan)).toContain('not finite')
  })

  test('a later format is refused by name', () => {
    const later = resealed((file) => new DataView(file.buffer).setUint32(8, 2, true))
    expect(refusal(later)).toContain('format version 2')
  })
})
