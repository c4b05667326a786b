/** The values of `--speculate`, and the backends that can do it. */
import type { Backend } from '../../backend/backend.ts'
import { SkeinError } from '../../errors.ts'

/**
 * From what the next tokens of answers are guessed: nothing, what a request predicts, or that and what followed the same
 * tokens earlier in the text. A draft model comes on top.
 */
export const SPECULATE_CHOICES = ['off', 'prediction', 'lookup'] as const
export type SpeculateChoice = (typeof SPECULATE_CHOICES)[number]

/** The proposers: from `--speculate`, and the draft model of `--draft`, by its file. */
export interface GuessChoice {
  /** Off when absent. */
  readonly speculate?: SpeculateChoice | undefined
  readonly draft?: string | undefined
}

/** Requests with predictions are few: memory for this many at a time costs little. */
const PREDICTED_ROWS = 4

/** Places for states from before rows with guesses. Throws where the backend does not draw them and somebody asked for it. */
export function sparesOf(
  { speculate = 'off', draft }: GuessChoice,
  numSlots: number,
  { name, guessing }: Pick<Backend, 'name' | 'guessing'>,
): number {
  const isForAll = speculate === 'lookup' || draft !== undefined
  if (speculate === 'off' && !isForAll) return 0
  const most = isForAll ? Number.POSITIVE_INFINITY : PREDICTED_ROWS
  if (guessing !== null) return Math.min(numSlots, guessing.rows, most)
  if (!isForAll) return 0
  const [flag, param] = draft === undefined ? ['--speculate lookup', 'speculate'] : ['--draft', 'draft']
  const message = `${flag} is for models on one CPU or one CUDA device; on ${name}, or over several devices, leave it out`
  throw new SkeinError('invalid_request', message, { param })
}
