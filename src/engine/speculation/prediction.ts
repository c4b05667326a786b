/**
 * Guesses from what the request predicts that its answer will be, as OpenAI's `prediction` has it: the text before an edit, mostly.
 * It is followed for as long as the answer says it; where the answer says something else, from the next place on
 * at which the same tokens stand again.
 */
import type { Proposer, ProposerSource } from './proposer.ts'

/** So many tokens to each side are looked through for a place where the answer may go on. */
const SEARCHED = 8192

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
