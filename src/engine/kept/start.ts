/** What a request begins with, and what it reads beside that. */
import type { StateData } from '../../model/runner.ts'

/** A state that a slot of a request begins with, instead of the state before any token. */
export interface Start {
  /** Tells a tuned start state from all others; absent for states of prompts and sessions. */
  readonly id?: string
  /** Tokens that it has consumed: the prompt begins with them. */
  readonly numTokens: number
  /** Where it is: in another slot, or outside of slots. Asked for once for each slot that begins with it, when it does. */
  take(): number | StateData
  /** It is on its way into the slot, and what was taken is not needed any more. */
  taken?(): void
}

/** Further states that read a request's prompt and answer beside its own, for draws from the sum of their logits. */
export interface Mixture {
  /** Weight of the request's own state. */
  readonly weight: number
  readonly others: readonly { readonly start: Start | null; readonly weight: number }[]
}
