/**
 * What is large, on its way in parts. At most two of them are sent before the other end has taken one, so there is always room for
 * something small on the line, and a peer that does not read costs no more than what it has not read. Knows
 * neither what parts are nor how they are carried.
 */
import type { Id, Large, Part } from './wire.ts'

const MOST_ON_THE_WAY = 2

export class LargeMessages {
  readonly #send: (part: Part) => void
  #queue: Large[] = []
  /** How many in the queue are of each. */
  readonly #numOf = new Map<Id, number>()
  #numOnTheWay = 0
  #bytes = 0

  constructor(send: (part: Part) => void) {
    this.#send = send
  }

  get isEmpty(): boolean {
    return this.#queue.length === 0
  }

  /** That it keeps alive, about. */
  get bytes(): number {
    return this.#bytes
  }

  /** Whether something of this request or call is here; of anybody, without an id. */
  isBehind(id?: Id): boolean {
    return id === undefined ? !this.isEmpty : this.#numOf.has(id)
  }

  add(large: Large): void {
    this.#queue.push(large)
    this.#bytes += large.bytes
    for (const id of large.ids) this.#numOf.set(id, (this.#numOf.get(id) ?? 0) + 1)
    this.#sendSome()
  }

  /** The other end has taken a part. */
  taken(): void {
    this.#numOnTheWay--
    this.#sendSome()
  }

  /** Nobody will take any more. */
  drop(): void {
    this.#queue = []
    this.#numOf.clear()
    this.#bytes = 0
  }

  #sendSome(): void {
    while (this.#numOnTheWay < MOST_ON_THE_WAY) {
      const [first] = this.#queue
      if (first === undefined) return
      const { value, done } = first.parts.next()
      if (done === true) this.#forget(first)
      else {
        this.#numOnTheWay++
        this.#send(value)
      }
    }
  }

  #forget({ ids, bytes }: Large): void {
    this.#queue.shift()
    this.#bytes -= bytes
    for (const id of ids) {
      const left = this.#numOf.get(id)! - 1
      if (left > 0) this.#numOf.set(id, left)
      else this.#numOf.delete(id)
    }
  }
}
