/**
 * Remembers where prompts were read: hashes of prompt prefixes at the ends of messages and at powers of two, and the
 * workers that probably have a cached state for each. A wrong guess costs a re-read prompt, never a wrong answer,
 * because a worker compares its cached prefixes token by token. Bounded; the least recently met prefix is dropped
 * first.
 */
import type { GenerateRequest } from '../../engine/messages.ts'

const MAX_PREFIXES = 65_536
/** Maximum workers remembered for one prefix. */
const MAX_WORKERS = 8
/** Ends of messages that count: conversations share the first ones, and each continues from its last ones. */
const FIRST_BOUNDARIES = 4
const LAST_BOUNDARIES = 28
/** Shorter prefixes are cheap to read again. */
const MIN_TOKENS = 16

export class PrefixHomes {
  readonly #homes = new Map<number, readonly string[]>()

  get size(): number {
    return this.#homes.size
  }

  /** The workers that have read the longest known prefix, latest first; none if no prefix is known. */
  find(points: readonly number[]): readonly string[] {
    for (let i = points.length - 1; i >= 0; i--) {
      const homes = this.#homes.get(points[i]!)
      if (homes !== undefined) return homes
    }
    return []
  }

  note(points: readonly number[], worker: string): void {
    for (const point of points) {
      const others = (this.#homes.get(point) ?? []).filter((id) => id !== worker)
      this.#homes.delete(point)
      this.#homes.set(point, [worker, ...others].slice(0, MAX_WORKERS))
    }
    for (const oldest of this.#homes.keys()) {
      if (this.#homes.size <= MAX_PREFIXES) return
      this.#homes.delete(oldest)
    }
  }

  /** A worker's cache ends with its process. */
  forget(worker: string): void {
    for (const [point, homes] of this.#homes) {
      if (!homes.includes(worker)) continue
      const others = homes.filter((id) => id !== worker)
      if (others.length === 0) this.#homes.delete(point)
      else this.#homes.set(point, others)
    }
  }
}

/** Hashes of a prompt's prefixes, shortest first. They include everything that must be equal to share a state. */
export function prefixPoints(request: GenerateRequest): number[] {
  const { prompt, tenant = '', startState = '' } = request
  const ends = endsOf(request)
  const points: number[] = []
  let [a, b] = seedOf(`${tenant}\0${startState}`)
  let next = 0
  for (let i = 0; i < prompt.length && next < ends.length; i++) {
    a = Math.imul(a ^ prompt[i]!, 0x01000193)
    b = Math.imul(b + prompt[i]!, 0x85ebca6b) ^ (b >>> 15)
    if (i + 1 !== ends[next]) continue
    next++
    // 53 bits from both hashes.
    points.push((a >>> 0) * 2 ** 21 + ((b >>> 0) & 0x1fffff))
  }
  return points
}

/** Lengths of the prefixes that count, in ascending order. */
function endsOf({ prompt, boundaries }: GenerateRequest): number[] {
  const given = [...(boundaries ?? [])]
  const chosen = new Set(
    given.length <= FIRST_BOUNDARIES + LAST_BOUNDARIES
      ? given
      : [...given.slice(0, FIRST_BOUNDARIES), ...given.slice(-LAST_BOUNDARIES)],
  )
  for (let end = 256; end < prompt.length; end *= 2) chosen.add(end)
  chosen.add(prompt.length)
  const ends = [...chosen].filter((end) => end >= MIN_TOKENS && end <= prompt.length)
  return ends.sort((x, y) => x - y)
}

function seedOf(text: string): [number, number] {
  let [a, b] = [0x811c9dc5, 0x9e3779b9]
  for (let i = 0; i < text.length; i++) {
    a = Math.imul(a ^ text.charCodeAt(i), 0x01000193)
    b = Math.imul(b + text.charCodeAt(i), 0x85ebca6b)
  }
  return [a, b]
}
