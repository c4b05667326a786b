/**
 * The seam between a model and the hardware: buffers, packed matrices, a pool of recurrent states, and the fused ops that
 * RWKV-6 and RWKV-7 are written over. `batch.ts` has a step's input and output, `weight-types.ts` how matrices are held.
 * Every backend (`reference`, `cpu`, `cuda`, `webgpu`) implements this file under the same op names. A model is recorded
 * once through `Ops` and replayed for every step, so the model's TypeScript runs at load only.
 *
 * Letters used in shapes: T tokens of the whole ragged batch · B rows (sequences) in it · C channels · H heads ·
 * N head size (C = H·N) · V vocabulary · L layers · R logit rows · S samples drawn.
 *
 * This file knows nothing of checkpoints, requests or schedules.
 */
import { assert } from '../errors.ts'
import type { Batch, Capacity } from './batch.ts'
import type { Flight } from './flight.ts'
import type { StateData, StateShape } from './state-shape.ts'
import type { MatrixSource, WeightType } from './weight-types.ts'

export type { Flight } from './flight.ts'
export type { StateData, StateShape } from './state-shape.ts'

/** A device buffer of numbers; f32 on `cpu`, f64 on `reference`. Owned by the backend that made it. */
export interface Tensor {
  readonly shape: readonly number[]
}

/** A packed weight matrix W [rows, columns] for y = x·Wᵀ. Opaque: the layout is the backend's own. */
export interface Matrix {
  readonly rows: number
  readonly columns: number
  readonly type: WeightType
  /** Bytes on the device, scales included. */
  readonly bytes: number
}

/** An embedding table [V, C] in its source type. */
export interface Table {
  readonly rows: number
  readonly columns: number
  readonly bytes: number
}

/** A table [V, C] that stays in the host's memory: a step reads the rows of its tokens. */
export interface HostTable {
  readonly rows: number
  readonly columns: number
}

/** Affine layer norm over C channels: (x − mean)/√(var + eps)·weight + bias. weight, bias: [C] */
export interface Norm {
  readonly weight: Tensor
  readonly bias: Tensor
  readonly eps: number
}

/** From one slot to another. */
export type SlotCopy = readonly [from: number, to: number]

/**
 * The recurrent states of all slots. Kernels index it by the batch's `slots`; nothing else names a state. Whatever is asked
 * of a pool takes effect in the order in which it is asked, launched steps included, and no call waits for the device.
 */
export interface StatePool {
  readonly shape: StateShape
  readonly numSlots: number
  /** Bytes of one slot on the device. */
  readonly bytesPerSlot: number
  /**
   * A read or write can be begun now: there is staging memory for it. Not to be asked for while this is false. It becomes
   * true by itself as flights end; always true where no staging is needed.
   */
  readonly canMove: boolean
  /** The state before any token: all zero. */
  clear(slot: number): void
  /** Fills a freed slot with NaN, so that a use after free cannot go unnoticed. */
  poison(slot: number): void
  copy(from: number, to: number): void
  /** Several copies, of which none has a slot of another: as copy() of each, where they cost less together. */
  copyAll?(copies: readonly SlotCopy[]): void
  /**
   * The state as everything asked before leaves it. The backend takes its own copy within that order, on the device: what
   * is asked of the slot afterwards, clearing or stepping it included, does not change what is read. `into` is where to
   * put it (a new state when absent); it must be left alone until the flight is done.
   */
  read(slot: number, into?: StateData): Flight<StateData>
  /**
   * Puts a state into a slot. The flight is done when whatever is asked from then on finds it there. Until then the slot
   * must not be named in any other call, nor be given to somebody else, and `state` must not change. The slot keeps what
   * it has until all of the state can be put there: a write that fails changes nothing. A state of another shape throws
   * state_incompatible at once.
   */
  write(slot: number, state: StateData): Flight<void>
}

/** The sampler's memory of each slot: which tokens were seen, and how often (decayed). */
export interface PenaltyPool {
  readonly numSlots: number
  /** Forgets everything, then marks `promptTokens` as seen in the prompt (for the repetition penalty only). */
  reset(slot: number, promptTokens: Int32Array): void
}

