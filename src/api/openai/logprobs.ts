/** The two shapes in which the OpenAI API reports log-probabilities. */
import type { TokenText } from '../../engine/messages.ts'
import { turns } from '../../threads/turns.ts'

/** Tokens that are written at once, with at most 20 alternatives each. */
const AT_ONCE = 32

const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })
/** Ready for another text after each `decode()`. */
const lenient = new TextDecoder('utf-8', { ignoreBOM: true })

/**
 * A token as text. Tokens need not be whole characters; those that are not become "bytes:\xe4\xbd", as OpenAI writes
 * them, so that different tokens never look the same (the completions shape keys an object by them).
 */
function tokenString(bytes: Uint8Array): string {
  try {
    return utf8.decode(bytes)
  } catch {
    const hex = Array.from(bytes, (byte) => `\\x${byte.toString(16).padStart(2, '0')}`)
    return `bytes:${hex.join('')}`
  }
}

/** JSON has no −Infinity, which is what a banned token's log-probability is; OpenAI and vLLM floor it here. */
function finite(logprob: number): number {
  return Math.max(logprob, -9999)
}

export function chatLogprob(token: TokenText): object {
  return {
    ...entry(token.bytes, token.logprob),
    top_logprobs: token.top.map((top, i) => entry(token.topBytes[i]!, top.logprob)),
  }
}

function entry(bytes: Uint8Array, logprob: number) {
  return { token: tokenString(bytes), logprob: finite(logprob), bytes: [...bytes] }
}

export interface CompletionLogprobs {
  readonly tokens: string[]
  readonly token_logprobs: (number | null)[]
  readonly top_logprobs: (Record<string, number> | null)[]
  /** Where each token begins in the text, in characters (Unicode code points). */
  readonly text_offset: number[]
}

/** Builds the completions shape of one answer, piece by piece; offsets go on from piece to piece. */
export class CompletionLogprobsBuilder {
  readonly #position = new TextPosition()

  /**
   * The tokens of an answer or, with their bytes, of an echoed prompt; null where nothing came before. A prompt of thousands
   * takes many turns of the event loop.
   */
  async add(
    tokens: readonly (TokenText | null)[],
    bytesOf: (index: number) => Uint8Array,
  ): Promise<CompletionLogprobs> {
    const out: CompletionLogprobs = { tokens: [], token_logprobs: [], top_logprobs: [], text_offset: [] }
    for (let from = 0; from < tokens.length; from += AT_ONCE) {
      const end = Math.min(tokens.length, from + AT_ONCE)
      await turns.do(() => {
        for (let i = from; i < end; i++) this.#addOne(out, tokens[i]!, () => bytesOf(i))
      })
    }
    return out
  }

  #addOne(out: CompletionLogprobs, token: TokenText | null, ownBytes: () => Uint8Array): void {
    const bytes = token?.bytes ?? ownBytes()
    out.tokens.push(tokenString(bytes))
    out.token_logprobs.push(token === null ? null : finite(token.logprob))
    out.top_logprobs.push(token === null ? null : topOf(token))
    out.text_offset.push(this.#position.characters)
    this.#position.add(bytes)
  }

  /** The text so far is a whole, as an echoed prompt is: no character goes on behind it. */
  endText(): void {
    this.#position.end()
  }
}

/** Where in a text the bytes so far end. Those that are no character count as the U+FFFD that the text has for them. */
class TextPosition {
  /** Characters that have begun. */
  characters = 0
  /** Bytes of a character that is not whole yet; it is counted. */
  #unfinished: Uint8Array = new Uint8Array(0)

  add(bytes: Uint8Array): void {
    const all = Buffer.concat([this.#unfinished, bytes])
    if (this.#unfinished.length > 0) this.characters--
    this.characters += countCharacters(lenient.decode(all, { stream: true }))
    const isUnfinished = lenient.decode() !== ''
    // A character begins at the last byte that can begin one.
    const lead = all.findLastIndex((byte) => (byte & 0xc0) !== 0x80)
    this.#unfinished = isUnfinished ? all.subarray(lead) : all.subarray(0, 0)
    if (isUnfinished) this.characters++
  }

  end(): void {
    this.#unfinished = new Uint8Array(0)
  }
}

/** The k best, and the drawn token too where it is not among them. */
function topOf(token: TokenText): Record<string, number> {
  const pairs = token.top.map((top, i): [string, number] => [tokenString(token.topBytes[i]!), finite(top.logprob)])
  return Object.fromEntries([...pairs, [tokenString(token.bytes), finite(token.logprob)]])
}

function countCharacters(text: string): number {
  let count = 0
  for (const _ of text) count++
  return count
}
