/**
 * The tokens of a model in the forms that grammars need: strings that stand for bytes, and a trie. It knows no
 * tokenizer.
 */
import { buildTrie, ROOT, type Trie } from '../tokenizer/trie.ts'

/** The concatenated bytes of all tokens, in memory that threads can share. */
export interface TokenTable {
  readonly bytes: Uint8Array
  /** Token i ends at ends[i]; an unused id has no bytes. */
  readonly ends: Int32Array
}

/** Bytes as in GPT-2's table of letters: printable ones as themselves, others from 256 on. */
const LETTERS = (() => {
  let next = 256
  return Array.from({ length: 256 }, (_, byte) => {
    const isPrintable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174
    return String.fromCharCode(isPrintable ? byte : next++)
  })
})()

export function tokenTable(bytesOf: (token: number) => Uint8Array, vocabSize: number): TokenTable {
  const tokens = Array.from({ length: vocabSize }, (_, token) => bytesOf(token))
  const ends = new Int32Array(vocabSize)
  let end = 0
  for (const [token, bytes] of tokens.entries()) {
    end += bytes.length
    ends[token] = end
  }
  return { bytes: new Uint8Array(Buffer.concat(tokens)), ends }
}

export class Vocabulary {
  readonly stopToken = 0
  /** The bytes of each token, as letters. */
  readonly strings: readonly string[]
  readonly #trie: Trie

  constructor({ bytes, ends }: TokenTable) {
    const tokens = Array.from(ends, (end, id) => ({ id, bytes: bytes.subarray(id === 0 ? 0 : ends[id - 1]!, end) }))
    this.strings = tokens.map((token) => Array.from(token.bytes, (byte) => LETTERS[byte]).join(''))
    const own = new Map(tokens.map((token) => [this.strings[token.id], token]))
    own.delete('')
    this.#trie = buildTrie([...own.values()].filter(({ id }) => id > 0))
  }

  /**
   * The tokens that a text certainly starts with, whatever follows: the longest ones from the left, up to the first
   * that more text could lengthen.
   */
  certainTokens(text: Uint8Array): number[] {
    const { base, check, token } = this.#trie
    const tokens: number[] = []
    for (let at = 0; at < text.length; ) {
      let [node, length, found] = [ROOT, 0, 0]
      for (let i = at; ; i++) {
        // The text ends, but the trie continues.
        if (i === text.length) {
          if (base[node]! > 0) return tokens
          break
        }
        const next = base[node]! + text[i]!
        if (check[next] !== node) break
        node = next
        if (token[node]! > 0) [length, found] = [i + 1 - at, token[node]!]
      }
      if (length === 0) return tokens
      tokens.push(found)
      at += length
    }
    return tokens
  }
}
