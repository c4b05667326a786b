/**
 * Where in a prompt a copy of the state is worth keeping: where another prompt is likely to differ. Pure arithmetic;
 * states.ts takes the copies.
 */
import { MIN_PREFIX_TOKENS } from '../../state/prefix-cache.ts'

/** Distance of the points inside a long prompt. */
const GRID_TOKENS = 512
/** Most grid points in a prompt; for longer prompts the grid doubles its distance. */
const MAX_GRID_POINTS = 8
/** Reading so many tokens again costs about as much as a step of as many answers. */
const SHORT_TOKENS = 64

interface PointHints {
  /** Tokens that need not be read. */
  readonly start: number
  /** Tokens in common with an earlier prompt. */
  readonly shared: number
  /** Ends of messages, ascending. */
  readonly boundaries: Int32Array
  /** Answers are being generated, so that each step takes long. */
  readonly isBusy: boolean
}

/**
 * Ascending prompt lengths within (start, length − 1]. In order of worth: where it parts from an earlier prompt, since
 * a third may part from both there; the end of the last message, that of the first (a system prompt); the whole prompt
 * but one token; and a grid. A point within MIN_PREFIX_TOKENS of a better one is dropped: feeding the difference again
 * is one row of a step, as is the one token of a full hit.
 *
 * The whole prompt less one token, rather than the whole: logits are not kept with a state, so the same prompt again
 * must feed at least one token to have some to draw from.
 *
 * Each point costs the prompt a step. So a short one beside answers stops only where it is known to begin like another.
 */
export function snapshotPoints(length: number, { start, shared, boundaries, isBusy }: PointHints): number[] {
  const points: number[] = []
  const isFar = (point: number) => [0, start, ...points].every((other) => Math.abs(point - other) >= MIN_PREFIX_TOKENS)
  const consider = (point: number | undefined) => {
    if (point !== undefined && point > start && point < length && isFar(point)) points.push(point)
  }
  consider(shared)
  if (isBusy && length - start <= SHORT_TOKENS && shared < length - 1) return points
  const inside = boundaries.filter((boundary) => boundary < length)
  consider(inside.at(-1))
  consider(inside[0])
  consider(length - 1)
  for (const point of gridPoints(length)) consider(point)
  return points.sort((a, b) => a - b)
}

function gridPoints(length: number): number[] {
  let distance = GRID_TOKENS
  while (length / distance > MAX_GRID_POINTS) distance *= 2
  const count = Math.ceil(length / distance) - 1
  return Array.from({ length: Math.max(0, count) }, (_, i) => (i + 1) * distance)
}
