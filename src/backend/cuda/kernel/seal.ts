/** What an image is known by, and whether one from the disk is whole. */
import { createHash } from 'node:crypto'
import type { KernelSource } from './source.ts'
import type { Target } from './target.ts'

const DIGEST_BYTES = 32

/** What a compilation was made from, in one hash. */
export function imageKey(source: KernelSource, target: Target, options: readonly string[], compiler: string): string {
  const parts = [source.text, ...source.headers.flat(), target.name, target.kind, ...options, compiler]
  const hash = createHash('sha256')
  // Lengths keep two lists apart whose concatenations are the same.
  for (const part of parts) hash.update(`${part.length}:`).update(part)
  return hash.digest('hex')
}

/** The driver is told no length and can hang on half an image, so one from the disk is checked before it is loaded. */
export function seal(image: Uint8Array): Uint8Array {
  return Buffer.concat([digest(image), image])
}

/** The image of a sealed file, or null when it is not whole. */
export function unseal(sealed: Uint8Array): Uint8Array | null {
  const image = new Uint8Array(sealed.subarray(DIGEST_BYTES))
  return digest(image).equals(sealed.subarray(0, DIGEST_BYTES)) ? image : null
}

function digest(image: Uint8Array): Buffer {
  return createHash('sha256').update(image).digest()
}