/** The function applied to each element of a product before it is stored. */
export type Epilogue = 'none' | 'tanh' | 'sigmoid' | 'relu2' | 'add'

/** One y = epilogue(x·Wᵀ + bias). `add` accumulates into y (the residual) instead of overwriting it. */
export interface LinearJob {
  readonly y: Tensor // [T, W.rows]
  readonly x: Tensor // [T, W.columns]
  readonly weight: Matrix
  readonly bias?: Tensor // [W.rows]
  readonly epilogue?: Epilogue
}

/** Constants of one layer's RWKV-7 time mixing, all [C] (r_k is [H, N] flattened). */
export interface Wkv7Weights {
  readonly k_k: Tensor
  readonly k_a: Tensor
  readonly r_k: Tensor
  /** Group norm over each head, eps 64e-5. */
  readonly ln_x: Norm
}

/** Operands of wkv7, all [T, C]. */
export interface Wkv7Operands {
  readonly r: Tensor
  readonly k: Tensor
  readonly v: Tensor
  /** Decay logit w0 + tanh(m_w w1) w2; the decay itself is exp(−e^(−½)·σ(w)), computed inside in f32. */
  readonly w: Tensor
  /** In-context learning rate, already through the sigmoid. */
  readonly a: Tensor
  readonly g: Tensor
  /** σ(v0 + (m_v v1) v2): how far v moves to the first layer's v. Absent in layer 0, which writes vFirst instead. */
  readonly vGate?: Tensor
  readonly vFirst: Tensor
}

/** Constants of one layer's DeepEmbed, of RWKV-7a. */
export interface DeepEmbedWeights {
  /** [V, S·S] */
  readonly s_emb: HostTable
  /** [S, F] flattened */
  readonly s2: Tensor
  /** [F] */
  readonly s0: Tensor
}

/** Constants of one layer's RWKV-6 time mixing. */
export interface Wkv6Weights {
  /** How much the present token counts before it enters the state. [C] ([H, N] flattened) */
  readonly u: Tensor
  /** Group norm over each head, eps 64e-5. */
  readonly ln_x: Norm
}

/** Operands of wkv6, all [T, C]. */
export interface Wkv6Operands {
  readonly r: Tensor
  readonly k: Tensor
  readonly v: Tensor
  /** Decay logit: the decay itself is exp(−exp(w)), computed inside in f32. */
  readonly w: Tensor
  /** Gate before its silu. */
  readonly g: Tensor
}

/**
 * The ops of a step. Each call records one operation; replaying the program runs them in order for the batch given.
 * All tensors have room for the program's capacity; only the first T (or R) rows are touched.
 */
export interface Ops {
  /** x[t] = LN(table[tokens[t]]).  x [T, C], a tensor or an activation */
  embed(x: Tensor, table: Table, norm: Norm): void

  /**
   * Layer norm, token shift and channel mixes in one pass. Per token t of a row:
   *   h = LN(x[t]);  d = previous h of the row − h;  out[i][t] = h + d·mix[i]
   * The previous h of a row's first token is shift vector `which` of its state at `layer` (0 = time mixing,
   * 1 = channel mixing); afterwards that vector is the h of the row's last token.
   * out n × [T, C] · x [T, C] · mix n × [C]
   */
  shiftMix(
    out: readonly Tensor[],
    x: Tensor,
    norm: Norm,
    mix: readonly Tensor[],
    states: StatePool,
    layer: number,
    which: 0 | 1,
  ): void

  /**
   * Several independent matrix products in one pass of the machine. On `cpu` and `reference` the order of the additions
   * of an output does not depend on T; on `cuda` it does from 17 tokens on (docs/dev/kernels.md).
   */
  linear(jobs: readonly LinearJob[]): void

