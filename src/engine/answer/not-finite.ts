/** The fault of a model's arithmetic, as the request that it hit is told. */
import { SkeinError } from '../../errors.ts'

export function notFinite(where: string): SkeinError {
  return new SkeinError(
    'kernel_failed',
    `the model's output was not finite ${where}; the answer was dropped. Other requests are not affected`,
  )
}
