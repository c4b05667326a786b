/**
 * How many tokens are guessed in a step: those that bring most tokens for the time that the step takes. It goes by how often
 * guesses were right lately, and by how long steps took.
 */

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
/** What a step with guesses must bring beside one without. */
const LEAST_GAIN = 1.02
/** Guesses less likely than that are not looked at. */
const LEAST_LIKELY = 0.01

/** How likely a guess is right, by how many right ones came just before it: text is copied in passages. */
export class Odds {
  readonly #right = new Float64Array(RUNS)
  readonly #all = new Float64Array(RUNS)
  /** As `likely`; made anew when it is asked for after something was learned. */
  readonly #likely = new Float64Array(RUNS)
  #isStale = true
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
    if (this.#isStale) this.#weigh()
    return this.#likely[kindOf(run)]!
  }

  /** Of each kind what it was itself, and for want of that what the kind before it was, and all together. */
  #weigh(): void {
    let [right, all] = [EXPECTED * FIRST_LIKELY, EXPECTED]
    for (let i = 0; i < RUNS; i++) {
      right += this.#right[i]!
      all += this.#all[i]!
    }
    let likely = right / all
    for (let i = 0; i < RUNS; i++) {
      likely = (this.#right[i]! + EXPECTED * likely) / (this.#all[i]! + EXPECTED)
      this.#likely[i] = likely
    }
    this.#isStale = false
  }

  learn(run: number, isRight: boolean): void {
    const kind = kindOf(run)
    this.#isStale = true
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
  /** Tokens of a row that goes on from its last right guess; longer ones feed again what was right. */
  readonly keptRow: number
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
  if (again === 0) return bestOf(step, asking, (tokens, time) => tokens / time)
  const level = share(
    { ...step, tokens: step.tokens - again },
    asking.map((one) => ({ ...one, extra: 0 })),
  )
  return bestOf(step, asking, (tokens, time) => tokens - level.rate * time)
}

type Worth = (tokens: number, time: number) => number

/** Where guesses take time, those of all answers are made together: then it is also a question how many at most. */
function bestOf(step: Shared, asking: readonly Asking[], worthOf: Worth): Shares {
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
 * Guesses join one by one, the likeliest first. The time includes what wrong ones cost the next step, where it feeds again the
 * right ones before them and all that the row has fed.
 */
function best(step: Shared, asking: readonly Asking[], worthOf: Worth): Shares {
  const { answers, costOf, making } = step
  const count = asking.length
  // Of each answer: its guesses, how likely the last of them is reached, and how likely its next is right as well.
  const lengths = new Int32Array(count)
  const [before, likely] = [new Float64Array(count).fill(1), new Float64Array(count)]
  const longestOf = new Int32Array(count)
  // And how many tokens it is expected to feed again, if its row is too long to keep its states.
  const lost = new Float64Array(count)
  for (let i = 0; i < count; i++) {
    const { odds, run, isAhead, most } = asking[i]!
    longestOf[i] = most
    likely[i] = odds.likely(run)
    if (!isAhead) continue
    before[i] = likely[i]!
    likely[i] = before[i]! * odds.likely(run + 1)
  }
  let [spares, again, expected, longest] = [step.spares, 0, step.expected, 0]
  const timeOf = (total: number) =>
    costOf(total) + making * longest + between(costOf, Math.min(answers + again, total)) - 1
  const order: number[] = []
  const tokens = answers + expected
  let found = { count: 0, expected, rate: tokens / timeOf(step.tokens) }
  let value = worthOf(tokens, timeOf(step.tokens) / LEAST_GAIN)
  for (let guesses = 1; guesses <= step.room; guesses++) {
    let at = -1
    let most = LEAST_LIKELY
    for (let i = 0; i < count; i++) {
      if (likely[i]! <= most || lengths[i]! >= longestOf[i]! || (lengths[i] === 0 && spares === 0)) continue
      at = i
      most = likely[i]!
    }
    if (at === -1) break
    const { odds, run, extra, isAhead } = asking[at]!
    order.push(at)
    if (lengths[at] === 0) spares--
    expected += most
    const fed = ++lengths[at]! + extra
    const more = (before[at]! - most) * fed
    lost[at] = lost[at]! + more
    if (fed >= step.keptRow) again += fed === step.keptRow ? lost[at]! : more
    const length = lengths[at]!
    before[at] = most
    likely[at] = most * odds.likely(run + length + (isAhead ? 1 : 0))
    longest = Math.max(longest, length)
    const time = timeOf(step.tokens + guesses)
    if (!Number.isFinite(time)) break
    const worth = worthOf(answers + expected, time)
    if (worth <= value) continue
    value = worth
    found = { count: guesses, expected, rate: (answers + expected) / time }
  }
  lengths.fill(0)
  for (const at of order.slice(0, found.count)) lengths[at]!++
  return { ...found, value, lengths: [...lengths] }
}

/** Of a number of tokens that is not whole. */
function between(costOf: (tokens: number) => number, tokens: number): number {
  const whole = Math.floor(tokens)
  const part = tokens - whole
  return part === 0 ? costOf(whole) : costOf(whole) * (1 - part) + costOf(whole + 1) * part
}
