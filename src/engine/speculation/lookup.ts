/**
 * Guesses from the text itself: where its last tokens stood before, in the prompt or in the answer, what followed them may
 * follow again. So copied passages, edited code and repeated names are read instead of drawn one by one. An index by a few
 * tokens is kept up as the answer grows: two numbers a token, by a hash. A prompt of 131,072 tokens holds up the engine's
 * thread for 15 to 55 ms (one busy core). Looking up costs the same however long the text is.
 */
import type { Proposer, ProposerSource } from './proposer.ts'

/** Tokens that must be the same. */
const KEY_TOKENS = 3
/** Places that are compared, the latest first; the one with most tokens in common before it is taken. */
const MOST_PLACES = 8
/** Places that are looked at for these, since other tokens may have the same hash. */
const MOST_LOOKED_AT = 32
/** Tokens in common beyond which no better place is looked for. */
const ENOUGH_TOKENS = 32
/** For an answer: with more tokens than that everything is indexed anew, with twice the room. */
const LEAST_ROOM = 1024
/** An odd number whose products spread over all bits. */
const SPREADING = 0x9e3779b1 | 0
const NONE = new Int32Array(0)

export class TextLookup implements Proposer {
  #tokens = NONE
  #length = 0
  /** By the hash of the last KEY_TOKENS tokens: the place after them, the latest; 0 where there is none. */
  #latest = NONE
  /** For each place the one before with the same hash, or 0. */
  #earlier = NONE

  constructor(prompt: Int32Array) {
    this.#begin(prompt, 2 ** Math.ceil(Math.log2(prompt.length + LEAST_ROOM)))
  }

  add(token: number): void {
    if (this.#length === this.#tokens.length) this.#begin(this.#tokens, 2 * this.#length)
    this.#tokens[this.#length++] = token
    this.#index(this.#length)
  }

  /** What is known continues a passage: the next token most likely does, too. */
  get isPromising(): boolean {
    return this.#sameBefore(this.#length, 1).length > 0
  }

  propose(most: number): readonly number[] {
    const tokens = this.#tokens
    const end = this.#length
    let [best, bestLength] = [0, 0]
    for (const place of this.#sameBefore(end, MOST_PLACES)) {
      const length = this.#inCommon(place, end)
      if (length > bestLength) [best, bestLength] = [place, length]
      if (bestLength >= ENOUGH_TOKENS) break
    }
    if (best === 0) return []
    // What follows may run into the end: then it repeats itself.
    return Array.from({ length: most }, (_, i) => tokens[best + (i % (end - best))]!)
  }

  /** Places before that have the same KEY_TOKENS tokens before them, the latest first. */
  #sameBefore(end: number, most: number): number[] {
    const places: number[] = []
    let place = this.#earlier[end]!
    for (let i = 0; place > 0 && i < MOST_LOOKED_AT && places.length < most; i++) {
      if (this.#inCommon(place, end, KEY_TOKENS) === KEY_TOKENS) places.push(place)
      place = this.#earlier[place]!
    }
    return places
  }

  /** Tokens before both places that are the same, up to a few. */
  #inCommon(a: number, b: number, most = ENOUGH_TOKENS): number {
    const tokens = this.#tokens
    let length = 0
    while (length < most && length < a && tokens[a - 1 - length] === tokens[b - 1 - length]) length++
    return length
  }

  /** All of a text, with room for more. */
  #begin(text: Int32Array, room: number): void {
    this.#tokens = new Int32Array(room)
    this.#tokens.set(text)
    this.#length = text.length
    this.#latest = new Int32Array(room)
    this.#earlier = new Int32Array(room + 1)
    this.#index(KEY_TOKENS)
  }

  /** Places from this one on. */
  #index(from: number): void {
    const [tokens, latest, earlier] = [this.#tokens, this.#latest, this.#earlier]
    const mask = latest.length - 1
    for (let place = from; place <= this.#length; place++) {
      if (place < KEY_TOKENS) continue
      let hash = 0
      for (let i = place - KEY_TOKENS; i < place; i++) hash = Math.imul(hash ^ tokens[i]!, SPREADING)
      const at = (hash >>> 8) & mask
      earlier[place] = latest[at]!
      latest[at] = place
    }
  }
}

export const LOOKUP: ProposerSource = { name: 'lookup', open: (prompt) => new TextLookup(prompt) }

/** So many tokens to each side are looked through for a place where the answer may go on. */
const SEARCHED = 8192

/**
 * Guesses from what the request predicts that its answer will be, as OpenAI's `prediction` has it: the text before an edit, mostly.
 * It is followed for as long as the answer says it; where the answer says something else, from the next place on
 * at which the same tokens stand again.
 */
class PredictedText implements Proposer {
  readonly #text: Int32Array
  /** What comes next if the answer goes on as predicted; null: it has left the prediction. */
  #next: number | null = 0
  /** The place where it last was. */
  #last = 0
  #before = -1

  constructor(text: Int32Array) {
    this.#text = text
  }

  add(token: number): void {
    const at = this.#next
    if (at !== null && this.#text[at] === token) this.#next = at + 1
    else this.#next = this.#placeAfter(this.#before, token)
    this.#last = this.#next ?? this.#last
    this.#before = token
  }

  /** After these two tokens: the first place behind where the answer was, else the last before it, since text may have moved. */
  #placeAfter(first: number, second: number): number | null {
    const [text, last] = [this.#text, this.#last]
    const isAfter = (place: number) => text[place - 2] === first && text[place - 1] === second
    const end = Math.min(text.length, last + SEARCHED)
    for (let place = last + 1; place <= end; place++) if (isAfter(place)) return place
    const begin = Math.max(2, last - SEARCHED)
    for (let place = last; place >= begin; place--) if (isAfter(place)) return place
    return null
  }

  get isPromising(): boolean {
    return this.#next !== null && this.#next < this.#text.length
  }

  propose(most: number): readonly number[] {
    if (this.#next === null) return []
    return [...this.#text.subarray(this.#next, this.#next + most)]
  }
}

export const PREDICTION: ProposerSource = {
  name: 'prediction',
  open: (_prompt, { prediction }) => (prediction === undefined ? null : new PredictedText(prediction)),
}
