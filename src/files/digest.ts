/** Checksums with Node's crypto. The browser version is src/browser/platform/digest.ts. */
import { createHash } from 'node:crypto'

export { crc32 } from 'node:zlib'

export interface Digest {
  /** Text is hashed as UTF-8. */
  update(bytes: Uint8Array | string): Digest
  digest(): Uint8Array
}

export function sha256(): Digest {
  return createHash('sha256')
}

export function hexOf(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('')
}
