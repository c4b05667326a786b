/**
 * How many tokens of an answer are guessed at a time, from what became of its last guesses: more after those that were right,
 * none for a while after those that were all wrong.
 */

/** With the token before them as many as a step of the CPU feeds at the price of one. */
const FIRST_LENGTH = 3
/** Most rows without guesses after wrong ones. */
const LONGEST_PAUSE = 64

export class Pace {
  #length = FIRST_LENGTH
  /** Rows that go without guesses now, and after the next ones that are all wrong. */
  #pause = 0
  #nextPause = 1

  /** It has none for this row, whatever could be guessed. */
  get isPausing(): boolean {
    return this.#pause > 0
  }

  /** Most guesses of the next row; asked once for each. */
  next(): number {
    if (this.#pause === 0) return this.#length
    this.#pause--
    return 0
  }

  learn(guessed: number, right: number): void {
    if (right === 0) {
      this.#pause = this.#nextPause
      this.#nextPause = Math.min(2 * this.#nextPause, LONGEST_PAUSE)
      this.#length = Math.max(1, this.#length >> 1)
      return
    }
    this.#nextPause = 1
    if (right === guessed) this.#length = Math.max(this.#length, 2 * guessed)
    else this.#length = right + 1
  }
}
