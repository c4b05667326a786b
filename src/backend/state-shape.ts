/**
 * A recurrent state as a list of named arrays. What arrays there are, and how large each is, is said here alone: pools,
 * files, threads and the engine go through the list. Another architecture's further array is one more entry, and a kernel
 * on each backend that uses it.
 */
import { SkeinError } from '../errors.ts'

export interface StateShape {
  readonly layers: number
  readonly channels: number
  readonly heads: number
  readonly headSize: number
}

/** One array of a state; f32 outside its slot. */
interface StateArray {
  readonly name: string
  /** Shape for one layer; the whole array has layers as its first dimension. */
  readonly shape: readonly number[]
  /** Numbers of one layer. */
  readonly size: number
}

/**
 * A recurrent state outside its slot: the arrays of `arraysOf` in that order, [layers, …shape] each. It is the same on
 * every backend, whatever type a device holds its numbers in.
 */
export type StateData = readonly Float32Array[]

/** The arrays of a state, in the order in which files and messages have them. */
export function arraysOf({ channels, heads, headSize }: StateShape): readonly StateArray[] {
  return [
    // The normed input of the previous token, of time mixing and of channel mixing.
    stateArray('shift', [2, channels]),
    // RWKV-7 and RWKV-6: row = value channel, column = key channel.
    stateArray('wkv', [heads, headSize, headSize]),
  ]
}

function stateArray(name: string, shape: readonly number[]): StateArray {
  return { name, shape, size: shape.reduce((product, length) => product * length, 1) }
}

/** Numbers of each whole array. */
export function lengthsOf(shape: StateShape): number[] {
  return arraysOf(shape).map(({ size }) => shape.layers * size)
}

/** Bytes of a state outside its slot. */
export function stateBytesOf(shape: StateShape): number {
  return 4 * lengthsOf(shape).reduce((sum, length) => sum + length, 0)
}

export function createState(shape: StateShape): StateData {
  return lengthsOf(shape).map((length) => new Float32Array(length))
}

/** Throws state_incompatible for a state of another shape. */
export function checkState(shape: StateShape, state: StateData): void {
  const expected = lengthsOf(shape).join(' + ')
  const actual = state.map(({ length }) => length).join(' + ')
  if (actual === expected) return
  throw new SkeinError('state_incompatible', `a state of ${actual} numbers, expected ${expected}`)
}

/** Views of the layers `from` to `to` − 1 of a state. */
export function layersOf(shape: StateShape, state: StateData, from: number, to: number): StateData {
  return arraysOf(shape).map(({ size }, i) => state[i]!.subarray(from * size, to * size))
}
