/**
 * Guesses from the text itself: where its last tokens stood before, in the prompt or in the answer, what followed them may
 * follow again. So copied passages, edited code and repeated names are read instead of drawn one by one. An index by a few
 * tokens is kept up as the answer grows; looking up costs the same however long the text is.
 */
import type { Proposer, ProposerSource } from './proposer.ts'

/** Tokens that must be the same. */
const KEY_TOKENS = 3
/** Places that are compared, the latest first; the one with most tokens in common before it is taken. */
const MOST_PLACES = 8
/** Tokens in common beyond which no better place is looked for. */
const ENOUGH_TOKENS = 32

export class TextLookup implements Proposer {
  readonly #tokens: number[] = []
  /** By the last KEY_TOKENS tokens: the place after them, the latest. */
  readonly #latest = new Map<number, number>()
  /** For each place the one before with the same tokens, or 0. */
  readonly #earlier: number[] = []

  constructor(prompt: Int32Array) {
    for (const token of prompt) this.add(token)
  }

  add(token: number): void {
    this.#tokens.push(token)
    const place = this.#tokens.length
    const key = this.#key(place)
    this.#earlier[place] = key === null ? 0 : (this.#latest.get(key) ?? 0)
    if (key !== null) this.#latest.set(key, place)
  }

  /** What is known continues a passage: the next token most likely does, too. */
  get isPromising(): boolean {
    return (this.#earlier[this.#tokens.length] ?? 0) > 0
  }

  propose(most: number): readonly number[] {
    const tokens = this.#tokens
    const end = tokens.length
    let [best, bestLength] = [0, 0]
    let place = this.#earlier[end] ?? 0
    for (let i = 0; place > 0 && i < MOST_PLACES && bestLength < ENOUGH_TOKENS; i++) {
      const length = this.#inCommon(place, end)
      if (length > bestLength) [best, bestLength] = [place, length]
      place = this.#earlier[place]!
    }
    if (best === 0) return []
    // What follows may run into the end: then it repeats itself.
    return Array.from({ length: most }, (_, i) => tokens[best + (i % (end - best))]!)
  }

  /** Tokens before both places that are the same, up to a few. */
  #inCommon(a: number, b: number): number {
    const tokens = this.#tokens
    let length = 0
    while (
      length < ENOUGH_TOKENS &&
      length < a &&
      tokens[a - 1 - length] === tokens[b - 1 - length]
    )
      length++
    return length
  }

  /** The tokens before a place as one number; ids are below 2^17. */
  #key(place: number): number | null {
    if (place < KEY_TOKENS) return null
    let key = 0
    for (let i = place - KEY_TOKENS; i < place; i++) key = key * 2 ** 17 + this.#tokens[i]!
    return key
  }
}

export const LOOKUP: ProposerSource = {
  name: 'lookup',
  open: (prompt) => new TextLookup(prompt),
}