  /**
   * RWKV-7 time mixing from the projections to the gated head outputs. Per token, in f32 (f64 on reference):
   *   v ← v + (vFirst − v)·vGate           (layer 0: vFirst ← v)
   *   kk = k·k_k / max(‖k·k_k‖₂ per head, 1e-12);   k ← k·(1 + (a − 1)·k_a);   w ← exp(−e^(−½)·σ(w))
   *   per head:  S ← S·diag(w) − (S·kk)(kk⊙a)ᵀ + v·kᵀ;   y = S·r
   *   y ← GN(y)·ln_x + (Σ r·k·r_k)·v;   out = y·g
   * out [T, C]. The state of each row's slot at `layer` is updated in place. Source: gpu maths of RWKV-7 "Goose".
   */
  wkv7(out: Tensor, operands: Wkv7Operands, weights: Wkv7Weights, states: StatePool, layer: number): void

  /**
   * The data-dependent token shift of RWKV-6, in place over its data-dependent part:
   *   mix[i] ← h + (prev − h)·(base[i] + mix[i])
   * mix n × [T, C] · h, prev [T, C] · base n × [C]
   */
  ddlerp(mix: readonly Tensor[], h: Tensor, prev: Tensor, base: readonly Tensor[]): void

  /**
   * RWKV-6 time mixing from the projections to the gated head outputs. Per token, in f32 (f64 on reference), per head:
   *   y = S·r + (Σ r·u·k)·v;   S ← S·diag(exp(−exp(w))) + v·kᵀ
   *   out = (GN(y)·ln_x)·silu(g)
   * out [T, C]. The state of each row's slot at `layer` is updated in place. Source: maths of RWKV-6 "Finch".
   */
  wkv6(out: Tensor, operands: Wkv6Operands, weights: Wkv6Weights, states: StatePool, layer: number): void

  /**
   * DeepEmbed of RWKV-7a: a matrix of the token's own scales the channels of u.
   *   M = own[t] + s_emb[tokens[t]], as [S, S];  u[t] *= s0 + (low[t]·M)·s2
   * u [T, F] · low [T, S] · own [T, S·S]
   */
  deepEmbed(u: Tensor, low: Tensor, own: Tensor, weights: DeepEmbedWeights): void

  /** x += gate·value: the gated residual of RWKV-6's channel mixing. All [T, C]. */
  gatedAdd(x: Tensor, gate: Tensor, value: Tensor): void

  /**
   * out[r] = LN(x[logitRows[r]]), or the blend of several rows (see Batch).  out [R, C] · x [T, C]
   * kept [places, C], where the backend draws later: rows of `out` that are kept from one batch to another.
   */
  gatherNorm(out: Tensor, x: Tensor, norm: Norm, kept?: Tensor): void

  /** y = x·Wᵀ over the R logit rows.  y [R, V] · x [R, C] */
  logits(y: Tensor, x: Tensor, weight: Matrix): void

  /**
   * Draws every sample of the batch from its logits row:
   * mask → bias → penalties → temperature → top-k, top-p and min-p on one distribution → draw; then counts the token. With noise
   * the best of noisy scores takes the place of what follows the temperature.
   * Ties are broken by the smaller id. logits [R, V]
   */
  sample(logits: Tensor, penalties: PenaltyPool): void
}

export interface Program {
  /** Runs one step; returns when its outputs are readable. */
  run(batch: Batch): void
  /**
   * Where threads of the host compute: begins a step, which they work on at once, and returns what waits for it and works on it, too.
   * The batch stays as it is until then. Whatever is asked of the backend meanwhile waits for the step.
   */
  readonly start?: ((batch: Batch) => () => void) | undefined
  /** Where steps can be put on their way without waiting for them. */
  readonly flights?: ProgramFlights
  /** Work that can be done before the first step, so that no request waits for it. */
  preparations?(): Preparation[]
  /** Compiles side by side what the preparations, or one step, would compile one after the other. */
  compile?(step?: Batch): Promise<void>
  /** The number of tokens that a step is padded to, where it is: up to there more tokens cost nothing. */
  stepSize?(tokens: number): number
  /** Where steps are replayed as graphs: whether they are. May be turned off between steps. */
  usesGraphs?: boolean
  dispose(): void
}

