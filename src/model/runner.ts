/**
 * The seam between the engine and a model: a ragged batch of token rows in, drawn tokens out, and the recurrent
 * state of a slot read, written, copied and cleared. The engine never sees a tensor; the model never sees a request.
 * The scheduler is tested against a scripted implementation of this interface.
 */
import type { Flight, GuessCosts, StateData, StateShape } from '../backend/backend.ts'
import type { SamplingNumbers } from '../sampling.ts'

export type { Flight, GuessCosts, StateData, StateShape } from '../backend/backend.ts'
export { MAX_TOP_LOGPROBS } from '../backend/batch.ts'
export { createState, stateBytesOf } from '../backend/state-shape.ts'

/** The facts of a model, from its tensors. */
export interface ModelInfo {
  /** 'rwkv7' | 'rwkv6' */
  readonly architecture: string
  readonly vocabSize: number
  readonly numParameters: number
  readonly stateShape: StateShape
  /** How the large matrices are held: 'bf16', 'i8', … */
  readonly weightType: string
  /** Bytes of weights on the device. */
  readonly weightBytes: number
  /** Bytes of the embedding table among them; a token reads one of its rows. */
  readonly tableBytes: number
  /** Bytes of one recurrent state on the device. */
  readonly stateBytes: number
  /** Identifies the weights (hash over names, shapes and sampled bytes); snapshots carry it. */
  readonly fingerprint: string
  /** "cpu: avx512 (vnni, bf16), 2 threads" */
  readonly device: string
}

/** How one token is drawn. Its numbers (sampling.ts) never change, its place may. */
export interface SampleSpec extends SamplingNumbers {
  /** Place of the penalty counts that apply and are updated, of the runner's `numPlaces`: the answer's, wherever its state is. */
  readonly slot: number
  /** 64-bit seed of the request. */
  readonly seed: bigint
  /** Index of the token within its answer, from 0. */
  readonly position: number
  /** Which of the request's n choices. */
  readonly stream: number
  /** null: none; k: the drawn token's log-probability and the k best. */
  readonly logprobs: number | null
  /** Additive bias by token id; −Infinity bans. The map never changes. */
  readonly bias: ReadonlyMap<number, number> | null
  /** Tokens that may be drawn, one bit each, the lowest first, at least one of them; absent: all. */
  readonly mask?: Uint32Array | undefined
}

/** One row of a step: tokens fed into a slot's state, and the tokens to draw after the last of them. */
export interface BatchRow {
  readonly slot: number
  /**
   * A row of one token may feed what a draw of the flight before it drew: fedByDraw(s). A row of none draws after the tokens of
   * the last row that drew later into the same place, and has not drawn.
   */
  readonly tokens: Int32Array
  /**
   * For a row that feeds a draw: after one of these draws, or one that was not finite, the row does not run. Its state
   * and penalty counts stay as they are, and its own draws are −1. The set never changes.
   */
  readonly stops?: ReadonlySet<number>
  /**
   * Draws from the logits after the row's last token; empty for a prefill chunk that is not the last. Of a row with guesses
   * one from the logits before each guess, and one after the last.
   */
  readonly samples: readonly SampleSpec[]
  /** The row's one draw is made by drawLater, with the mask that it is given there. Not with blend, nor with guesses. */
  readonly drawsLater?: boolean
  /**
   * The last tokens of the row are guesses of what is drawn. Neither together with blend nor with allLogits or hidden, and no
   * row of the next flight feeds its draws.
   */
  readonly guesses?: Guesses
  /**
   * Further slots that are fed the same tokens; the draws are then from the weighted sum of all their logits. Each takes a
   * token's and a row's room in the step for itself. Not together with allLogits.
   */
  readonly blend?: Blend
  /** Also return the logits after every token of the row (for prompt log-probabilities and oracles). */
  readonly allLogits?: boolean
  /** Also return the final hidden state, behind the last norm and before the head: after the last token, or after each. */
  readonly hidden?: 'last' | 'all' | undefined
  /** The last token's logits are computed also where nothing is drawn from them: a forward pass by itself, for benches. */
  readonly withHead?: boolean
}

export interface Guesses {
  /** A draw is made if the one before it drew the guess before it; else it is −1, as are those after it, and nothing is counted. */
  readonly count: number
  /**
   * Where states are kept that the slot may take back, of the runner's places: no two rows of flights on their way name the
   * same. With `every` 0 one from before the row; else one from before its first guess and every so many guesses after that.
   */
  readonly spares: readonly number[]
  /** 0 in a row of more than `keptRow` tokens. */
  readonly every: number
}

