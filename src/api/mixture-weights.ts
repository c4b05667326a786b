/** What each state of a mixture weighs, as shares that add up to 1. */
import type { MixedState } from '../engine/messages.ts'
import { SkeinError } from '../errors.ts'

/** `param` is the field that the weights came in. */
export function weighted(
  states: readonly (string | null)[],
  weights: readonly number[],
  param: string,
): MixedState[] {
  const total = weights.reduce((sum, weight) => sum + weight, 0)
  if (weights.length !== states.length || !(total > 0)) {
    const expected = `${states.length} numbers (one for each file, then one for the model's own state where it takes part) with a sum above 0`
    throw new SkeinError('invalid_request', `${param}: expected ${expected}`, { param })
  }
  return states.map((startState, i) => ({ startState, weight: weights[i]! / total }))
}
