/**
 * Text to token ids and back, as in RWKV's World tokenizer: over UTF-8 bytes, always the longest matching token,
 * without normalisation or added tokens. Ids are those of the vocabulary; 0 is the end of text and has no bytes.
 */
import { joinBytes, latin1Of, viewOf } from '../files/bytes.ts'
import { hexOf, sha256 } from '../files/digest.ts'
import { type EncodeTables, encodeBytes } from './encode.ts'
import { buildTrie, sharedInts } from './trie.ts'
import { type VocabularyToken, vocabularyError } from './vocabulary.ts'

/** UTF-8 of U+FFFD, the decoding of an id outside the vocabulary. */
const REPLACEMENT = Uint8Array.of(0xef, 0xbf, 0xbd)
const UTF8 = new TextDecoder('utf-8', { ignoreBOM: true })
const ENCODER = new TextEncoder()

export class TokenCodec {
  /** 1 + the largest id. */
  readonly vocabSize: number
  /** SHA-256 (hex) of the tokens and ids, independent of the file format. */
  readonly hash: string
  /** The tables for encoding, which threads can share. */
  readonly tables: EncodeTables
  /** The bytes of all tokens, concatenated by id; the last row stands for every id outside the vocabulary. */
  readonly #bytes: Uint8Array
  /** Row i is bytes [#starts[i], #starts[i + 1]). */
  readonly #starts: Int32Array // [vocabSize + 2]

  /** `name` is the source of the tokens in error messages. */
  constructor(tokens: readonly VocabularyToken[], name: string) {
    checkTokens(tokens, name)
    this.hash = hashOf(tokens)
    this.vocabSize = 1 + tokens.reduce((largest, { id }) => Math.max(largest, id), 0)
    const rows = new Array<Uint8Array>(this.vocabSize + 1).fill(REPLACEMENT)
    rows[0] = new Uint8Array(0)
    for (const { id, bytes } of tokens) rows[id] = bytes
    this.#bytes = joinBytes(rows)
    this.#starts = sharedInts(rows.length + 1)
    this.tables = { trie: buildTrie(tokens), starts: this.#starts }
    for (const [row, bytes] of rows.entries()) this.#starts[row + 1] = this.#starts[row]! + bytes.length
  }

  /** A lone surrogate, which has no UTF-8, becomes U+FFFD. */
  encode(text: string): Int32Array {
    return this.encodeBytes(ENCODER.encode(text))
  }

  encodeBytes(bytes: Uint8Array): Int32Array {
    return encodeBytes(this.tables, bytes)
  }

  /** Bytes that are not UTF-8 become U+FFFD, as in WHATWG decoding. */
  decode(tokens: Iterable<number>): string {
    return UTF8.decode(this.decodeBytes(tokens))
  }

  decodeBytes(tokens: Iterable<number>): Uint8Array {
    const starts = this.#starts
    const rows = Int32Array.from(tokens, (token) => this.#row(token))
    const size = rows.reduce((sum, row) => sum + starts[row + 1]! - starts[row]!, 0)
    const bytes = new Uint8Array(size)
    let to = 0
    for (const row of rows) {
      const end = starts[row + 1]!
      for (let from = starts[row]!; from < end; from++) bytes[to++] = this.#bytes[from]!
    }
    return bytes
  }

  /** A copy. Empty for 0; the bytes of U+FFFD for an id outside the vocabulary. */
  bytesOf(token: number): Uint8Array {
    const row = this.#row(token)
    return this.#bytes.slice(this.#starts[row], this.#starts[row + 1])
  }

  #row(token: number): number {
    const isId = Number.isInteger(token) && token >= 0 && token < this.vocabSize
    return isId ? token : this.vocabSize
  }
}

function hashOf(tokens: readonly VocabularyToken[]): string {
  const all = new Uint8Array(tokens.reduce((sum, { bytes }) => sum + 8 + bytes.length, 0))
  const view = viewOf(all)
  let at = 0
  for (const { id, bytes } of tokens.toSorted((a, b) => a.id - b.id)) {
    view.setUint32(at, id, true)
    view.setUint32(at + 4, bytes.length, true)
    all.set(bytes, at + 8)
    at += 8 + bytes.length
  }
  return hexOf(sha256().update(all).digest())
}

/** Encoding is total and unambiguous only if every byte is a token and no two ids share their bytes. */
function checkTokens(tokens: readonly VocabularyToken[], name: string): void {
  const ids = new Map<string, number>()
  for (const { id, bytes } of tokens) {
    const key = latin1Of(bytes)
    const other = ids.get(key)
    if (other !== undefined) throw vocabularyError(name, `ids ${other} and ${id} are the same token`)
    ids.set(key, id)
  }
  const missing = Array.from({ length: 256 }, (_, byte) => byte).filter((byte) => !ids.has(String.fromCharCode(byte)))
  if (missing.length === 0) return
  const shown = missing.slice(0, 8).map((byte) => `0x${byte.toString(16).padStart(2, '0')}`)
  const more = missing.length > shown.length ? ` and ${missing.length - shown.length} more` : ''
  throw vocabularyError(name, `has no token for the single bytes ${shown.join(', ')}${more}`)
}
