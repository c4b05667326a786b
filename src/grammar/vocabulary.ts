/** The tokens of a model as grammars need them: as strings that stand for bytes, and as a trie. Knows no tokenizer. */
import { buildTrie, ROOT, type Trie } from '../tokenizer/trie.ts'

/** Bytes of all tokens end to end, in a form that threads can share. */
export interface TokenTable {
  readonly bytes: Uint8Array
  /** Token i ends at ends[i]; one that is none has no bytes. */
  readonly ends: Int32Array
}

/** Bytes as GPT-2's table of letters has them: printable ones as themselves, others from 256 on. */
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
  /** Of each token, its bytes as letters. */
  readonly strings: readonly string[]
  readonly #trie: Trie

  constructor({ bytes, ends }: TokenTable) {
    const tokens = Array.from(ends, (end, id) => ({
      id,
      bytes: bytes.subarray(id === 0 ? 0 : ends[id - 1]!, end),
    }))
    this.strings = tokens.map((token) => Array.from(token.bytes, (byte) => LETTERS[byte]).join(''))
    const own = new Map(tokens.map((token) => [this.strings[token.id], token]))
    own.delete('')
    this.#trie = buildTrie([...own.values()].filter(({ id }) => id > 0))
  }

  /**
   * The tokens that a text begins with, whatever follows it: the longest ones from the left, up to the first that what
   * follows might lengthen.
   */
  certainTokens(text: Uint8Array): number[] {
    const { base, check, token } = this.#trie
    const tokens: number[] = []
    for (let at = 0; at < text.length; ) {
      let [node, length, found] = [ROOT, 0, 0]
      for (let i = at; ; i++) {
        // The end of the text, and the trie goes on.
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
