/**
 * How many prompt tokens a step takes while answers are being generated, so that it lasts no longer than answers may wait
 * for a token. It goes by how long the steps before took: after longer ones it is less, after shorter ones more. It
 * changes when a prompt is read, never what is computed. Knows no rows.
 */
import type { Runner } from '../model/runner.ts'

interface PrefillLimits {
  /** Always so many prompt tokens; null: as many as the target allows. */
  readonly prefillChunk: number | null
  /** Milliseconds that a step may take, which is what answers wait between two tokens. */
  readonly itlTargetMs: number
}

/** Milliseconds between tokens that suit a device of its own, which has steps on their way, and a CPU. */
const DEVICE_TARGET_MS = 25
const HOST_TARGET_MS = 200

export function itlTargetOf({ maxFlights }: Pick<Runner, 'maxFlights'>): number {
  return maxFlights > 1 ? DEVICE_TARGET_MS : HOST_TARGET_MS
}

/** Before anything was measured. */
const FIRST_CHUNK = 256
/** However long steps take, prompts go on: with so many tokens, and half as many as answers have in the step. */
const LEAST_CHUNK = 32
const LEAST_SHARE = 0.5
/** The most that one step's time may change it by. */
const MAX_CHANGE = 2

export class PrefillBudget {
  readonly #limits: PrefillLimits
  readonly #most: number
  #chunk: number
  /** How long the last step that counted took, in multiples of the target. */
  #lastExcess = 0

  /** `most`: tokens of a step. */
  constructor(limits: PrefillLimits, most: number) {
    this.#limits = limits
    this.#most = most
    this.#chunk = Math.min(FIRST_CHUNK, most)
  }

  /** Prompt tokens of the next step, beside so many tokens of answers. */
  tokensBeside(answers: number): number {
    const { prefillChunk } = this.#limits
    if (prefillChunk !== null) return Math.max(1, prefillChunk)
    return Math.max(LEAST_CHUNK, Math.ceil(LEAST_SHARE * answers), Math.floor(this.#chunk))
  }

  /** A step with so many tokens of answers and of prompts took so long. */
  learn(ms: number, answers: number, prompts: number): void {
    if (answers === 0 || prompts === 0 || this.#limits.prefillChunk !== null) return
    const excess = ms / this.#limits.itlTargetMs
    // One long step says little: memory was collected, a state copied, a kernel met for the first time.
    const sure = Math.min(excess, this.#lastExcess)
    this.#lastExcess = excess
    if (sure > 1) this.#chunk = Math.min(this.#chunk, prompts / Math.min(sure, MAX_CHANGE))
    // A step with room for more prompts than there were says nothing of larger ones.
    else if (excess < 1 && prompts >= Math.floor(this.#chunk))
      this.#chunk = Math.min(this.#most, prompts / Math.max(excess, 1 / MAX_CHANGE))
    this.#chunk = Math.max(this.#chunk, LEAST_CHUNK)
  }
}
