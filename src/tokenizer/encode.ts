/**
 * Encodes bytes with the tables of a vocabulary: always the longest matching token, from the left. Runs here or as a
 * task in a thread.
 */
import { task } from '../threads/task.ts'
import { ROOT, type Trie } from './trie.ts'

/** In shared memory, so that threads get them without copying. */
export interface EncodeTables {
  readonly trie: Trie
  /** Token i is bytes [starts[i], starts[i + 1]) of the concatenated tokens. */
  readonly starts: Int32Array // [vocabSize + 2]
}

/** Tokens collected before they are copied into a result of the right size. */
const CHUNK_TOKENS = 16 * 1024

/** All tokens, or the first `most` + 1: enough to know that there are too many. */
export function encodeBytes(
  { trie, starts }: EncodeTables,
  bytes: Uint8Array,
  most = Number.POSITIVE_INFINITY,
): Int32Array {
  const full: Int32Array[] = []
  const chunk = new Int32Array(Math.min(CHUNK_TOKENS, bytes.length))
  let numTokens = 0
  let numFull = 0
  for (let at = 0; at < bytes.length && numFull + numTokens <= most; ) {
    if (numTokens === CHUNK_TOKENS) {
      full.push(chunk.slice())
      numFull += numTokens
      numTokens = 0
    }
    const token = longestMatch(trie, bytes, at)
    chunk[numTokens++] = token
    at += starts[token + 1]! - starts[token]!
  }
  return full.length === 0 ? chunk.slice(0, numTokens) : concatenate([...full, chunk.subarray(0, numTokens)])
}

export interface EncodeTexts {
  readonly tables: EncodeTables
  readonly texts: readonly string[]
  /** Limit over all texts. */
  readonly most: number
}

/** The tokens of each text; empty after the first `most` + 1 tokens in total. */
function encodeTexts({ tables, texts, most }: EncodeTexts): Int32Array[] {
  const encoder = new TextEncoder()
  let left = most
  return texts.map((text) => {
    if (left < 0) return new Int32Array(0)
    const tokens = encodeBytes(tables, encoder.encode(text), left)
    left -= tokens.length
    return tokens
  })
}

export const encodeTextsTask = task(encodeTexts)

/** Every byte is a token, so there is always a match. */
function longestMatch({ base, check, token }: Trie, bytes: Uint8Array, start: number): number {
  let best = 0
  let node = ROOT
  for (let at = start; at < bytes.length; at++) {
    const next = base[node]! + bytes[at]!
    if (check[next] !== node) break
    node = next
    const ending = token[node]!
    if (ending !== 0) best = ending
  }
  return best
}

function concatenate(chunks: readonly Int32Array[]): Int32Array {
  const joined = new Int32Array(chunks.reduce((sum, { length }) => sum + length, 0))
  let at = 0
  for (const chunk of chunks) {
    joined.set(chunk, at)
    at += chunk.length
  }
  return joined
}
