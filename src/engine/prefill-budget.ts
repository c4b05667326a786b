/**
 * How many prompt tokens a step takes while answers are being generated, so that it lasts no longer than answers may wait
 * for a token. It goes by how long the steps before took: after longer ones it is less, after shorter ones more. It
 * changes when a prompt is read, never what is computed. Knows no rows.
 */
import type { Runner } from '../model/runner.ts'

interface PrefillLimits {
  /** Always so many prompt tokens; null: as many as the target allows. */
  readonly prefillChunk: number | null
  /** What was asked for; null: what suits the runner. */
  readonly itlTargetMs: number | null
}

/** How long a step may take, which is what answers wait between two tokens. */
interface ItlTarget {
  /** Milliseconds, however short steps of answers alone are. */
  readonly leastMs: number
  /** Milliseconds. Between the two it is twice what answers alone take. */
  readonly mostMs: number
  /** However long steps take, prompts go on: with so many tokens, and half as many as answers have in the step. */
  readonly leastChunk: number
  /** Before anything was measured. */
  readonly firstChunk: number
}

/** A device of its own, which has steps on their way. */
const DEVICE: ItlTarget = { leastMs: 25, mostMs: 25, leastChunk: 32, firstChunk: 256 }
/** A CPU computes small chunks as fast as large ones, so what answers wait for is bounded by what they take themselves. */
const HOST: ItlTarget = { leastMs: 8, mostMs: 200, leastChunk: 8, firstChunk: 32 }

export function itlTargetOf({ maxFlights }: Pick<Runner, 'maxFlights'>): ItlTarget {
  return maxFlights > 1 ? DEVICE : HOST
}

const LEAST_SHARE = 0.5
/** What others may add to the time of answers. */
const TIMES_ALONE = 2
/** The most that one step's time may change it by. */
const MAX_CHANGE = 2
/** After so many steps with prompts one has answers alone, to see what that takes now. */
const LOOK_EVERY = 32

export class PrefillBudget {
  readonly #prefillChunk: number | null
  readonly #target: ItlTarget
  readonly #most: number
  #chunk: number
  /** How long the last step that counted took, in multiples of the target. */
  #lastExcess = 0
  /** Milliseconds of the last two steps that had answers and no prompts. */
  #alone: readonly [number, number] = [0, 0]
  /** Steps of answers and prompts since then. */
  #numSince = 0

  /** `most`: tokens of a step. */
  constructor({ prefillChunk, itlTargetMs }: PrefillLimits, suits: ItlTarget, most: number) {
    this.#prefillChunk = prefillChunk
    this.#target =
      itlTargetMs === null ? suits : { ...suits, leastMs: itlTargetMs, mostMs: itlTargetMs }
    this.#most = most
    this.#chunk = Math.min(suits.firstChunk, most)
  }

  /** Prompt tokens of the next step, beside so many tokens of answers. */
  tokensBeside(answers: number): number {
    if (this.#prefillChunk !== null) return Math.max(1, this.#prefillChunk)
    const { leastMs, mostMs } = this.#target
    if (answers > 0 && leastMs < mostMs && this.#numSince >= LOOK_EVERY) return 0
    const least = Math.max(this.#target.leastChunk, Math.ceil(LEAST_SHARE * answers))
    return Math.max(least, Math.floor(this.#chunk))
  }

  /** A step with so many tokens of answers and of prompts took so long. */
  learn(ms: number, answers: number, prompts: number): void {
    if (answers === 0 || this.#prefillChunk !== null) return
    if (prompts === 0) {
      this.#alone = [this.#alone[1], ms]
      this.#numSince = 0
      return
    }
    this.#numSince++
    const { leastMs, mostMs, leastChunk } = this.#target
    // One long step says little: memory was collected, a state copied, a kernel met for the first time.
    const alone = Math.min(...this.#alone)
    const excess = ms / Math.min(mostMs, Math.max(leastMs, TIMES_ALONE * alone))
    const sure = Math.min(excess, this.#lastExcess)
    this.#lastExcess = excess
    if (sure > 1) this.#chunk = Math.min(this.#chunk, prompts / Math.min(sure, MAX_CHANGE))
    // A step with room for more prompts than there were says nothing of larger ones.
    else if (excess < 1 && prompts >= Math.floor(this.#chunk))
      this.#chunk = Math.min(this.#most, prompts / Math.max(excess, 1 / MAX_CHANGE))
    this.#chunk = Math.max(this.#chunk, leastChunk)
  }
}

type Flying = Pick<Runner, 'maxFlights' | 'feedsDraws'>

/** A step of fewer prompt tokens reads the weights for too little. */
const MIN_PROMPT_SHARE = 256

/** Answers of one step, when `count` are being generated: rounded up, so that none is left over for long. */
export function answerShare({ maxFlights, feedsDraws }: Flying, count: number): number {
  return feedsDraws ? count : Math.ceil(count / maxFlights)
}

/** Prompt tokens of one step that has room for `budget`, when `left` are to be read. */
export function promptShare(
  { maxFlights, feedsDraws }: Flying,
  left: number,
  budget: number,
): number {
  if (feedsDraws) return budget
  return Math.min(budget, Math.max(MIN_PROMPT_SHARE, Math.ceil(left / maxFlights)))
}
