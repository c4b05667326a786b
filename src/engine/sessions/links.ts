/**
 * A link to one turn of a session, for callers whose session it is not: which one it is of and until when, in a form that only
 * the server can write or read. Knows no sessions.
 */
import { createCipheriv, createDecipheriv, createHash, randomBytes } from 'node:crypto'
import { SkeinError } from '../../errors.ts'
import type { SessionName } from '../../state/store/store.ts'

interface LinkedTurn extends SessionName {
  readonly turn: number
  /** Random key of the turn's state. Another session of that name, or the same name at another model, has other keys. */
  readonly stateKey: string
  /** In milliseconds of Date.now(). */
  readonly expiresAt: number
}

const CIPHER = 'aes-256-gcm'
const IV_BYTES = 12
const TAG_BYTES = 16

export function sealLink(linked: LinkedTurn, key: string): string {
  const { namespace, id, turn, stateKey, expiresAt } = linked
  const iv = randomBytes(IV_BYTES)
  const cipher = createCipheriv(CIPHER, keyBytes(key), iv)
  const text = JSON.stringify([namespace, id, turn, stateKey, expiresAt])
  const sealed = Buffer.concat([cipher.update(text, 'utf8'), cipher.final()])
  return Buffer.concat([iv, cipher.getAuthTag(), sealed]).toString('base64url')
}

/** Throws not_found for what was not sealed here, and for what has expired. */
export function openLink(token: string, key: string, now: number): Omit<LinkedTurn, 'expiresAt'> {
  const link = read(Buffer.from(token, 'base64url'), key)
  if (link === null)
    throw new SkeinError(
      'not_found',
      'token: this server did not make this link; without a store (--no-store) only the worker that made it knows it, until that ends',
    )
  const { expiresAt, ...turn } = link
  if (expiresAt <= now) throw new SkeinError('not_found', 'token: this link has expired')
  return turn
}

function read(bytes: Buffer, key: string): LinkedTurn | null {
  const [tagAt, textAt] = [IV_BYTES, IV_BYTES + TAG_BYTES]
  if (bytes.length <= textAt) return null
  const decipher = createDecipheriv(CIPHER, keyBytes(key), bytes.subarray(0, tagAt), {
    authTagLength: TAG_BYTES,
  })
  decipher.setAuthTag(bytes.subarray(tagAt, textAt))
  try {
    const text = Buffer.concat([decipher.update(bytes.subarray(textAt)), decipher.final()])
    // Whatever has the tag was written above.
    const [namespace, id, turn, stateKey, expiresAt] = JSON.parse(text.toString()) as [
      string,
      string,
      number,
      string,
      number,
    ]
    return { namespace, id, turn, stateKey, expiresAt }
  } catch {
    return null
  }
}

function keyBytes(key: string): Buffer {
  return createHash('sha256').update(key).digest()
}
