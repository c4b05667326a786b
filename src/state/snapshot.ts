/**
 * A recurrent state outside its slot, with the tokens it has consumed and the model it belongs to. snapshot-file.ts is
 * its file format.
 */
import type { StateData, StateShape } from '../backend/state-shape.ts'
import { concatTokens } from '../files/bytes.ts'

export interface Snapshot {
  /** All tokens that the state has consumed, in order, from the empty state on. */
  readonly tokens: Int32Array
  /** Tokens that follow in the conversation and that the state has not consumed. */
  readonly tail: Int32Array
  readonly state: StateData
}

/** The model that a state belongs to. States of equal identity have the same shape and meaning. */
export interface ModelIdentity extends StateShape {
  readonly architecture: string
  /** Hash of the vocabulary: token ids mean nothing without it. */
  readonly vocabulary: string
  /** Fingerprint of the weights. */
  readonly weights: string
}

/** Tokens of the whole conversation: those consumed and the tail. */
export function transcriptOf({ tokens, tail }: Pick<Snapshot, 'tokens' | 'tail'>): Int32Array {
  return joinTokens(tokens, tail)
}

export function joinTokens(...parts: readonly ArrayLike<number>[]): Int32Array {
  return concatTokens(parts)
}

export function bytesOf(state: StateData): number {
  return state.reduce((sum, { byteLength }) => sum + byteLength, 0)
}
