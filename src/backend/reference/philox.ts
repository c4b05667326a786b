/**
 * Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): a random number that is a
 * function of a key and a counter, so that a draw depends on its request and position alone and never on its batch.
 */
const MULTIPLIER_0 = 0xd2511f53n
const MULTIPLIER_1 = 0xcd9e8d57n
const WEYL_0 = 0x9e3779b9
const WEYL_1 = 0xbb67ae85

/** Uniform in [0, 1) with 24 bits, from key (seedLow, seedHigh) and counter (position, stream, 0, 0). */
export function philox(
  seedLow: number,
  seedHigh: number,
  position: number,
  stream: number,
): number {
  return philoxFour(seedLow, seedHigh, position, stream, 0)[0]
}

/** Four uniforms in [0, 1) with 24 bits, from key (seedLow, seedHigh) and counter (position, stream, block, 0). */
export function philoxFour(
  seedLow: number,
  seedHigh: number,
  position: number,
  stream: number,
  block: number,
): [number, number, number, number] {
  let [c0, c1, c2, c3] = [position >>> 0, stream >>> 0, block >>> 0, 0]
  let [k0, k1] = [seedLow >>> 0, seedHigh >>> 0]
  for (let round = 0; round < 10; round++) {
    const p0 = MULTIPLIER_0 * BigInt(c0)
    const p1 = MULTIPLIER_1 * BigInt(c2)
    const next0 = (high(p1) ^ c1 ^ k0) >>> 0
    const next2 = (high(p0) ^ c3 ^ k1) >>> 0
    ;[c0, c1, c2, c3] = [next0, low(p1), next2, low(p0)]
    k0 = (k0 + WEYL_0) >>> 0
    k1 = (k1 + WEYL_1) >>> 0
  }
  return [uniform(c0), uniform(c1), uniform(c2), uniform(c3)]
}

function uniform(word: number): number {
  return (word >>> 8) * 2 ** -24
}

function high(product: bigint): number {
  return Number(product >> 32n)
}

function low(product: bigint): number {
  return Number(product & 0xffffffffn)
}
