/** What a request begins with, and what it reads beside that. */
import type { StateData } from '../../model/runner.ts'

/** A state that a slot of a request begins with, instead of the state before any token. */
export interface Start {
  /** Identifies a tuned start state; absent for states of prompts and sessions. */
  readonly id?: string
  /** Tokens that it has consumed: the prompt begins with them. */
  readonly numTokens: number
  /**
   * Where the state is: in another slot, or in memory. Called once for each slot that begins with it, when that slot is
   * filled.
   */
  take(): number | StateData
  /** The state is on its way into the slot; what `take` returned is not needed any more. */
  taken?(): void
}

/**
 * Further states that read a request's prompt and answer beside its own; tokens are drawn from the weighted sum of
 * their logits.
 */
export interface Mixture {
  /** Weight of the request's own state. */
  readonly weight: number
  readonly others: readonly { readonly start: Start | null; readonly weight: number }[]
}
