/**
 * How many tokens of an answer are guessed at a time: as many as bring most tokens for what their step costs, going by how
 * many of the last guesses were right. Where none pay, one is tried now and then, ever more rarely.
 */

/** Estimated probability that a guess is right if those before it are: its first value, and how much each guess changes it. */
const FIRST_LIKELY = 0.5
const WEIGHT = 0.25
/** Rows without guesses after one that did not pay. */
const SHORTEST_REST = 8
const LONGEST_REST = 64

export class Pace {
  #likely = FIRST_LIKELY
  /** Rows that go without guesses now, and after the next one that is tried in vain. */
  #rest = 0
  #nextRest = SHORTEST_REST

  /** Of an answer after another whose guesses it expects to fare as: where these did not pay, it begins with a rest. */
  static after(last: Pace): Pace {
    const pace = new Pace()
    pace.#likely = last.#likely
    pace.#nextRest = last.#nextRest
    if (last.#nextRest > SHORTEST_REST) pace.#rest = last.#nextRest
    return pace
  }

  /** Its next row has no guesses, whatever could be guessed. */
  get isResting(): boolean {
    return this.#rest > 0
  }

  /** A row goes without guesses. */
  skip(): void {
    if (this.#rest > 0) this.#rest--
  }

  /**
   * Guesses of the next row, at most `most`, which is at least 1. `share`: of the rows of the step, those with guesses;
   * `costOf(n)`: of a step in which they have n, by one without any.
   */
  next(most: number, share: number, costOf: (guesses: number) => number): number {
    if (this.#rest > 0) {
      this.#rest--
      return 0
    }
    let [best, bestGain] = [0, 1]
    let [right, allRight] = [0, 1]
    for (let guesses = 1; guesses <= most; guesses++) {
      allRight *= this.#likely
      right += allRight
      const gain = (1 + share * right) / costOf(guesses)
      if (gain > bestGain) [best, bestGain] = [guesses, gain]
    }
    if (best > 0) {
      this.#nextRest = SHORTEST_REST
      return best
    }
    this.#rest = this.#nextRest
    this.#nextRest = Math.min(2 * this.#nextRest, LONGEST_REST)
    return 1
  }

  /** Learns that of a row's guesses the first `right` were right. */
  learn(guessed: number, right: number): void {
    for (let i = 0; i < right; i++) this.#likely += WEIGHT * (1 - this.#likely)
    if (right < guessed) this.#likely -= WEIGHT * this.#likely
    else if (guessed > 0) {
      // After one that was tried and is right others are.
      this.#rest = 0
      this.#nextRest = SHORTEST_REST
    }
  }
}
