/** A request's own bans within what a grammar allows. */

/** Whether a token of the mask may still be drawn. */
export function leavesSome(bias: ReadonlyMap<number, number> | null, mask: Uint32Array): boolean {
  const banned = [...(bias ?? [])].filter(([, value]) => value === -Infinity)
  if (banned.length === 0) return true
  const left = mask.slice()
  for (const [token] of banned) left[token >> 5] = left[token >> 5]! & ~(1 << (token & 31))
  return left.some((word) => word !== 0)
}
