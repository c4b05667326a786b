/**
 * How many tokens are guessed in a step: those that bring most tokens for the time that the step takes. It goes by how often
 * guesses were right lately, and by how long steps took.
 */
import type { GuessCosts } from '../../model/runner.ts'

/** How likely a guess is right of which nothing is known. */
const FIRST_LIKELY = 0.5
/** What is expected of a guess counts as much as that many outcomes. */
const EXPECTED = 2
/** Outcomes of a kind that are remembered, about. */
const MEMORY = 48
/** After 0, 1, 2 to 3, 4 to 7, and more right guesses without a wrong one. */
const RUNS = 5
/** Share of the time that is given to trying guesses that are not expected to pay. */
const TRIED_SHARE = 0.01
/** Wrong guesses that end a try, and at most after right ones. */
const PATIENCE = 2
const MOST_PATIENCE = 4
const LONGEST_TRY = 16
/** Durations of a kind of step that are remembered, and for how many steps. */
const SAMPLES = 12
const FEW = 3
const FRESH = 1024
/** Every so many steps one is without guesses, to know what it takes. */
const PLAIN_EVERY = 64
/** What a step with guesses must bring beside one without. */
const LEAST_GAIN = 1.02
/** Guesses less likely than that are not looked at. */
const LEAST_LIKELY = 0.01

/** How likely a guess is right, by how many right ones came just before it: text is copied in passages. */
export class Odds {
  readonly #right = new Float64Array(RUNS)
  readonly #all = new Float64Array(RUNS)
  /** Tokens lost to tries, less what they have been given since. */
  #debt = 0
  /** Wrong guesses that end a try. */
  #patience = PATIENCE
  /** Rows with guesses until it ends anyway. */
  #left = LONGEST_TRY

