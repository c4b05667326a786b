/** The error that a request gets when the model's output was NaN or infinite. */
import { SkeinError } from '../../errors.ts'

export function notFinite(where: string): SkeinError {
  return new SkeinError(
    'kernel_failed',
    `the model's output was not finite ${where}; the answer was dropped. Other requests are not affected`,
  )
}
