/**
 * Entries in order of use, with limits on their number and their bytes. It says which entry has to go; its owner
 * decides what going means.
 */

export interface Capacity {
  readonly count: number
  readonly bytes: number
}

export class Lru<T> {
  readonly capacity: Capacity
  /** Least recently used first; the value is the size in bytes. */
  readonly #items = new Map<T, number>()
  #bytes = 0

  constructor(capacity: Capacity) {
    this.capacity = capacity
  }

  get count(): number {
    return this.#items.size
  }

  get bytes(): number {
    return this.#bytes
  }

  get isOver(): boolean {
    return this.count > this.capacity.count || this.#bytes > this.capacity.bytes
  }

  /** Adds an item, or makes it the most recently used one. */
  touch(item: T, bytes: number): void {
    this.delete(item)
    this.#items.set(item, bytes)
    this.#bytes += bytes
  }

  delete(item: T): boolean {
    const bytes = this.#items.get(item)
    if (bytes === undefined) return false
    this.#items.delete(item)
    this.#bytes -= bytes
    return true
  }

  /** The least recently used item that may go. */
  oldest(mayGo: (item: T) => boolean = () => true): T | null {
    for (const item of this.#items.keys()) if (mayGo(item)) return item
    return null
  }
}
