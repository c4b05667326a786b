/**
 * Limits of what tests try: with SKEIN_SLOW=1 everything, however long it takes; without it what a commit can wait for.
 */
export const IS_SLOW = Boolean(process.env.SKEIN_SLOW)

/** The number of random trials: for a commit, or the full number. */
export function trials(quick: number, full: number): number {
  return IS_SLOW ? full : quick
}
