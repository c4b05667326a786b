/**
 * Slots on their way to a state: cleared, copied from another slot, or written a few layers at a time, so that a state of
 * many megabytes does not hold up a step. A slot belongs to its request from the beginning and is stepped only when its
 * fill is over. Knows no requests and no budget.
 */
import type { Runner, StateData } from '../model/runner.ts'
import type { CopyKind } from './copy-budget.ts'

/** Moved at a time. A megabyte takes a CPU about half a millisecond, faults of fresh pages included. */
export const PIECE_BYTES = 2 ** 20

export interface Fill {
  /** What its next piece is. */
  readonly next: CopyKind
  /** Goes on by a piece; true when the slot holds the state. */
  writeSome(): boolean
}

/** Layers of a state that are about so many bytes, at least one. */
export function layersOf(
  { stateBytes, stateShape: { layers } }: Runner['info'],
  pieceBytes: number,
): number {
  return Math.min(layers, Math.max(1, Math.floor((pieceBytes * layers) / stateBytes)))
}

/** To the state before any token. */
export function clearing(runner: Runner, slot: number): Fill {
  return {
    next: 'clear',
    writeSome() {
      runner.clearSlot(slot)
      return true
    },
  }
}

/** To what another slot holds when it is done. */
export function copying(runner: Runner, from: number, slot: number): Fill {
  return {
    next: 'slot',
    writeSome() {
      runner.copySlot(from, slot)
      return true
    },
  }
}

/** To a state, which must not change meanwhile. */
export function writing(
  runner: Runner,
  slot: number,
  state: StateData,
  layersAtOnce = layersOf(runner.info, PIECE_BYTES),
): Fill {
  const { layers } = runner.info.stateShape
  let numWritten = 0
  return {
    next: 'write',
    writeSome() {
      const end = Math.min(layers, numWritten + layersAtOnce)
      runner.writeLayers(slot, numWritten, end, state)
      numWritten = end
      return numWritten === layers
    },
  }
}

/** A fill, and then something else. */
export function followedBy(fill: Fill, act: () => void): Fill {
  return {
    get next() {
      return fill.next
    },
    writeSome() {
      if (!fill.writeSome()) return false
      act()
      return true
    },
  }
}
