/** Conversations by the day of their last turn. */

export interface Conversation {
  readonly model: string
  readonly id: string
  /** Unix seconds. */
  readonly updated: number
  readonly numTurns: number
}

export type Period = 'Pinned' | 'Today' | 'Yesterday' | 'Last 7 days' | 'Older'

/** In display order, without empty periods. */
export function byPeriod(
  list: readonly Conversation[],
  isPinned: (one: Conversation) => boolean,
  now: Date,
): [Period, Conversation[]][] {
  const midnight = new Date(now.getFullYear(), now.getMonth(), now.getDate()).getTime() / 1000
  const day = 86_400
  const periodOf = (one: Conversation): Period => {
    if (isPinned(one)) return 'Pinned'
    if (one.updated >= midnight) return 'Today'
    if (one.updated >= midnight - day) return 'Yesterday'
    return one.updated >= midnight - 6 * day ? 'Last 7 days' : 'Older'
  }
  const periods: Period[] = ['Pinned', 'Today', 'Yesterday', 'Last 7 days', 'Older']
  return periods
    .map((period): [Period, Conversation[]] => [period, list.filter((one) => periodOf(one) === period)])
    .filter(([, of]) => of.length > 0)
}
