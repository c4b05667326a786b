/** How long steps with and without guesses take on this device. Knows nothing of guesses but their number. */
import type { GuessCosts } from '../../model/runner.ts'

/** Durations of a kind of step that are remembered, and for how many steps. */
const SAMPLES = 12
const FEW = 3
const FRESH = 1024
/** Every so many steps one is without guesses, to know what it takes. */
const PLAIN_EVERY = 64

/** Durations of one kind of step, and the numbers of these steps. */
class Durations {
  readonly #ms: number[] = []
  readonly #at: number[] = []

  add(ms: number, step: number): void {
    this.#ms.push(ms)
    this.#at.push(step)
    if (this.#ms.length > SAMPLES) this.#drop()
  }

  /**
   * The lower quartile, as other programs make steps longer and never shorter; of a few it is what was expected, unless they
   * were shorter. 0 where there is neither.
   */
  typical(step: number, expected: number | null): number {
    while (this.#at.length > 0 && step - this.#at[0]! > FRESH) this.#drop()
    const all = expected === null || this.#ms.length >= FEW ? [...this.#ms] : [...this.#ms, expected]
    all.sort((a, b) => a - b)
    return all[(all.length - 1) >> 2] ?? 0
  }

  get isEmpty(): boolean {
    return this.#ms.length === 0
  }

  #drop(): void {
    this.#ms.shift()
    this.#at.shift()
  }
}

/** How long steps of so many answers take, by their tokens: as measured, and until then by the costs that are known of the device. */
export class StepTimes {
  readonly #known: GuessCosts
  /** By the answers of a step, without guesses. */
  readonly #plain = new Map<number, Durations>()
  readonly #lastPlain = new Map<number, number>()
  /** By answers, then by the entry of the known costs in which their tokens are. */
  readonly #guessing = new Map<number, readonly Durations[]>()
  #numSteps = 0

  constructor(known: GuessCosts) {
    this.#known = known
  }

  learn(answers: number, tokens: number, hasGuesses: boolean, ms: number): void {
    const step = ++this.#numSteps
    if (!hasGuesses) {
      if (tokens > answers) return
      this.#lastPlain.set(answers, step)
      if (ms > 0) entryOf(this.#plain, answers, () => new Durations()).add(ms, step)
      return
    }
    if (!(ms > 0)) return
    const all = entryOf(this.#guessing, answers, () => this.#known.map(() => new Durations()))
    all[this.#entryOf(tokens)]?.add(ms, step)
  }

  /** A step of so many answers is to go without guesses, since nothing is known of one, or not any more. */
  needsPlain(answers: number): boolean {
    const last = this.#lastPlain.get(answers)
    return last === undefined || this.#numSteps - last >= PLAIN_EVERY
  }

  /** Milliseconds of a step of so many answers without guesses; 0: unknown. */
  plainMs(answers: number): number {
    return this.#plain.get(answers)?.typical(this.#numSteps, null) ?? 0
  }

  /** What a step of so many answers takes by its number of tokens, in units of one without guesses. */
  costsOf(answers: number): (tokens: number) => number {
    const step = this.#numSteps
    const plain = this.plainMs(answers)
    const base = this.#knownCost(this.#entryOf(answers))
    const measured = this.#guessing.get(answers)
    const ratios = this.#known.map(([, cost]) => cost / base)
    const costs = ratios.map((ratio, i) => {
      const own = measured?.[i]
      if (measured === undefined || own === undefined || plain === 0) return ratio
      return own.typical(step, ratio * plain * this.#error(measured, ratios, plain, i)) / plain
    })
    // It is asked hundreds of times a step.
    const table = new Float64Array(1 + Math.max(answers, this.#known.at(-1)?.[0] ?? 0)).fill(Number.POSITIVE_INFINITY)
    for (const [i, [most]] of this.#known.entries())
      table.fill(costs[i]!, 1 + (this.#known[i - 1]?.[0] ?? -1), 1 + most)
    table.fill(1, 0, 1 + answers)
    return (tokens) => table[tokens] ?? Number.POSITIVE_INFINITY
  }

  /** By how much the nearest kind of step that was measured takes longer than expected. */
  #error(measured: readonly Durations[], ratios: readonly number[], plain: number, at: number): number {
    let nearest = -1
    for (const [i, { isEmpty }] of measured.entries()) {
      if (isEmpty || i === at) continue
      if (nearest === -1 || Math.abs(i - at) < Math.abs(nearest - at)) nearest = i
    }
    if (nearest === -1) return 1
    const expected = ratios[nearest]! * plain
    return Math.sqrt(measured[nearest]!.typical(this.#numSteps, expected) / expected)
  }

  #entryOf(tokens: number): number {
    const entry = this.#known.findIndex(([most]) => tokens <= most)
    return entry === -1 ? this.#known.length : entry
  }

  #knownCost(entry: number): number {
    return this.#known[entry]?.[1] ?? Number.POSITIVE_INFINITY
  }
}

function entryOf<K, V>(map: Map<K, V>, key: K, make: () => V): V {
  const known = map.get(key)
  if (known !== undefined) return known
  const made = make()
  map.set(key, made)
  return made
}
