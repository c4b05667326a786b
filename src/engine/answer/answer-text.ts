/**
 * From drawn tokens to the text a client may see: incremental UTF-8, stop strings across tokens, and what must be held
 * back meanwhile. One per answer. It does not know of stop tokens, lengths or events; sequence.ts decides those.
 *
 * Held back are bytes of an unfinished character and text that may become a stop string. A token is released with the
 * first character that it has a byte in; a token without bytes as soon as all text before it is out. So where a stop
 * string cuts the answer, the tokens that show are exactly those with a byte in the kept text (or none at all, before
 * the cut), whether the answer is streamed or not.
 */

import { tokenTable } from '../../grammar/vocabulary.ts'
import type { EngineEvent, TokenText } from '../messages.ts'
import { StopStrings } from './stop-strings.ts'

/** The bytes behind token ids; the tokenizer is one. */
export interface TokenBytes {
  bytesOf(token: number): Uint8Array
  /** Turns text into tokens. Sessions need it for the rest of a token that a stop string cuts. */
  encode?(text: string): Int32Array
}

/** Token 0 ends a document. It has no text, whatever a vocabulary file says. */
export const END_OF_TEXT = 0

/** Text and tokens released together. */
type Released = Pick<Extract<EngineEvent, { readonly type: 'text' }>, 'text' | 'tokens' | 'logprobs'>

interface HeldToken {
  readonly token: number
  readonly logprob: TokenText | null
  /** Where in the answer the first character with a byte of this token is. */
  readonly position: number
  readonly hasBytes: boolean
}

export class AnswerText {
  readonly #tokenBytes: TokenBytes
  readonly #stops: StopStrings
  readonly #withLogprobs: boolean
  /** A byte order mark is text like any other, hence ignoreBOM. */
  readonly #decoder = new TextDecoder('utf-8', { ignoreBOM: true })
  #state = StopStrings.start
  #numReleased = 0
  #heldText = ''
  #heldTokens: HeldToken[] = []
  #text = ''
  #tokens: number[] = []
  #logprobs: TokenText[] = []

  constructor(tokenBytes: TokenBytes, stops: StopStrings, withLogprobs: boolean) {
    this.#tokenBytes = tokenBytes
    this.#stops = stops
    this.#withLogprobs = withLogprobs
  }

  /** Length of the text released so far. */
  get numReleased(): number {
    return this.#numReleased
  }

  /** Tokens released since the last `take`. */
  get numUntold(): number {
    return this.#tokens.length
  }

  /** The end of the text may be the beginning of a stop string. */
  get isHolding(): boolean {
    return this.#stops.numHeld(this.#state) > 0
  }

  /** Adds a token; returns the stop string that it completed. Nothing may be added after that. */
  push(token: number, logprob: TokenText | null): string | null {
    const bytes = token === END_OF_TEXT ? NO_BYTES : this.#tokenBytes.bytesOf(token)
    const position = this.#numReleased + this.#heldText.length
    this.#heldTokens.push({ token, logprob, position, hasBytes: bytes.length > 0 })
    return this.#append(this.#decoder.decode(bytes, { stream: true }))
  }

  /** The answer ends here: an unfinished character becomes U+FFFD and everything held is released. */
  end(): string | null {
    const matched = this.#append(this.#decoder.decode())
    if (matched === null) {
      this.#release(this.#heldText.length)
      for (const held of this.#heldTokens) this.#show(held)
      this.#heldTokens = []
    }
    return matched
  }

  /** What was released since the last call; null when that is nothing. */
  take(): Released | null {
    if (this.#text === '' && this.#tokens.length === 0) return null
    const logprobs = this.#withLogprobs ? this.#logprobs : null
    const released = { text: this.#text, tokens: this.#tokens, logprobs }
    this.#text = ''
    this.#tokens = []
    this.#logprobs = []
    return released
  }

  #append(text: string): string | null {
    for (let i = 0; i < text.length; i++) {
      this.#state = this.#stops.next(this.#state, text.charCodeAt(i))
      const matched = this.#stops.matchAt(this.#state)
      if (matched === null) continue
      this.#heldText += text.slice(0, i + 1)
      this.#release(this.#heldText.length - matched.length)
      this.#heldText = ''
      this.#heldTokens = []
      return matched
    }
    this.#heldText += text
    this.#release(this.#heldText.length - this.#stops.numHeld(this.#state))
    return null
  }

  #release(length: number): void {
    this.#text += this.#heldText.slice(0, length)
    this.#heldText = this.#heldText.slice(length)
    this.#numReleased += length
    while (this.#heldTokens.length > 0 && this.#isOut(this.#heldTokens[0]!)) this.#show(this.#heldTokens.shift()!)
  }

  #isOut(held: HeldToken): boolean {
    return held.hasBytes ? held.position < this.#numReleased : held.position <= this.#numReleased
  }

  #show(held: HeldToken): void {
    this.#tokens.push(held.token)
    if (held.logprob !== null) this.#logprobs.push(held.logprob)
  }
}

const NO_BYTES = new Uint8Array(0)

/** An id that the vocabulary lacks reads as U+FFFD, and is no token to a grammar. */
export function grammarTokens(codec: TokenBytes, vocabSize: number) {
  const replacement = Buffer.from('\ufffd')
  const [own, ...more] = codec.encode?.('\ufffd') ?? []
  return tokenTable((token) => {
    const bytes = codec.bytesOf(token)
    const isGap = replacement.equals(bytes) && (own !== token || more.length > 0)
    return isGap || token === END_OF_TEXT ? new Uint8Array(0) : bytes
  }, vocabSize)
}
