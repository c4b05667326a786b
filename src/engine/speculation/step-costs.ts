/**
 * What steps with and without guesses take, in milliseconds: as the last ones did, and until some have as is known of this
 * kind of device.
 */
import type { GuessCosts } from '../../model/runner.ts'

const REMEMBERED = 6
/** The first step of a size has more to do than others. */
const LEAST_SEEN = 2
/** Sizes of steps up to here are told apart. */
const SMALL = 16
/** Costs of guesses beside their tokens, in steps without: copying states and, where steps overlap, making the next one wait. */
const COPY_COST = 0.03
const WAIT_COST = 0.07

/** The last times of one thing. */
export class Times {
  readonly #ms: number[] = []

  add(ms: number): void {
    this.#ms.push(ms)
    if (this.#ms.length > REMEMBERED) this.#ms.shift()
  }

  /** The shortest, when there were so many; else null. A first launch or a neighbour makes one longer, and nothing makes it shorter. */
  least(seen = 1): number | null {
    return this.#ms.length < seen ? null : Math.min(...this.#ms)
  }

  get mean(): number {
    return this.#ms.reduce((sum, ms) => sum + ms, 0) / Math.max(1, this.#ms.length)
  }
}

export class StepCosts {
  readonly #known: GuessCosts
  readonly #guessCost: number
  /** Of steps in which every answer feeds one token, and of others, by their size. */
  readonly #plain = new Map<number, Times>()
  readonly #several = new Map<number, Times>()
  /** Of a step of one token, going by the last one without guesses; 0: there was none. */
  #unitMs = 0

  constructor(known: GuessCosts, overlaps: boolean) {
    this.#known = known
    this.#guessCost = COPY_COST + (overlaps ? WAIT_COST : 0)
  }

  /** Whether steps of so many answers were timed. */
  isKnown(answers: number): boolean {
    return this.#plain.has(this.#sizeOf(answers))
  }

  /** A step in which so many answers fed one token each. */
  learnPlain(answers: number, ms: number): void {
    const cost = costOf(this.#known, answers)
    if (!Number.isFinite(cost)) return
    this.#unitMs = ms / cost
    this.#learn(this.#plain, answers, ms)
  }

  /** A step of answers that fed more. */
  learnSeveral(tokens: number, ms: number): void {
    this.#learn(this.#several, tokens, ms)
  }

  #learn(times: Map<number, Times>, tokens: number, ms: number): void {
    const size = this.#sizeOf(tokens)
    const own = times.get(size) ?? new Times()
    own.add(ms)
    times.set(size, own)
  }

  /** Of a step of so many answers; a multiple of it where none was timed. */
  plainMs(answers: number): number {
    const own = this.#plain.get(this.#sizeOf(answers))?.least()
    return own || (this.#unitMs || 1) * costOf(this.#known, answers)
  }

  /** What steps of so many answers took that were timed. */
  meanMs(answers: number): number {
    return this.#plain.get(this.#sizeOf(answers))?.mean ?? 0
  }

  /** Of a step of so many tokens, with guesses of some answers among them; `answers`: of the same without. */
  severalMs(tokens: number, answers: number): number {
    const plain = this.plainMs(answers)
    const own = this.#several.get(this.#sizeOf(tokens))?.least(LEAST_SEEN)
    if (own) return Math.max(own, plain)
    const more = costOf(this.#known, tokens) / costOf(this.#known, answers)
    return plain * (this.#guessCost + more)
  }

  #sizeOf(tokens: number): number {
    if (tokens <= SMALL) return tokens
    return this.#known.find(([size]) => tokens <= size)?.[0] ?? Number.POSITIVE_INFINITY
  }
}

/** Cost of a step of so many answer tokens, in steps of one token. */
export function costOf(costs: GuessCosts, numTokens: number): number {
  return costs.find(([tokens]) => numTokens <= tokens)?.[1] ?? Number.POSITIVE_INFINITY
}
