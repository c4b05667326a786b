/**
 * Says what a file is from its first bytes, so that the wrong file gets a sentence that names it. Knows signatures
 * only; the readers find out whether the rest is sound.
 */

import { latin1Of, viewOf } from '../../files/bytes.ts'
import { type ByteSource, quote, readBytes } from './byte-source.ts'
import type { FileFormat } from './format.ts'
import { isLegacyTorch } from './torch/legacy.ts'

interface Signature extends FileFormat {
  readonly matches: (head: Uint8Array, size: number) => boolean
}

const SIGNATURES: readonly Signature[] = [
  { found: 'a zip', readable: 'zip', matches: startsWith('PK\x03\x04') },
  { found: 'an empty zip', matches: startsWith('PK\x05\x06') },
  { found: 'an empty file', matches: (_head, size) => size === 0 },
  { found: 'a GGUF file', readable: 'gguf', matches: startsWith('GGUF') },
  { found: 'a legacy torch file', readable: 'legacy torch', matches: isLegacyTorch },
  // Checked before formats with short signatures: it begins with a length, whose bytes may look like theirs.
  { found: 'a safetensors file', readable: 'safetensors', matches: isSafetensors },
  {
    found: 'a Python pickle',
    matches: (head) => head[0] === 0x80 && head.length > 1 && head[1]! <= 5,
    advice: 'it may run any code and is not read; save the model with torch.save',
  },
  {
    found: 'a Git LFS pointer, not the file it points to',
    matches: startsWith('version https://git-lfs'),
    advice: 'fetch the file itself (git lfs pull)',
  },
  {
    found: 'a web page',
    matches: (head) => /^\s*<(!doctype|html)/i.test(latin1Of(head)),
    advice: 'the download went wrong: fetch the file itself',
  },
  { found: 'a gzip archive', matches: (head) => head[0] === 0x1f && head[1] === 0x8b, advice: 'unpack it first' },
  { found: 'a tar archive', matches: (head) => latin1Of(head.subarray(257, 262)) === 'ustar' },
]

export function recogniseFormat(source: ByteSource): FileFormat {
  const head = readBytes(source, 0, Math.min(source.size, 512), 'the head of the file')
  const known = SIGNATURES.find(({ matches }) => matches(head, source.size))
  if (known) return known
  return { found: `of no format known here (it begins with "${quote(latin1Of(head.subarray(0, 16)))}")` }
}

function startsWith(text: string): (head: Uint8Array) => boolean {
  return (head) => latin1Of(head.subarray(0, text.length)) === text
}

/** The length of a JSON header, then the header. */
function isSafetensors(head: Uint8Array, size: number): boolean {
  if (head.length < 10) return false
  return viewOf(head).getBigUint64(0, true) <= BigInt(size - 8) && head[8] === 0x7b
}
