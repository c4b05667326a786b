/**
 * What the runner needs of an architecture: sizes, and a way to record its forward pass. RWKV-6 and RWKV-7 each
 * implement it in one file over the ops of the backend. A model is loaded whole, or as a range of its layers: what one
 * device of several holds.
 */
import type { Backend, Matrix, Norm, Ops, StatePool, Tensor } from '../backend/backend.ts'
import type { Capacity } from '../backend/batch.ts'
import type { Checkpoint } from './formats/format.ts'
import type { ModelInfo } from './runner.ts'
import type { WeightOptions } from './weights.ts'

/** Layers [from, to) of a model. */
export interface LayerRange {
  readonly from: number
  readonly to: number
}

/** Activations that pass from one layer to the next, [T, C] each, updated in place: the residual stream first. */
export type Carried = readonly [x: Tensor, ...more: Tensor[]]

/** Behind the last layer. */
interface ModelOutput {
  readonly ln_out: Norm
  /** [V, C] */
  readonly head: Matrix
}

/** Its weights and the shape of its states are those of the layers held here. */
export interface Model extends Omit<ModelInfo, 'stateBytes' | 'fingerprint' | 'device'> {
  /** Null where the last layer is on another device. */
  readonly output: ModelOutput | null
  /**
   * Records the layers held here; returns what they carry on. The first layer begins with the embedding of the token
   * ids; where that is on another device, the carried tensors are to be filled before the program runs.
   */
  forward(ops: Ops, states: StatePool, capacity: Capacity): Carried
}

/** Loads the whole model, or only `layers` of it. */
export type LoadModel = (checkpoint: Checkpoint, backend: Backend, options: WeightOptions, layers?: LayerRange) => Model
