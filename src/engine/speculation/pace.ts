/**
 * How many tokens are guessed at a time: as many as bring most tokens for what their step costs, going by how many of the
 * last guesses were right. Where none pay, one is tried now and then, ever more rarely.
 */

/** Estimated probability that a guess is right if those before it are, at first. */
const FIRST_LIKELY = 0.5
/** How much each guess of one answer changes it: passages that are copied begin and end. */
const WEIGHT_OF_ONE = 0.25
/** Of answers that fare alike, once as many were seen. */
const WEIGHT_OF_ALL = 0.05
/** Guesses that pay bring at least so many times what their step costs. */
const WORTH = 1.02
/** Rows without guesses after one that did not pay. */
const SHORTEST_REST = 8
const LONGEST_REST = 64

/** What a step with guesses costs, by the same without any. */
interface Costs {
  /** With so many guesses a row. */
  of(guesses: number): number
  /** What is added to the next one where rows go back and feed so many tokens again. */
  again(tokens: number): number
}

export class Pace {
  readonly #isOfAll: boolean
  #likely = FIRST_LIKELY
  #numSeen = 0
  /** Rows that go without guesses now, and after the next one that is tried in vain. */
  #rest = 0
  #nextRest = SHORTEST_REST

  /** `isOfAll`: of all answers of a source, not of one. */
  constructor(isOfAll = false) {
    this.#isOfAll = isOfAll
  }

  /** Its next row has no guesses, whatever could be guessed. */
  get isResting(): boolean {
    return this.#rest > 0
  }

  /** A row goes without guesses. */
  skip(): void {
    if (this.#rest > 0) this.#rest--
  }

  /** Guesses of the next row, at most `most`, which is at least 1. `share`: of the rows of the step, those with guesses. */
  next(most: number, share: number, costs: Costs): number {
    if (this.#rest > 0) {
      this.#rest--
      return 0
    }
    let [best, bestGain] = [0, WORTH]
    let [right, allRight, again] = [0, 1, 0]
    for (let guesses = 1; guesses <= most; guesses++) {
      again += allRight * (1 - this.#likely) * costs.again(guesses)
      allRight *= this.#likely
      right += allRight
      const gain = (1 + share * right) / (costs.of(guesses) + again)
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
    for (let i = 0; i < right; i++) this.#see(1)
    if (right < guessed) this.#see(0)
    else if (guessed > 0) {
      // After one that was tried and is right others are.
      this.#rest = 0
      this.#nextRest = SHORTEST_REST
    }
  }

  #see(isRight: 0 | 1): void {
    this.#numSeen++
    const weight = this.#isOfAll ? Math.max(WEIGHT_OF_ALL, 1 / (this.#numSeen + 2)) : WEIGHT_OF_ONE
    this.#likely += weight * (isRight - this.#likely)
  }
}