  /** Expects what became of another answer's guesses. */
  static after(last: Odds): Odds {
    const odds = new Odds()
    for (let run = 0; run < RUNS; run++) {
      const share = Math.min(1, EXPECTED / last.#all[run]!)
      odds.#right[run] = share * last.#right[run]!
      odds.#all[run] = share * last.#all[run]!
    }
    return odds
  }

  likely(run: number): number {
    const sum = (numbers: Float64Array) => numbers.reduce((total, one) => total + one, 0)
    let likely = (sum(this.#right) + EXPECTED * FIRST_LIKELY) / (sum(this.#all) + EXPECTED)
    for (let i = 0; i <= kindOf(run); i++) likely = (this.#right[i]! + EXPECTED * likely) / (this.#all[i]! + EXPECTED)
    return likely
  }

  learn(run: number, isRight: boolean): void {
    const kind = kindOf(run)
    const kept = 1 - 1 / MEMORY
    this.#right[kind] = kept * this.#right[kind]! + (isRight ? 1 : 0)
    this.#all[kind] = kept * this.#all[kind]! + 1
    this.#patience = Math.max(0, Math.min(MOST_PATIENCE, this.#patience + (isRight ? 1 : -1)))
  }

  /** Guesses that are not expected to pay are tried now and then, and on until most of them were wrong: to begin costs most. */
  mayTry(): boolean {
    const isOver = this.#patience === 0 || this.#left === 0
    if (isOver && this.#debt > 0) return false
    if (isOver) [this.#patience, this.#left] = [PATIENCE, LONGEST_TRY]
    return true
  }

  tried(lostTokens: number): void {
    this.#left = Math.max(0, this.#left - 1)
    this.#debt = Math.max(0, this.#debt + lostTokens)
  }

  /** An answer goes on by one token without a guess. */
  rested(): void {
    this.#debt = Math.max(0, this.#debt - TRIED_SHARE)
  }
}

function kindOf(run: number): number {
  return Math.min(RUNS - 1, 32 - Math.clz32(run))
}

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
    return (tokens) => (tokens <= answers ? 1 : (costs[this.#entryOf(tokens)] ?? Number.POSITIVE_INFINITY))
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

/** An answer that may have guesses in the step. */
export interface Asking {
  readonly odds: Odds
  /** Right guesses just before. */
  readonly run: number
  /** Guesses at most. */
  readonly most: number
  /** Tokens that its row feeds again. */
  readonly extra: number
  /** A token before the first guess is on its way, and nothing is guessed unless it is the expected one. */
  readonly isAhead: boolean
}

/** The step, as it is without these answers' guesses. */
export interface Shared {
  readonly answers: number
  readonly tokens: number
  /** Right guesses of others that are expected in it. */
  readonly expected: number
  /** In steps without guesses. */
  readonly costOf: (tokens: number) => number
  /** What one guess for each answer takes to make, in steps without guesses. */
  readonly making: number
  /** Guesses and answers with guesses at most. */
  readonly room: number
  readonly spares: number
}

interface Shares {
  /** Guesses of each answer. */
  readonly lengths: readonly number[]
  readonly expected: number
  readonly rate: number
  readonly value: number
}

/**
 * How many guesses each answer has: those with which most tokens come for the time. Where rows feed tokens again, the time that
 * this takes is gone whatever is guessed. What counts then is what guesses bring beyond what steps usually bring in the time.
 */
export function share(step: Shared, asking: readonly Asking[]): Shares {
  const again = asking.reduce((sum, { extra }) => sum + extra, 0)
  if (again === 0) return bestOf(step, asking, ({ tokens, time }) => tokens / time)
  const level = share(
    { ...step, tokens: step.tokens - again },
    asking.map((one) => ({ ...one, extra: 0 })),
  )
  return bestOf(step, asking, ({ tokens, time }) => tokens - level.rate * time)
}

interface Outcome {
  readonly tokens: number
  readonly time: number
}

/** Where guesses take time, those of all answers are made together: then it is also a question how many at most. */
function bestOf(step: Shared, asking: readonly Asking[], worthOf: (outcome: Outcome) => number): Shares {
  let found = best(step, asking, worthOf)
  if (step.making === 0 || asking.length === 1) return found
  for (let most = Math.max(...found.lengths) - 1; most > 0; most--) {
    const other = best(
      step,
      asking.map((one) => ({ ...one, most: Math.min(one.most, most) })),
      worthOf,
    )
    if (other.value > found.value) found = other
  }
  return found
}

/**
 * Guesses join one by one, the likeliest first. The time includes what wrong ones cost the next step, which feeds again the
 * right ones before them and all that the row has fed.
 */
function best(step: Shared, asking: readonly Asking[], worthOf: (outcome: Outcome) => number): Shares {
  const { answers, costOf, making } = step
  const next = asking.map(({ odds, run, isAhead }) => {
    const likely = odds.likely(run)
    return isAhead
      ? { length: 0, before: likely, likely: likely * odds.likely(run + 1) }
      : { length: 0, before: 1, likely }
  })
  let [spares, again, expected, longest] = [step.spares, 0, step.expected, 0]
  const outcome = (total: number) => {
    const fedAgain = between(costOf, Math.min(answers + again, total)) - 1
    return { tokens: answers + expected, time: costOf(total) + making * longest + fedAgain }
  }
  const order: number[] = []
  const without = outcome(step.tokens)
  let found = { count: 0, expected, rate: without.tokens / without.time }
  let value = worthOf({ tokens: without.tokens, time: without.time / LEAST_GAIN })
  for (let count = 1; count <= step.room; count++) {
    let at = -1
    for (const [i, { likely, length }] of next.entries()) {
      if (length >= asking[i]!.most || (length === 0 && spares === 0)) continue
      if (likely > (next[at]?.likely ?? LEAST_LIKELY)) at = i
    }
    const [one, by] = [next[at], asking[at]]
    if (one === undefined || by === undefined) break
    order.push(at)
    if (one.length === 0) spares--
    expected += one.likely
    again += (one.before - one.likely) * (one.length + 1 + by.extra)
    one.length++
    one.before = one.likely
    one.likely *= by.odds.likely(by.run + one.length + (by.isAhead ? 1 : 0))
    longest = Math.max(longest, one.length)
    const now = outcome(step.tokens + count)
    if (!Number.isFinite(now.time)) break
    if (worthOf(now) <= value) continue
    value = worthOf(now)
    found = { count, expected, rate: now.tokens / now.time }
  }
  const lengths = asking.map(() => 0)
  for (const at of order.slice(0, found.count)) lengths[at]!++
  return { ...found, value, lengths }
}

/** Of a number of tokens that is not whole. */
function between(costOf: (tokens: number) => number, tokens: number): number {
  const whole = Math.floor(tokens)
  const part = tokens - whole
  return part === 0 ? costOf(whole) : costOf(whole) * (1 - part) + costOf(whole + 1) * part
}

function entryOf<K, V>(map: Map<K, V>, key: K, make: () => V): V {
  const known = map.get(key)
  if (known !== undefined) return known
  const made = make()
  map.set(key, made)
  return made
}
