/** The browser version of src/files/digest.ts; the browser's own digests are asynchronous. */
import { sha256 as create } from '@noble/hashes/sha2.js'
import { utf8 } from '../../files/bytes.ts'
import type { Digest } from '../../files/digest.ts'

export type { Digest } from '../../files/digest.ts'

export function sha256(): Digest {
  const hash = create.create()
  const digest: Digest = {
    update(bytes) {
      hash.update(typeof bytes === 'string' ? utf8(bytes) : bytes)
      return digest
    },
    digest: () => hash.digest(),
  }
  return digest
}

export function hexOf(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('')
}

/** CRC-32 of each byte, with zip's polynomial. */
const TABLE = Uint32Array.from({ length: 256 }, (_, byte) => {
  let crc = byte
  for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? 0xedb88320 ^ (crc >>> 1) : crc >>> 1
  return crc
})

/** Continues from the CRC-32 of the previous bytes. */
export function crc32(bytes: Uint8Array, before = 0): number {
  let crc = ~before
  for (const byte of bytes) crc = TABLE[(crc ^ byte) & 255]! ^ (crc >>> 8)
  return ~crc >>> 0
}
