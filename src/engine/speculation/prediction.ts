/**
 * Guesses from what the request predicts that its answer will be, as OpenAI's `prediction` has it: the text before an edit, mostly.
 * It is followed for as long as the answer says it; where the answer says something else, from the next place on
 * at which the same tokens stand again.
 */
import type { Proposer, ProposerSource } from './proposer.ts'

/** Tokens that must be the same for a place to be found again. */
const KEY_TOKENS = 2

class PredictedText implements Proposer {
  readonly #text: Int32Array
  /** By KEY_TOKENS tokens: the places after them, ascending. */
  readonly #places = new Map<number, number[]>()
  /** What comes next if the answer goes on as predicted; null: it has left the prediction. */
  #next: number | null = 0
  /** The place where it last was. */
  #last = 0
  #before = -1

  constructor(text: Int32Array) {
    this.#text = text
    for (let place = KEY_TOKENS; place <= text.length; place++) {
      const key = keyOf(text[place - 2]!, text[place - 1]!)
      const known = this.#places.get(key)
      if (known === undefined) this.#places.set(key, [place])
      else known.push(place)
    }
  }

  add(token: number): void {
    const at = this.#next
    if (at !== null && this.#text[at] === token) this.#next = at + 1
    else this.#next = this.#before < 0 ? null : this.#placeAfter(keyOf(this.#before, token))
    this.#last = this.#next ?? this.#last
    this.#before = token
  }

  /** The first behind where the answer was, else the last before it: text may have moved. */
  #placeAfter(key: number): number | null {
    const places = this.#places.get(key) ?? []
    return places.find((place) => place > this.#last) ?? places.at(-1) ?? null
  }

  get isPromising(): boolean {
    return this.#next !== null && this.#next < this.#text.length
  }

  propose(most: number): readonly number[] {
    if (this.#next === null) return []
    return [...this.#text.subarray(this.#next, this.#next + most)]
  }
}

/** Ids are below 2^17. */
function keyOf(first: number, second: number): number {
  return first * 2 ** 17 + second
}

export const PREDICTION: ProposerSource = {
  name: 'prediction',
  open: (_prompt, { prediction }) =>
    prediction === undefined ? null : new PredictedText(prediction),
}
