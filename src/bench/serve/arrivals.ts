/** When the requests of a load are due. Knows nothing of what they ask. */
import type { Random } from './random.ts'

/**
 * Milliseconds from the start: a Poisson process of `rate` requests a second whose first request is due at once, or
 * all of them at once for an infinite rate.
 */
export function arrivalTimes(count: number, rate: number, random: Random): number[] {
  let due = 0
  return Array.from({ length: count }, (_, i) => {
    // Gaps are exponential; 1 − random() is never 0, so none is infinite.
    if (i > 0 && rate !== Number.POSITIVE_INFINITY) due -= (Math.log(1 - random()) / rate) * 1000
    return due
  })
}
