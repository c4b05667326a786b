/**
 * Tokens to text, one at a time, without ever showing half a character: a token may end in the middle of one. What
 * comes out, joined, is exactly what decoding all tokens at once gives. One decoder belongs to one stream.
 */
import type { Tokenizer } from './tokenizer.ts'

export class StreamDecoder {
  readonly #tokenizer: Tokenizer
  /** Holds back at most the three bytes of an unfinished character; a byte order mark is text like any other. */
  readonly #decoder = new TextDecoder('utf-8', { ignoreBOM: true })

  constructor(tokenizer: Tokenizer) {
    this.#tokenizer = tokenizer
  }

  /** The text that this token completes; often empty inside a character. */
  push(token: number): string {
    return this.#decoder.decode(this.#tokenizer.bytesOf(token), { stream: true })
  }

  /** The stream is over: what is still held was not a character after all, and becomes U+FFFD. */
  flush(): string {
    return this.#decoder.decode()
  }
}