export interface Blend {
  /** Weight of the row's own slot. */
  readonly weight: number
  readonly others: readonly { readonly slot: number; readonly weight: number }[]
}

/** Stands in a row for the token that draw `s` of the flight before drew; draws are counted over all rows of a flight. */
export function fedByDraw(s: number): number {
  return -1 - s
}

export interface TokenLogprob {
  readonly token: number
  readonly logprob: number
  /** Best first. */
  readonly top: readonly { readonly token: number; readonly logprob: number }[]
}

export interface Drawn {
  /** −1: the logits were not finite, and the row must be failed and its state dropped; or the row did not run. */
  readonly token: number
  readonly logprob: TokenLogprob | null
}

export interface RowResult {
  /** One per sample of the row, in order. */
  readonly drawn: readonly Drawn[]
  /** [tokens of the row, V] when allLogits was asked. */
  readonly logits?: Float32Array
  /** [1 or tokens of the row, C] when asked. */
  readonly hidden?: Float32Array
}

/**
 * Everything that is asked of a runner takes effect in the order in which it is asked, flights included: a slot that is
 * cleared while a flight is on its way is cleared after it, and a state that is read then has consumed its tokens.
 */
export interface Runner {
  readonly info: ModelInfo
  readonly numSlots: number
  /**
   * Places for penalty counts, which belong to answers and not to slots: more than slots, for answers that have given
   * theirs to others for a while.
   */
  readonly numPlaces: number
  /** Most tokens of one step, over all rows. */
  readonly maxTokens: number
  /** A step of `tokens` tokens costs as much as one of this many; at most maxTokens. */
  stepSize(tokens: number): number
  /**
   * Most rows of logits in a step: the tokens of rows with allLogits or all hidden states, and one for each other row that
   * draws, and for each guess.
   */
  readonly maxLogits: number
  /** Most draws in one step. */
  readonly maxSamples: number
  /** Rows with guesses of a step at most, each with a place for a state; 0: no row may have any. */
  readonly numSpares: number
  /** Further places, for states between guesses, and the longest row that keeps these; 0 where it does not. */
  readonly numKept: number
  readonly keptRow: number
  /** Guesses.every of short rows, by the tokens of the step: to keep a state takes time, too. */
  keptEvery(tokens: number): number
  readonly guessCosts: GuessCosts
  /** Flights that can be on their way at once. With 1 a flight is done when launch() returns, unless it `overlaps`. */
  readonly maxFlights: number
  /**
   * With one flight: threads of this process compute it while the caller does other things, and the caller helps when it
   * asks for the result. A launch before that waits for the flight, so its rows may feed what it drew.
   */
  readonly overlaps?: boolean
  /** Whether rows may feed draws of the flight before. Where not, flights of different sequences keep a runner busy. */
  readonly feedsDraws: boolean
  readonly drawsLater: boolean
  /**
   * Puts one forward pass on its way; the result has a row's results in its place. Flights end in the order in which they
   * were launched. Slots of the rows are distinct. The rows may change when this returns. The last
   * flight but maxFlights − 1 must have been asked for its results.
   */
  launch(rows: readonly BatchRow[]): Flight<RowResult[]>
  /**
   * Makes the draws of the last flight that were left, in the order of its rows: of the tokens of each mask; null: not now, the
   * row draws −1. Once, after the launch of such a flight and before the next, or before it is asked for its results.
   */
  drawLater(masks: readonly (Uint32Array | null)[]): void
  /** The last flight is done except for its later draws: from here on the device waits for them. */
  readonly waitsForDraws: boolean
  /** One forward pass, launched and waited for. */
  step(rows: readonly BatchRow[]): RowResult[]
  /** Makes a slot the state before any token. */
  clearSlot(slot: number): void
  copySlot(from: number, to: number): void
  /** A state that its last row has kept at the spare: not all of its guesses were drawn. Once a row. */
  rewindSlot(slot: number, spare: number): void
  /** Marks a freed slot so that its use would be noticed. */
  poisonSlot(slot: number): void
  /** Forgets the penalty counts of a place and marks the prompt's tokens as seen. */
  resetPenalties(place: number, promptTokens: Int32Array): void
  /** As in StatePool: states are read and written beside the steps. */
  readonly canMove: boolean
  /** `into`: memory of a state to use, whatever is in it. */
  readState(slot: number, into?: StateData): Flight<StateData>
  writeState(slot: number, state: StateData): Flight<void>
  /** As in Backend. */
  heldBytes?(): number
  dispose(): void
}
