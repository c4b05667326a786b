/** The released RWKV-7 models by size, and which of them to begin with. Knows no network: the dashboard has the same list. */

interface Released {
  /** Stands for the newest file of its line and size. */
  readonly name: string
  /** Of that file, about: 16 bits a weight. */
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

/** Of all of them, as the hub says. */
export const RELEASED_LICENCE = 'Apache-2.0'

/** Those that are fetched in minutes, the largest first. */
export const FIRST_NAMES = ['rwkv7-g1-1.5b', 'rwkv7-g1-0.4b', 'rwkv7-g1-0.1b']

/** Of the machine's memory, what weights may take: others run on it, too. */
const MOST_OF_MEMORY = 0.4

export function isSmallFor(memoryBytes: number, fileBytes: number): boolean {
  return fileBytes <= MOST_OF_MEMORY * memoryBytes
}

/** Megabits a second of an ordinary line at home. */
export const LINE_SPEED = 100

/** How long that takes for so many bytes, at least 1. */
export function minutesToFetch(bytes: number): number {
  return Math.max(1, Math.ceil((bytes * 8) / (LINE_SPEED * 1e6) / 60))
}
