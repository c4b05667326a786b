/**
 * Seals exported snapshots: an HMAC behind the file, with a key of the server and the tenant. It tells a state that
 * came from here from one that somebody made: a checksum can be made for any numbers.
 */
import { createHmac, timingSafeEqual } from 'node:crypto'
import { joinBytes } from '../files/bytes.ts'
import type { Steps } from './in-turns.ts'

const MAGIC = Buffer.from('SKEINSL\n')
const HMAC_BYTES = 32
const SEAL_BYTES = MAGIC.length + HMAC_BYTES
/** A millisecond or so. */
const PIECE_BYTES = 2 ** 20

/** The file with its seal, a megabyte per step. */
export function* sealing(file: Uint8Array, key: string): Steps<Uint8Array<ArrayBuffer>> {
  const tag = yield* tagOf(file, key)
  return joinBytes([file, MAGIC, tag])
}

interface Unsealed {
  readonly file: Uint8Array
  /** It was exported here, to the same tenant, and has not been changed. */
  readonly isOwn: boolean
}

/** The file without its seal; files of older versions have none. */
export function* unsealing(bytes: Uint8Array, key: string): Steps<Unsealed> {
  const end = bytes.length - SEAL_BYTES
  const isSealed = end >= 0 && MAGIC.equals(bytes.subarray(end, end + MAGIC.length))
  if (!isSealed) return { file: bytes, isOwn: false }
  const file = bytes.subarray(0, end)
  const tag = yield* tagOf(file, key)
  return { file, isOwn: timingSafeEqual(tag, bytes.subarray(end + MAGIC.length)) }
}

function* tagOf(file: Uint8Array, key: string): Steps<Buffer> {
  const hmac = createHmac('sha256', key)
  for (let at = 0; at < file.length; at += PIECE_BYTES) {
    hmac.update(file.subarray(at, at + PIECE_BYTES))
    yield
  }
  return hmac.digest()
}
