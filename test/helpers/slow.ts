/** How long tests may take: SKEIN_SLOW=1 asks for everything, as long as it takes; without it they are what a commit can wait for. */
export const IS_SLOW = Boolean(process.env.SKEIN_SLOW)

/** The size of a random trial: what a commit is tried with, or the full number. */
export function trials(quick: number, full: number): number {
  return IS_SLOW ? full : quick
}
