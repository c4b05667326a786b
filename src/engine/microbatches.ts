/**
 * How the work in hand is divided over the steps that a runner has on their way at once, where none can feed what the
 * one before drew: on a pipeline of devices. A sequence is then in one of them at a time, so each step takes its share
 * and leaves the rest to the next ones; with as many steps as devices, every device has one. Knows counts only.
 */
import type { Runner } from '../model/runner.ts'

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
