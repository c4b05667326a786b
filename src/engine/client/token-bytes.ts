/**
 * Log-probabilities of tokens as bytes: a twentieth of what they take as objects, and written and read in a tenth of the
 * time that a message of so many objects takes. What comes out is what went in. Knows no events.
 */
import type { TokenLogprob } from '../../model/runner.ts'
import type { TokenText } from '../messages.ts'

/** At most, of an id or a length. */
export const NUMBER_BYTES = 5
/** Bytes for a token's id, log-probability and text length. */
const ENTRY_BYTES = 2 * NUMBER_BYTES + 8

/** At most. */
export function sizeOfToken(token: TokenText | null): number {
  if (token === null) return NUMBER_BYTES
  let size = NUMBER_BYTES + ENTRY_BYTES + token.bytes.length
  for (const alternative of token.topBytes) size += ENTRY_BYTES + alternative.length
  return size
}

export function tokensAsBytes(lists: readonly (readonly (TokenText | null)[])[]): Uint8Array {
  let size = 0
  for (const list of lists) for (const token of list) size += sizeOfToken(token)
  const bytes = Buffer.allocUnsafeSlow(size)
  let end = 0
  for (const list of lists) for (const token of list) end = writeToken(bytes, end, token)
  return bytes.subarray(0, end)
}

/** Returns where it ends. */
export function writeToken(to: Buffer, start: number, token: TokenText | null): number {
  if (token === null) return writeNumber(to, start, 0)
  let at = writeNumber(to, start, 1 + token.top.length)
  at = writeEntry(to, at, token, token.bytes)
  for (let i = 0; i < token.top.length; i++) at = writeEntry(to, at, token.top[i]!, token.topBytes[i]!)
  return at
}

function writeEntry(
  to: Buffer,
  start: number,
  { token, logprob }: Pick<TokenLogprob, 'token' | 'logprob'>,
  bytes: Uint8Array,
): number {
  let at = writeNumber(to, start, token)
  at = to.writeDoubleLE(logprob, at)
  at = writeNumber(to, at, bytes.length)
  // A few bytes: faster one by one than by `set`.
  for (let i = 0; i < bytes.length; i++) to[at++] = bytes[i]!
  return at
}

/** Seven bits a byte, the least first; the last byte has no eighth bit. */
export function writeNumber(to: Buffer, start: number, value: number): number {
  let [at, rest] = [start, value]
  for (; rest >= 0x80; rest >>>= 7) to[at++] = (rest & 0x7f) | 0x80
  to[at] = rest
  return at + 1
}

/** By token, for all that are read: one that comes often has the same array, and is garbage nowhere. */
const known = new Map<number, Uint8Array>()

export class TokenReader {
  readonly #content: Buffer
  #at = 0

  constructor(content: Uint8Array) {
    this.#content = Buffer.from(content.buffer, content.byteOffset, content.length)
  }

  get hasMore(): boolean {
    return this.#at < this.#content.length
  }

  number(): number {
    let value = 0
    for (let shift = 0; ; shift += 7) {
      const byte = this.#content[this.#at++]!
      value |= (byte & 0x7f) << shift
      if (byte < 0x80) return value >>> 0
    }
  }

  text(length: number): string {
    this.#at += length
    return this.#content.toString('utf8', this.#at - length, this.#at)
  }

  tokens(count: number): (TokenText | null)[] {
    return Array.from({ length: count }, () => this.token())
  }

  token(): TokenText | null {
    const count = this.number()
    if (count === 0) return null
    const own = this.#logprob()
    const bytes = this.#bytesOf(own.token)
    const top = new Array<TokenLogprob['top'][number]>(count - 1)
    const topBytes = new Array<Uint8Array>(count - 1)
    for (let i = 0; i < top.length; i++) {
      const one = this.#logprob()
      top[i] = one
      topBytes[i] = this.#bytesOf(one.token)
    }
    return { ...own, top, topBytes, bytes }
  }

  #logprob(): { token: number; logprob: number } {
    const token = this.number()
    const logprob = this.#content.readDoubleLE(this.#at)
    this.#at += 8
    return { token, logprob }
  }

  /** As it came: not a window into what is held. Another vocabulary may have other bytes. */
  #bytesOf(token: number): Uint8Array {
    const length = this.number()
    const start = this.#at
    this.#at += length
    const last = known.get(token)
    if (last !== undefined && this.#isAt(start, last, length)) return last
    const bytes = new Uint8Array(length)
    for (let i = 0; i < length; i++) bytes[i] = this.#content[start + i]!
    known.set(token, bytes)
    return bytes
  }

  #isAt(start: number, bytes: Uint8Array, length: number): boolean {
    if (bytes.length !== length) return false
    for (let i = 0; i < length; i++) if (bytes[i] !== this.#content[start + i]) return false
    return true
  }
}
