/** The delay before a retry. */

const FIRST_WAIT_MS = 500
const LONGEST_WAIT_MS = 15_000

/** Doubles with each failure, with random jitter so that many pages do not return at once. */
export function waitBefore(failures: number, random = Math.random()): number {
  const longest = Math.min(FIRST_WAIT_MS * 2 ** (failures - 1), LONGEST_WAIT_MS)
  return longest * (0.75 + random / 4)
}
