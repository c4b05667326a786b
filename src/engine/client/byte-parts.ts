/**
 * Bytes of a call that are too many for one message: tens of megabytes would hold up a step while they are packed, and the
 * other end while they are unpacked. They go ahead of the message in parts, a few in each turn of the event loop. Knows
 * nothing of what they are.
 */

import { assert } from '../../errors.ts'
import { inTurns, type Steps } from '../../state/in-turns.ts'
import type { BytesPart } from '../messages.ts'

const PART_BYTES = 2 ** 18

/** Fewer go with their message. */
export function areMany(bytes: Uint8Array): boolean {
  return bytes.length > PART_BYTES
}

export function sendBytes(
  id: number,
  bytes: Uint8Array,
  send: (part: BytesPart) => void,
): Promise<void> {
  return inTurns(sending(id, bytes, send))
}

function* sending(id: number, bytes: Uint8Array, send: (part: BytesPart) => void): Steps<void> {
  for (let at = 0; at < bytes.length; at += PART_BYTES) {
    const part = bytes.subarray(at, at + PART_BYTES)
    send({ type: 'bytes', id, size: bytes.length, at, part })
    yield
  }
}

/** What has come so far, by call. */
export class ComingBytes {
  readonly #coming = new Map<number, Uint8Array>()

  add({ id, size, at, part }: BytesPart): void {
    const bytes = this.#coming.get(id) ?? new Uint8Array(size)
    this.#coming.set(id, bytes)
    assert(bytes.length === size && at + part.length <= size, 'a part of other bytes')
    bytes.set(part, at)
  }

  /** All of a call's, which are the caller's from here on; null when none came. */
  take(id: number): Uint8Array | null {
    const bytes = this.#coming.get(id) ?? null
    this.#coming.delete(id)
    return bytes
  }

  clear(): void {
    this.#coming.clear()
  }
}
