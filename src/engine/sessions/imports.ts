/** States that become sessions: files that were handed out, here or elsewhere, and turns that a link leads to. */

import { createCipheriv, createDecipheriv, createHash, randomBytes } from 'node:crypto'
import { SkeinError } from '../../errors.ts'
import { atOnce, inTurns, type Steps } from '../../state/in-turns.ts'
import type { Session } from '../../state/kept-state.ts'
import { unsealing } from '../../state/seal.ts'
import type { ModelIdentity, Snapshot } from '../../state/snapshot.ts'
import { decoding } from '../../state/snapshot-file.ts'
import type { SessionName } from '../../state/store/store.ts'
import { movedTask } from '../../threads/moved-task.ts'
import { runTask, taskPlace } from '../../threads/pool.ts'
import type { EngineCalls } from '../messages.ts'
import type { SessionTurns } from './turns.ts'

export interface ImportContext {
  readonly turns: SessionTurns
  readonly identity: ModelIdentity
  readonly vocabSize: number
  /** Whether a state that was not handed out here, to the same tenant, may become a session. */
  readonly acceptsForeign: boolean
  namespaceOf(tenant: string): string
  /** What exports of a tenant are sealed with. */
  sealKeyOf(tenant: string): string
}

/**
 * Of an imported state. Its tokens are in memory as long as it is: these are 16 MB, and as much text. Its tail is read again
 * as no prompt of anybody's: what a stop string and the rest of a token leave is shorter by far.
 */
const MAX_TOKENS = 2 ** 22
const MAX_TAIL = 4096

/**
 * As large as a number of 16 bits can be, in which a server may hold states. No tighter bound of values or norms would be
 * right: docs/dev/reliability.md has how large those of real texts are.
 */
const MAX_VALUE = 65_504
/** Looked at in a millisecond. */
const PIECE_FLOATS = 2 ** 18

/** Looked at on the event loop, in turns; what is larger, in a thread. */
const INLINE_BYTES = 2 ** 20
const DECODE = taskPlace(import.meta.url, './imports.js', 'decodeTask')

interface Imported extends Pick<ImportContext, 'identity' | 'vocabSize' | 'acceptsForeign'> {
  readonly bytes: Uint8Array
  readonly sealKey: string
}

/** The bytes of a large one are moved: whoever asked has an empty array then. */
export function decodeImported(
  { bytes, tenant }: EngineCalls['sessions.import']['params'],
  { identity, vocabSize, acceptsForeign, sealKeyOf }: ImportContext,
): Promise<Snapshot> {
  const imported = { bytes, sealKey: sealKeyOf(tenant), identity, vocabSize, acceptsForeign }
  if (bytes.length <= INLINE_BYTES) return inTurns(checked(imported))
  const { buffer } = bytes
  const isAlone = buffer instanceof ArrayBuffer && buffer.byteLength === bytes.length
  return runTask(DECODE, imported, isAlone ? [buffer] : [])
}

export const decodeTask = movedTask(
  (imported: Imported) => atOnce(checked(imported)),
  // All of them were made for it.
  ({ tokens, tail, state }) => [tokens, tail, ...state].map(({ buffer }) => buffer as ArrayBuffer),
)

function* checked({ bytes, sealKey, identity, vocabSize, acceptsForeign }: Imported): Steps<Snapshot> {
  const { file, isOwn } = yield* unsealing(bytes, sealKey)
  const { snapshot } = yield* decoding(file, identity)
  if (!isOwn && !acceptsForeign) {
    const message =
      'this state was not exported by this server for this key, or has been changed since; the operator can allow such states with --import-foreign'
    throw new SkeinError('forbidden', message)
  }
  if (!isOwn && !(yield* isSane(snapshot.state))) {
    const message = `the state has values beyond ${MAX_VALUE}, which a server that holds states in 16 bits cannot bear`
    throw new SkeinError('invalid_request', message)
  }
  if (snapshot.tokens.length > MAX_TOKENS || snapshot.tail.length > MAX_TAIL) {
    const message = `a state may have read ${MAX_TOKENS} tokens and have ${MAX_TAIL} left to read; this one has ${snapshot.tokens.length} and ${snapshot.tail.length}`
    throw new SkeinError('too_large', message)
  }
  const isToken = (token: number) => token >= 0 && token < vocabSize
  if ([snapshot.tokens, snapshot.tail].every((tokens) => tokens.every(isToken))) return snapshot
  throw new SkeinError('invalid_request', 'the state has tokens beyond the vocabulary')
}

/** A file that has not left this process. */
export async function decodeOwn(file: Uint8Array, { identity }: ImportContext): Promise<Snapshot> {
  return (await inTurns(decoding(file, identity))).snapshot
}

function* isSane(state: Snapshot['state']): Steps<boolean> {
  for (const array of state) {
    for (let at = 0; at < array.length; at += PIECE_FLOATS) {
      const piece = array.subarray(at, at + PIECE_FLOATS)
      if (piece.some((value) => Math.abs(value) > MAX_VALUE)) return false
      yield
    }
  }
  return true
}

export function importSession(
  snapshot: Snapshot,
  { tenant, id, ttlSeconds, storedBytes }: Omit<EngineCalls['sessions.import']['params'], 'bytes'>,
  { turns, namespaceOf }: ImportContext,
): Session {
  const { sessions, mover } = turns
  const { tiers, saver } = mover
  const namespace = namespaceOf(tenant)
  turns.refuseIfFull(namespace, snapshot.tokens.length + snapshot.tail.length, storedBytes)
  if (turns.find(namespace, id) !== null) sessions.refuseTaken(namespace, id)
  const ttlMs = ttlSeconds === undefined ? undefined : 1000 * ttlSeconds
  const session = sessions.create(namespace, id, ttlMs)
  const state = tiers.keepCopy(snapshot, namespace, true)
  sessions.addTurn(session, 0, state)
  saver?.addState(state)
  return session
}

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

/**
 * A link to one turn of a session, for callers whose session it is not: which one it is of and until when, in a form that only
 * the server can write or read. Knows no sessions.
 */
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
  const decipher = createDecipheriv(CIPHER, keyBytes(key), bytes.subarray(0, tagAt), { authTagLength: TAG_BYTES })
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
