/** How long steps with and without guesses take on this device. Knows nothing of guesses but their number. */
import type { GuessCosts } from '../../model/runner.ts'

/** Durations of a kind of step that are remembered, and for how many steps. */
const SAMPLES = 12
const FRESH = 1024
/** So many are not believed if they are long: on a GPU the first two steps of each shape take several times as long. */
const FEW = 7
/** Every so many steps one is without guesses, to know what it takes; that of a number of answers that is new comes after so many. */
const PLAIN_EVERY = 64
const PLAIN_SOON = 8

/** Durations of one kind of step, and the numbers of these steps. */
class Durations {
  readonly #ms: number[] = []
  readonly #at: number[] = []
  /** Ascending: they are looked at far more often than one comes. */
  readonly #sorted: number[] = []

  add(ms: number, step: number): void {
    this.#ms.push(ms)
    this.#at.push(step)
    const after = this.#sorted.findIndex((other) => other > ms)
    this.#sorted.splice(after === -1 ? this.#sorted.length : after, 0, ms)
    if (this.#ms.length > SAMPLES) this.#drop()
  }

  /**
   * The lower quartile, as other programs make steps longer and never shorter; of a few it is what was expected, unless they
   * were shorter. 0 where there is neither.
   */
  typical(step: number, expected: (() => number) | null): number {
    this.#forget(step)
    const all = this.#sorted
    if (expected !== null && all.length <= FEW) return Math.min(all[0] ?? Number.POSITIVE_INFINITY, expected())
    return all[(all.length - 1) >> 2] ?? 0
  }

  isEmpty(step: number): boolean {
    this.#forget(step)
    return this.#ms.length === 0
  }

  #forget(step: number): void {
    while (this.#at.length > 0 && step - this.#at[0]! > FRESH) this.#drop()
  }

  #drop(): void {
    this.#sorted.splice(this.#sorted.indexOf(this.#ms.shift()!), 1)
    this.#at.shift()
  }
}

/** How long steps of so many answers take, by their tokens: as measured, and until then by the costs that are known of the device. */
export class StepTimes {
  readonly #known: GuessCosts
  /** By about the answers of a step, without guesses. */
  readonly #plain = new Map<number, Durations>()
  readonly #lastPlain = new Map<number, number>()
  /** By about the answers, then by the entry of the known costs in which their tokens are. */
  readonly #guessing = new Map<number, readonly Durations[]>()
  #numSteps = 0
  /** By tokens: the entry of the known costs. Costs are asked for hundreds of times a step. */
  readonly #entries: readonly number[]

  constructor(known: GuessCosts) {
    this.#known = known
    this.#entries = Array.from({ length: 1 + (known.at(-1)?.[0] ?? 0) }, (_, tokens) => this.#entryOf(tokens))
  }

  learn(answers: number, tokens: number, hasGuesses: boolean, ms: number): void {
    const step = ++this.#numSteps
    const about = aboutOf(answers)
    if (!hasGuesses) {
      if (tokens > answers) return
      this.#lastPlain.set(about, step)
      if (ms > 0) entryOf(this.#plain, about, () => new Durations()).add(ms, step)
      return
    }
    if (!(ms > 0)) return
    const all = entryOf(this.#guessing, about, () => this.#known.map(() => new Durations()))
    all[this.#entryOf(tokens)]?.add(ms, step)
  }

  /**
   * A step of so many answers is to go without guesses, since nothing is known of one, or not any more. Where answers end one
   * after the other, most numbers of them are over before one need be known.
   */
  needsPlain(answers: number): boolean {
    if (this.#lastPlain.size === 0) return true
    const last = entryOf(this.#lastPlain, aboutOf(answers), () => this.#numSteps - PLAIN_EVERY + PLAIN_SOON)
    return this.#numSteps - last >= PLAIN_EVERY
  }

  /** Milliseconds of a step of so many answers without guesses, by its nearest if none was measured; 0: unknown. */
  plainMs(answers: number): number {
    const about = aboutOf(answers)
    const own = this.#plain.get(about)?.typical(this.#numSteps, null) ?? 0
    if (own > 0) return own
    let [ms, away] = [0, Number.POSITIVE_INFINITY]
    for (const [other, durations] of this.#plain) {
      const far = Math.abs(Math.log(other / about))
      const like = (durations.typical(this.#numSteps, null) * this.#plainCost(about)) / this.#plainCost(other)
      if (far < away && like > 0 && Number.isFinite(like)) [ms, away] = [like, far]
    }
    return ms
  }

  #plainCost(answers: number): number {
    return this.#knownCost(this.#entryOf(answers))
  }

  /** What a step of so many answers takes by its number of tokens, in units of one without guesses. */
  costsOf(answers: number): (tokens: number) => number {
    const plain = this.plainMs(answers)
    const measured = plain === 0 ? undefined : this.#guessing.get(aboutOf(answers))
    const base = this.#plainCost(answers)
    const costOf = (entry: number): number => {
      const ratio = this.#knownCost(entry) / base
      const own = measured?.[entry]
      if (measured === undefined || own === undefined) return ratio
      const expected = () => ratio * plain * this.#error(measured, base, plain, entry)
      return own.typical(this.#numSteps, expected) / plain
    }
    // It is asked hundreds of times a step, of two or three of the entries.
    const costs: (number | undefined)[] = this.#known.map(() => undefined)
    return (tokens) => {
      if (tokens <= answers) return 1
      const entry = this.#entries[tokens]
      if (entry === undefined) return Number.POSITIVE_INFINITY
      costs[entry] ??= costOf(entry)
      return costs[entry]
    }
  }

  /** By how much the nearest kind of step that was measured takes longer than expected. */
  #error(measured: readonly Durations[], base: number, plain: number, at: number): number {
    for (let away = 1; away < measured.length; away++)
      for (const nearest of [at - away, at + away]) {
        const durations = measured[nearest]
        if (durations === undefined || durations.isEmpty(this.#numSteps)) continue
        const expected = (this.#knownCost(nearest) / base) * plain
        return Math.sqrt(durations.typical(this.#numSteps, () => expected) / expected)
      }
    return 1
  }

  #entryOf(tokens: number): number {
    const entry = this.#known.findIndex(([most]) => tokens <= most)
    return entry === -1 ? this.#known.length : entry
  }

  #knownCost(entry: number): number {
    return this.#known[entry]?.[1] ?? Number.POSITIVE_INFINITY
  }
}

/** Steps of up to so many answers take about the same time: 1, 2, 3, 4, 6, 8, 12, 16, 24, 32. */
function aboutOf(answers: number): number {
  const power = 2 ** Math.ceil(Math.log2(answers))
  return 4 * answers <= 3 * power && power > 2 ? 0.75 * power : power
}

function entryOf<K, V>(map: Map<K, V>, key: K, make: () => V): V {
  const known = map.get(key)
  if (known !== undefined) return known
  const made = make()
  map.set(key, made)
  return made
}
