/**
 * The released RWKV-7 models by size, and which to start with. It knows no network; the dashboard has the same list.
 */

interface Released {
  /** Means the newest file of its line and size. */
  readonly name: string
  /** Approximate size of that file, at 16 bits per weight. */
  readonly bytes: number
}

export const RELEASED: readonly Released[] = [
  { name: 'rwkv7-g1-0.1b', bytes: 0.38e9 },
  { name: 'rwkv7-g1-0.4b', bytes: 0.9e9 },
  { name: 'rwkv7-g1-1.5b', bytes: 3.06e9 },
  { name: 'rwkv7-g1-2.9b', bytes: 5.9e9 },
  { name: 'rwkv7-g1-7.2b', bytes: 14.4e9 },
  { name: 'rwkv7-g1-13.3b', bytes: 26.5e9 },
]

/** Licence of all of them, as the hub reports it. */
export const RELEASED_LICENCE = 'Apache-2.0'

/** Models that download in minutes, largest first. */
export const FIRST_NAMES = ['rwkv7-g1-1.5b', 'rwkv7-g1-0.4b', 'rwkv7-g1-0.1b']

/** Share of the machine's memory that weights may take, because other programs run on it, too. */
const MOST_OF_MEMORY = 0.4

export function isSmallFor(memoryBytes: number, fileBytes: number): boolean {
  return fileBytes <= MOST_OF_MEMORY * memoryBytes
}

/** Speed of a typical home connection, in megabits per second. */
export const LINE_SPEED = 100

/** Minutes to download so many bytes at that speed, at least 1. */
export function minutesToFetch(bytes: number): number {
  return Math.max(1, Math.ceil((bytes * 8) / (LINE_SPEED * 1e6) / 60))
}
