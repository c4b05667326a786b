/**
 * A vocabulary as a double-array trie (Aoe 1989): the child of node s by byte c is t = base[s] + c if check[t] = s. So
 * a step is two array reads, and the trie is three typed arrays. Immutable once built. It knows nothing of text.
 */
import { compareBytes } from '../files/bytes.ts'
import type { VocabularyToken } from './vocabulary.ts'

export interface Trie {
  readonly base: Int32Array
  /** The parent of each node; −1 for none. */
  readonly check: Int32Array
  /** The token that ends at each node; 0 for none. */
  readonly token: Int32Array
}

export const ROOT = 0

/** Tokens are distinct, non-empty byte strings with ids above 0. */
export function buildTrie(tokens: readonly VocabularyToken[]): Trie {
  const sorted = tokens.toSorted((a, b) => compareBytes(a.bytes, b.bytes))
  const arrays = new DoubleArray()
  // Breadth first: crowded nodes near the root find room while the arrays are empty, and the many small ones fill the
  // gaps.
  const queue: Range[] = [{ node: ROOT, depth: 0, start: 0, end: sorted.length }]
  for (const range of queue) {
    const children = childRanges(sorted, range)
    const base = arrays.place(
      range.node,
      children.map(({ byte }) => byte),
    )
    for (const { byte, start, end } of children) {
      const node = base + byte
      const depth = range.depth + 1
      // In sorted order, a token that ends here precedes the longer ones.
      const ends = sorted[start]!.bytes.length === depth
      if (ends) arrays.token[node] = sorted[start]!.id
      const rest = ends ? start + 1 : start
      if (rest < end) queue.push({ node, depth, start: rest, end })
    }
  }
  return arrays.trimmed()
}

/** Tokens [start, end) of the sorted list, which share their first `depth` bytes; these lead to `node`. */
interface Range {
  readonly node: number
  readonly depth: number
  readonly start: number
  readonly end: number
}

function childRanges(sorted: readonly VocabularyToken[], { depth, start, end }: Range) {
  const children = []
  for (let from = start; from < end; ) {
    const byte = sorted[from]!.bytes[depth]!
    let to = from + 1
    while (to < end && sorted[to]!.bytes[depth] === byte) to++
    children.push({ byte, start: from, end: to })
    from = to
  }
  return children
}

const FREE = -1

/** The growing arrays. 256 entries follow the last node, because that may be a base, so no step is out of range. */
class DoubleArray {
  base = new Int32Array(1024)
  check = new Int32Array(1024).fill(FREE)
  token = new Int32Array(1024)
  /** All slots before it are taken. Slot 0 is the root. */
  #firstFree = 1
  #end = 1

  /** Finds room for a node's children; returns its base. */
  place(node: number, bytes: readonly number[]): number {
    const lowest = bytes[0]!
    let base = Math.max(this.#firstFree - lowest, 1)
    while (!this.#fits(base, bytes)) base++
    this.base[node] = base
    for (const byte of bytes) this.check[base + byte] = node
    this.#end = Math.max(this.#end, base + bytes.at(-1)! + 1)
    while (this.check[this.#firstFree] !== FREE) this.#firstFree++
    return base
  }

  trimmed(): Trie {
    const size = this.#end + 256
    return {
      base: shared(this.base.subarray(0, size)),
      check: shared(this.check.subarray(0, size)),
      token: shared(this.token.subarray(0, size)),
    }
  }

  #fits(base: number, bytes: readonly number[]): boolean {
    if (base + 512 > this.check.length) this.#grow()
    for (const byte of bytes) if (this.check[base + byte] !== FREE) return false
    return true
  }

  #grow(): void {
    const size = 2 * this.check.length
    const grown = (old: Int32Array, fill: number) => {
      const array = new Int32Array(size).fill(fill, old.length)
      array.set(old)
      return array
    }
    this.base = grown(this.base, 0)
    this.check = grown(this.check, FREE)
    this.token = grown(this.token, 0)
  }
}

function shared(array: Int32Array): Int32Array {
  const copy = sharedInts(array.length)
  copy.set(array)
  return copy
}

/** An integer array in shared memory. In a page without the headers that this needs, it is ordinary memory. */
export function sharedInts(length: number): Int32Array<ArrayBufferLike> {
  const bytes = 4 * length
  return new Int32Array(
    typeof SharedArrayBuffer === 'undefined' ? new ArrayBuffer(bytes) : new SharedArrayBuffer(bytes),
  )
}