export interface Preparation {
  /** Rows of the decode steps that it is for; 0 for prompts. */
  readonly rows: number
  run(): void
}

export interface ProgramFlights {
  /** Steps on their way at once. */
  readonly max: number
  /** Whether a launch can feed what the launch before drew. */
  readonly feedsDraws: boolean
  /** Puts a step on its way. The batch is read before this returns; its outputs are written by wait(). */
  launch(batch: Batch): ProgramFlight
  /** Where the backend draws later: makes such draws of the last launch, once, before its flight is waited for. */
  drawLater?(batch: Batch): void
}

/** They end in the order in which they were launched. */
export interface ProgramFlight {
  readonly isDone: boolean
  /** In a batch whose draws are made later: everything but these draws is done. */
  readonly isComputed?: boolean
  /** As in Flight. */
  readonly landing?: Promise<unknown>
  /** Makes the outputs of the batch readable; as Flight.result, it waits where the backend can. Called once. */
  wait(): void
}

/**
 * The cost of a step of up to so many tokens, as a multiple of a step of one token. Ascending; larger steps have no
 * entry.
 */
export type GuessCosts = readonly (readonly [tokens: number, cost: number])[]

export interface Guessing {
  /** Rows of a step that may have guesses. */
  readonly rows: number
  /**
   * The longest row of RWKV-7 of which states between tokens can be kept (Batch.keeps); absent: none. In steps of up to
   * `keptEach` tokens it pays to keep each.
   */
  readonly keptRow?: number
  readonly keptEach?: number
  readonly costs: GuessCosts
  /** For models with integer matrices, where the costs differ. */
  readonly costsOfIntegers?: GuessCosts
}

export interface Backend {
  readonly name: 'reference' | 'cpu' | 'cuda' | 'webgpu'
  /** One readable line: "cpu: avx512 (vnni, bf16), 2 threads". */
  readonly description: string
  /** Null where samples may not hang on the one before them (SampleInt.after). */
  readonly guessing: Guessing | null
  /** Whether draws can be made when the rest of their step is on its way already (Batch.numLater). */
  readonly drawsLater: boolean
  /** An f32 tensor with the given values, or zeros. */
  tensor(shape: readonly number[], values?: Float32Array): Tensor
  /** The same in the precision the backend computes activations in: f16 on `cuda`, as tensor() on the others. */
  activation(shape: readonly number[], values?: Float32Array): Tensor
  /**
   * The next `count` activations or matrices of so many numbers of 16 bits lie side by side: products of such matrices with such
   * inputs can then be one.
   */
  sideBySide?(count: number, numbers: number): void
  /** The values of a tensor as everything asked before leaves them; what is asked afterwards does not change them. */
  readTensor(tensor: Tensor, start?: number, count?: number): Flight<Float32Array>
  /** Replaces the first values of a tensor. */
  writeTensor(tensor: Tensor, values: Float32Array): void
  matrix(source: MatrixSource, type: WeightType): Matrix
  table(source: MatrixSource): Table
  hostTable(source: MatrixSource): HostTable
  statePool(shape: StateShape, numSlots: number): StatePool
  penaltyPool(vocabSize: number, numSlots: number): PenaltyPool
  record(capacity: Capacity, build: (ops: Ops) => void): Program
  /** Bytes of the device's memory that it has taken so far; absent where they are not counted. */
  heldBytes?(): number
  dispose(): void
}

/** The way of some tensors from one backend to their like on another, where both hold part of a model. */
export interface Link {
  /** Copies the first `rows` rows: after what the one was given so far, ahead of what the other is given next. */
  send(rows: number): void
  dispose(): void
}

/** Makes a link for launches of which at most `maxFlights` are on their way at once. */
export type Connect = (
  from: Backend,
  to: Backend,
  pairs: readonly (readonly [from: Tensor, to: Tensor])[],
  maxFlights: number,
) => Link

/** What a backend has made itself: that of another would be read wrongly. */
export function own<T>(kind: abstract new (...args: never[]) => T, made: unknown): T {
  assert(made instanceof kind, `no ${kind.name}: it is of another backend`)
  return made
}
