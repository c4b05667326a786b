/** What `--speculate` may be, and on which backends. */
import type { Backend } from '../../backend/backend.ts'
import { SkeinError } from '../../errors.ts'

/** From what the next tokens of answers are guessed: nothing, or what followed the same tokens earlier in the text. */
export const SPECULATE_CHOICES = ['off', 'lookup'] as const
export type SpeculateChoice = (typeof SPECULATE_CHOICES)[number]

/** Places for states from before rows with guesses. Throws where the backend does not draw them. */
export function sparesOf(
  choice: SpeculateChoice = 'off',
  numSlots: number,
  { name, guessing }: Pick<Backend, 'name' | 'guessing'>,
): number {
  if (choice === 'off') return 0
  if (guessing !== null) return Math.min(numSlots, guessing.rows)
  throw new SkeinError(
    'invalid_request',
    `--speculate ${choice} is for models on one CPU or one CUDA device; on ${name}, or over several devices, leave it out`,
    { param: 'speculate' },
  )
}
