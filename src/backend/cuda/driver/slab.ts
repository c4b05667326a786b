/**
 * Addresses within one block of memory: first fit over a sorted list of gaps that grow together again when freed.
 * Knows offsets only, not whose memory it is.
 */
import { assert } from '../../../errors.ts'

interface Gap {
  readonly start: number
  readonly bytes: number
}

export class Slab {
  readonly bytes: number
  /** By start; no two touch. */
  readonly #gaps: Gap[]
  readonly #sizes = new Map<number, number>()

  constructor(bytes: number) {
    this.bytes = bytes
    this.#gaps = [{ start: 0, bytes }]
  }

  get isEmpty(): boolean {
    return this.#sizes.size === 0
  }

  get freeBytes(): number {
    return this.#gaps.reduce((sum, gap) => sum + gap.bytes, 0)
  }

  /** The offset of `bytes` bytes, or null when no gap is large enough. */
  alloc(bytes: number): number | null {
    const index = this.#gaps.findIndex((gap) => gap.bytes >= bytes)
    const gap = this.#gaps[index]
    if (gap === undefined) return null
    const rest = gap.bytes - bytes
    this.#gaps.splice(index, 1, ...(rest > 0 ? [{ start: gap.start + bytes, bytes: rest }] : []))
    this.#sizes.set(gap.start, bytes)
    return gap.start
  }

  free(start: number): void {
    const bytes = this.#sizes.get(start)
    assert(bytes !== undefined, `offset ${start} freed but not allocated`)
    this.#sizes.delete(start)
    const index = this.#gaps.findIndex((gap) => gap.start > start)
    const at = index === -1 ? this.#gaps.length : index
    const [before, after] = [this.#gaps[at - 1], this.#gaps[at]]
    const joinsBefore = before !== undefined && before.start + before.bytes === start
    const joinsAfter = after !== undefined && start + bytes === after.start
    const first = joinsBefore ? before.start : start
    const last = joinsAfter ? after.start + after.bytes : start + bytes
    this.#gaps.splice(joinsBefore ? at - 1 : at, Number(joinsBefore) + Number(joinsAfter), {
      start: first,
      bytes: last - first,
    })
  }
}
