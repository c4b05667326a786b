/** Pseudo-random numbers from a seed, so that a load can be repeated exactly. Not for secrets. */

/** The next number, 0 ≤ x < 1. */
export type Random = () => number

/** Mulberry32 (Tommy Ettinger, public domain): 32 bits of state, enough for the draws of a load. */
export function seededRandom(seed: number): Random {
  let state = seed | 0
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let mixed = Math.imul(state ^ (state >>> 15), state | 1)
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
}

export function integerBetween(random: Random, min: number, max: number): number {
  return min + Math.floor(random() * (max - min + 1))
}

export function shuffled<T>(random: Random, values: readonly T[]): T[] {
  const result = [...values]
  for (let i = result.length - 1; i > 0; i--) {
    const j = integerBetween(random, 0, i)
    ;[result[i], result[j]] = [result[j]!, result[i]!]
  }
  return result
}
