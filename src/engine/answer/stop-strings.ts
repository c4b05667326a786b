/**
 * Stop strings as one Aho–Corasick automaton over UTF-16 code units: the cost per unit of text does not depend on how
 * many strings there are or how long they are. It is built once per request and never changes; each answer keeps only
 * the number of the state it is in. It knows nothing of tokens: see answer-text.ts.
 *
 * Which match wins: the one that ends first, because that is when a stream can know it; of those that end at the same
 * unit, the longest, so that no part of a stop string is shown. The winner is a function of the text alone, however
 * the text was cut into tokens.
 */

interface Node {
  readonly next: Map<number, number>
  /** Length of the prefix of a stop string that this state stands for. */
  readonly depth: number
  /** State of the longest proper suffix that is also a prefix of a stop string. */
  fallback: number
  /** The longest stop string that ends here. */
  match: string | null
}

export class StopStrings {
  /** The state before any text. */
  static readonly start = 0
  readonly #nodes: Node[] = [createNode(0)]

  constructor(strings: readonly string[]) {
    for (const string of strings) this.#insert(string)
    this.#link()
  }

  /** The state after one more code unit. */
  next(state: number, unit: number): number {
    for (let at = state; ; at = this.#nodes[at]!.fallback) {
      const target = this.#nodes[at]!.next.get(unit)
      if (target !== undefined) return target
      if (at === StopStrings.start) return at
    }
  }

  /** The stop string that is complete in this state. */
  matchAt(state: number): string | null {
    return this.#nodes[state]!.match
  }

  /** How many units at the end of the text could still become a stop string. */
  numHeld(state: number): number {
    return this.#nodes[state]!.depth
  }

  #insert(string: string): void {
    let at = StopStrings.start
    for (let i = 0; i < string.length; i++) {
      const unit = string.charCodeAt(i)
      let target = this.#nodes[at]!.next.get(unit)
      if (target === undefined) {
        target = this.#nodes.push(createNode(i + 1)) - 1
        this.#nodes[at]!.next.set(unit, target)
      }
      at = target
    }
    this.#nodes[at]!.match = string
  }

  /** Breadth first, so that the fallback of a state is linked before the states behind it. */
  #link(): void {
    const order = [...this.#nodes[StopStrings.start]!.next.values()]
    for (const index of order) {
      const node = this.#nodes[index]!
      node.match ??= this.#nodes[node.fallback]!.match
      for (const [unit, child] of node.next) {
        this.#nodes[child]!.fallback = this.next(node.fallback, unit)
        order.push(child)
      }
    }
  }
}

function createNode(depth: number): Node {
  return { next: new Map(), depth, fallback: StopStrings.start, match: null }
}
