/**
 * The memory of states that nobody reads any more, for the next copies. A state of a large model is tens of megabytes, and
 * many are copied a second: with new memory for each, the collector of garbage takes a quarter of the time
 * (docs/dev/house.md). Whoever still has a state that was given back finds arrays of length 0, never another's numbers.
 */
import type { StateData } from '../backend/state-shape.ts'

/** What is given back beyond it is left to the collector. */
const MAX_BYTES = 2 ** 28

export class StateMemory {
  #free: StateData[] = []
  #bytes = 0

  /** Memory of a state, with old numbers in it; undefined when there is none. */
  take(): StateData | undefined {
    const state = this.#free.pop()
    if (state !== undefined) this.#bytes -= bytesOf(state)
    return state
  }

  /** A state that nobody reads any more. One whose arrays are parts of something larger is left alone. */
  giveBack(state: StateData): void {
    const bytes = bytesOf(state)
    if (bytes === 0 || this.#bytes + bytes > MAX_BYTES || !state.every(isWhole)) return
    const transfer = state.map(({ buffer }) => buffer as ArrayBuffer) // isWhole has looked
    this.#free.push(structuredClone(state, { transfer }))
    this.#bytes += bytes
  }
}

function isWhole({ buffer, byteLength }: Float32Array): boolean {
  return buffer instanceof ArrayBuffer && buffer.byteLength === byteLength
}

function bytesOf(state: StateData): number {
  return state.reduce((sum, { byteLength }) => sum + byteLength, 0)
}
