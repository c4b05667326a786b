/**
 * What the runner needs of an architecture: sizes, and a way to record its forward pass. RWKV-6 and RWKV-7 each
 * implement it in one file over the ops of the backend.
 */
import type {
  Capacity,
  Matrix,
  Norm,
  Ops,
  StatePool,
  StateShape,
  Tensor,
} from '../backend/backend.ts'

export interface Model {
  readonly architecture: string
  readonly vocabSize: number
  readonly numParameters: number
  readonly weightType: string
  readonly weightBytes: number
  readonly tableBytes: number
  readonly stateShape: StateShape
  readonly ln_out: Norm
  /** [V, C] */
  readonly head: Matrix
  /** Records everything from token ids to the residual stream after the last block; returns it, [T, C]. */
  forward(ops: Ops, states: StatePool, capacity: Capacity): Tensor
}
