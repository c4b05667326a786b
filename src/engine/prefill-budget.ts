/**
 * How many prompt tokens a step takes while answers are being generated, so that it lasts no longer than answers may wait
 * for a token. It goes by how long the steps before took: after longer ones it is less, after shorter ones more. It
 * changes when a prompt is read, never what is computed. Knows no rows.
 */
import type { Runner } from '../model/runner.ts'
import type { EngineLimits } from './limits.ts'

/** How long a step may take, which is how long answers wait between two tokens. */
interface ItlTarget {
  /** Milliseconds, however short steps of answers alone are. */
  readonly leastMs: number
  /** Up to here prompts may multiply the time of answers by TIMES_SHORT. */
  readonly shortMs: number
  /** Milliseconds. Up to here prompts may double the time of answers. */
  readonly mostMs: number
  /** However long steps take, prompts advance by this many tokens, or half as many as the step has answer tokens. */
  readonly leastChunk: number
  /** Used before anything was measured. */
  readonly firstChunk: number
  /** After a short step, this part of the way to as many tokens as would have fitted. */
  readonly growth: number
}

/** A device with steps in flight. */
const DEVICE: ItlTarget = { leastMs: 25, shortMs: 25, mostMs: 25, leastChunk: 32, firstChunk: 256, growth: 1 }
/**
 * A CPU is as fast with small chunks as with large ones, so the target follows what answers alone take. Its steps vary, and
 * after one that was short by chance the next would be long.
 */
const HOST: ItlTarget = { leastMs: 5, shortMs: 21, mostMs: 200, leastChunk: 8, firstChunk: 32, growth: 1 / 8 }

export function itlTargetOf({ maxFlights }: Pick<Runner, 'maxFlights'>): ItlTarget {
  return maxFlights > 1 ? DEVICE : HOST
}

const LEAST_SHARE = 0.5
/**
 * The most by which prompts may multiply the time of answers. With twice, a prompt beside many answers takes twice as long
 * as alone; with three times, 1.6. Nobody reads as fast as answers come in steps of 21 ms.
 */
const TIMES_ALONE = 2
const TIMES_SHORT = 3
/**
 * The first guess of what a row of logits takes on the host: milliseconds for each token of the vocabulary. That is before the
 * JavaScript engine has compiled the loops; afterwards it is a sixth.
 */
const FIRST_SCORING_MS = 1.5e-4
/** The largest change after one step. */
const MAX_CHANGE = 2
/** After this many steps with prompts, one step runs answers alone, to measure them. */
const LOOK_EVERY = 32

export class PrefillBudget {
  readonly #prefillChunk: number | null
  readonly #target: ItlTarget
  readonly #most: number
  #chunk: number
  /** How long the last counted step took, as a multiple of the target. */
  #lastExcess = 0
  /** Milliseconds of the last two steps that had answers and no prompts. */
  #alone: readonly [number, number] = [0, 0]
  /** Steps with prompts since then. */
  #numSince = 0
  /** Milliseconds that a scored token took in each of the last two steps that had some. */
  #scoring: readonly [number, number]

  /** `suits`: the target where none is asked for. `most`: tokens of a step. */
  constructor(
    { prefillChunk, itlTargetMs }: Pick<EngineLimits, 'prefillChunk' | 'itlTargetMs'>,
    suits: ItlTarget,
    most: number,
    vocabSize = 0,
  ) {
    this.#scoring = [FIRST_SCORING_MS * vocabSize, FIRST_SCORING_MS * vocabSize]
    this.#prefillChunk = prefillChunk
    this.#target = itlTargetMs === null ? suits : { ...suits, leastMs: itlTargetMs, mostMs: itlTargetMs }
    this.#most = most
    this.#chunk = Math.min(suits.firstChunk, most)
  }

  /** Prompt tokens of the next step, which has `answers` tokens of answers. `isLearned`: how long it takes will be told. */
  tokensBeside(answers: number, isLearned = true): number {
    if (this.#prefillChunk !== null) return Math.max(1, this.#prefillChunk)
    const { leastMs, mostMs } = this.#target
    if (isLearned && answers > 0 && leastMs < mostMs && this.#numSince >= LOOK_EVERY) return 0
    const least = Math.max(this.#target.leastChunk, Math.ceil(LEAST_SHARE * answers))
    return Math.max(least, Math.floor(this.#chunk))
  }

  /**
   * Prompt tokens of the next step that may be scored beside answers. The host computes their log-probabilities when the step
   * is over, and every answer waits for that.
   */
  get scoredBeside(): number {
    return Math.max(1, Math.floor(this.#target.leastMs / Math.min(...this.#scoring)))
  }

  /** Scoring `tokens` tokens took `ms` milliseconds. One long time says little, so the shorter of the last two counts. */
  learnScoring(ms: number, tokens: number): void {
    this.#scoring = [this.#scoring[1], ms / tokens]
  }

  /** A step with this many answer and prompt tokens took `ms` milliseconds. */
  learn(ms: number, answers: number, prompts: number): void {
    if (answers === 0 || this.#prefillChunk !== null) return
    if (prompts === 0) {
      this.#alone = [this.#alone[1], ms]
      this.#numSince = 0
      return
    }
    this.#numSince++
    const { leastMs, shortMs, mostMs, leastChunk, growth } = this.#target
    // One long step proves little: the collector ran, a state was copied, or a kernel ran for the first time.
    const alone = Math.min(...this.#alone)
    const allowed = Math.max(leastMs, TIMES_ALONE * alone, Math.min(shortMs, TIMES_SHORT * alone))
    const excess = ms / Math.min(mostMs, allowed)
    const sure = Math.min(excess, this.#lastExcess)
    const wasLong = this.#lastExcess > 1
    this.#lastExcess = excess
    if (sure > 1) this.#chunk = Math.min(this.#chunk, prompts / Math.min(sure, MAX_CHANGE))
    // A step with room for more prompt tokens than there were says nothing about larger ones.
    // Nor does one short step after a long one.
    else if (excess < 1 && !wasLong && prompts >= Math.floor(this.#chunk)) {
      const fitting = prompts / Math.max(excess, 1 / MAX_CHANGE)
      this.#chunk = Math.min(this.#most, this.#chunk + growth * (fitting - this.#chunk))
    }
    this.#chunk = Math.max(this.#chunk, leastChunk)
  }
}

type Flying = Pick<Runner, 'maxFlights' | 'feedsDraws'>

/** A smaller share would read all weights for too few tokens. */
const MIN_PROMPT_SHARE = 256

/** Answers in one step, of `count` in all: rounded up, so that none is left for long. */
export function answerShare({ maxFlights, feedsDraws }: Flying, count: number): number {
  return feedsDraws ? count : Math.ceil(count / maxFlights)
}

/** Prompt tokens in one step with room for `budget`, of `left` in all. */
export function promptShare({ maxFlights, feedsDraws }: Flying, left: number, budget: number): number {
  if (feedsDraws) return budget
  return Math.min(budget, Math.max(MIN_PROMPT_SHARE, Math.ceil(left / maxFlights)))
}
