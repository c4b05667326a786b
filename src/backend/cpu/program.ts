/**
 * Recording and replaying: each op is checked against its shapes here, once, and appended to a native command list
 * that runs a whole step in one call. Knows no maths.
 */
import { assert } from '../../errors.ts'
import {
  type Epilogue,
  type HostTable,
  type LinearJob,
  type Matrix,
  type Norm,
  type Ops,
  own,
  type PenaltyPool,
  type Program,
  type StatePool,
  type Table,
  type Tensor,
  type Wkv6Operands,
  type Wkv6Weights,
  type Wkv7Operands,
  type Wkv7Weights,
} from '../backend.ts'
import type { Batch, Capacity } from '../batch.ts'
import type { Pointer } from '../ffi.ts'
import type { CpuContext } from './context.ts'
import { CpuMatrix, CpuPenaltyPool, CpuStatePool, CpuTable, CpuTensor } from './resources.ts'

/** Values of sk_epilogue. */
const EPILOGUES: Readonly<Record<Epilogue, number>> = { none: 0, tanh: 1, sigmoid: 2, relu2: 3, add: 4 }

export class CpuProgram implements Program {
  readonly #context: CpuContext
  readonly #capacity: Capacity
  #handle: Pointer | null
  /** Only where threads work on it meanwhile. */
  readonly start: ((batch: Batch) => () => void) | undefined

  constructor(context: CpuContext, capacity: Capacity, build: (ops: Ops) => void) {
    const { tokens, rows, logits, samples } = capacity
    this.#context = context
    this.#capacity = capacity
    this.start = context.threads > 1 ? (batch) => this.#start(batch) : undefined
    this.#handle = context.checkPointer(
      context.native.sk_program_new(context.handle, tokens, rows, logits, samples),
      'program',
    )
    try {
      build(createRecorder(context, this.#handle, capacity))
    } catch (error) {
      this.dispose()
      throw error
    }
  }

  run(batch: Batch): void {
    this.#start(batch)()
  }

  #start(batch: Batch): () => void {
    assert(this.#handle !== null, 'a program run after dispose()')
    assertRoom(batch, this.#capacity)
    // Node gives the arrays' memory a fixed place when it is asked for its address.
    const status = this.#context.native.sk_program_run(
      this.#handle,
      batch.numTokens,
      batch.numRows,
      batch.numLogits,
      batch.numSamples,
      Math.min(batch.biasIds.length, batch.biasValues.length),
      batch.numMasks,
      batch.tokens,
      batch.starts,
      batch.slots,
      batch.logitRows,
      batch.blendCounts,
      batch.blendWeights,
      batch.sampleRow,
      batch.sampleSlot,
      batch.sampleFloats,
      batch.sampleInts,
      batch.biasStarts,
      batch.biasIds,
      batch.biasValues,
      batch.masks,
      batch.sampled,
      batch.sampledLogprob,
      batch.topIds,
      batch.topLogprobs,
    )
    this.#context.check(status, 'step')
    return this.#context.started(this.#handle, batch)
  }

  dispose(): void {
    if (this.#handle === null) return
    this.#context.freeProgram(this.#handle)
    this.#handle = null
  }
}

/** Native code writes as far as the batch's counts say, so the arrays must reach that far. */
function assertRoom(batch: Batch, capacity: Capacity): void {
  const { numTokens, numRows, numLogits, numSamples } = batch
  assert(
    numTokens <= Math.min(capacity.tokens, batch.tokens.length) &&
      numRows <= Math.min(capacity.rows, batch.slots.length, batch.starts.length - 1) &&
      numLogits <= Math.min(capacity.logits, batch.logitRows.length) &&
      numSamples <= Math.min(capacity.samples, batch.sampled.length),
    `a batch of ${numTokens} tokens, ${numRows} rows, ${numLogits} logits, ${numSamples} samples over capacity`,
  )
}

function createRecorder(context: CpuContext, program: Pointer, capacity: Capacity): Ops {
  const { native } = context
  const { tokens } = capacity
  return {
    embed(x, table, norm) {
      const source = tableOf(table)
      const ln = normOf(norm, table.columns)
      context.check(
        native.sk_record_embed(program, pointerOf(x, tokens * table.columns), source, ln.weight, ln.bias, ln.eps),
        'embed',
      )
    },

    shiftMix(out, x, norm, mix, states, layer, which) {
      const C = states.shape.channels
      const ln = normOf(norm, C)
      assert(out.length === mix.length, 'shiftMix: as many outputs as mixes')
      const status = native.sk_record_shift_mix(
        program,
        out.length,
        addresses(out.map((tensor) => pointerOf(tensor, tokens * C))),
        pointerOf(x, tokens * C),
        ln.weight,
        ln.bias,
        ln.eps,
        addresses(mix.map((tensor) => pointerOf(tensor, C))),
        statesOf(states),
        layer,
        which,
      )
      context.check(status, 'shiftMix')
    },

    linear: (jobs) => recordLinear(context, program, tokens, jobs),

    wkv7: (out, operands, weights, states, layer) =>
      recordWkv7(context, program, tokens, out, operands, weights, states, layer),

    deepEmbed(u, low, own, { s_emb, s2, s0 }) {
      const side = Math.sqrt(s_emb.columns)
      const F = channelsOf(u)
      const status = native.sk_record_deep_embed(
        program,
        pointerOf(u, tokens * F),
        pointerOf(low, tokens * side),
        pointerOf(own, tokens * side * side),
        tableOf(s_emb),
        pointerOf(s2, side * F),
        pointerOf(s0, F),
        F,
        side,
      )
      context.check(status, 'deepEmbed')
    },

    ddlerp: (mix, h, prev, base) => recordDdlerp(context, program, tokens, mix, h, prev, base),

    wkv6: (out, operands, weights, states, layer) =>
      recordWkv6(context, program, tokens, out, operands, weights, states, layer),

    gatedAdd: (x, gate, value) => recordGatedAdd(context, program, tokens, x, gate, value),

    gatherNorm(out, x, norm) {
      const C = norm.weight.shape.reduce((a, b) => a * b, 1)
      const ln = normOf(norm, C)
      context.check(
        native.sk_record_gather_norm(
          program,
          pointerOf(out, capacity.logits * C),
          pointerOf(x, tokens * C),
          C,
          ln.weight,
          ln.bias,
          ln.eps,
        ),
        'gatherNorm',
      )
    },

    logits(y, x, weight) {
      const { rows, columns } = weight
      const status = native.sk_record_logits(
        program,
        pointerOf(y, capacity.logits * rows),
        pointerOf(x, capacity.logits * columns),
        matrixOf(weight),
      )
      context.check(status, 'logits')
    },

    sample(logits, penalties) {
      const pool = penaltiesOf(penalties)
      const status = native.sk_record_sample(program, pointerOf(logits, capacity.logits * pool.vocabSize), pool.pointer)
      context.check(status, 'sample')
    },
  }
}

function recordLinear(context: CpuContext, program: Pointer, tokens: number, jobs: readonly LinearJob[]): void {
  const status = context.native.sk_record_linear(
    program,
    jobs.length,
    addresses(jobs.map(({ y, weight }) => pointerOf(y, tokens * weight.rows))),
    addresses(jobs.map(({ x, weight }) => pointerOf(x, tokens * weight.columns))),
    addresses(jobs.map(({ weight }) => matrixOf(weight))),
    addresses(jobs.map(({ bias, weight }) => (bias ? pointerOf(bias, weight.rows) : null))),
    Int32Array.from(jobs, ({ epilogue = 'none' }) => EPILOGUES[epilogue]),
  )
  context.check(status, 'linear')
}

function recordWkv7(
  context: CpuContext,
  program: Pointer,
  tokens: number,
  out: Tensor,
  { r, k, v, w, a, g, vGate, vFirst }: Wkv7Operands,
  { k_k, k_a, r_k, ln_x }: Wkv7Weights,
  states: StatePool,
  layer: number,
): void {
  const C = states.shape.channels
  const operand = (tensor: Tensor) => pointerOf(tensor, tokens * C)
  const ln = normOf(ln_x, C)
  const status = context.native.sk_record_wkv7(
    program,
    operand(out),
    operand(r),
    operand(k),
    operand(v),
    operand(w),
    operand(a),
    operand(g),
    vGate ? operand(vGate) : null,
    operand(vFirst),
    pointerOf(k_k, C),
    pointerOf(k_a, C),
    pointerOf(r_k, C),
    ln.weight,
    ln.bias,
    ln.eps,
    statesOf(states),
    layer,
  )
  context.check(status, 'wkv7')
}

// From here on: the ops that only RWKV-6 uses.

function recordDdlerp(
  context: CpuContext,
  program: Pointer,
  tokens: number,
  mix: readonly Tensor[],
  h: Tensor,
  prev: Tensor,
  base: readonly Tensor[],
): void {
  const C = channelsOf(h)
  assert(mix.length === base.length, 'ddlerp: as many mixes as bases')
  const status = context.native.sk_record_ddlerp(
    program,
    mix.length,
    addresses(mix.map((tensor) => pointerOf(tensor, tokens * C))),
    pointerOf(h, tokens * C),
    pointerOf(prev, tokens * C),
    addresses(base.map((tensor) => pointerOf(tensor, C))),
    C,
  )
  context.check(status, 'ddlerp')
}

function recordWkv6(
  context: CpuContext,
  program: Pointer,
  tokens: number,
  out: Tensor,
  { r, k, v, w, g }: Wkv6Operands,
  { u, ln_x }: Wkv6Weights,
  states: StatePool,
  layer: number,
): void {
  const C = states.shape.channels
  const operand = (tensor: Tensor) => pointerOf(tensor, tokens * C)
  const ln = normOf(ln_x, C)
  const status = context.native.sk_record_wkv6(
    program,
    operand(out),
    operand(r),
    operand(k),
    operand(v),
    operand(w),
    operand(g),
    pointerOf(u, C),
    ln.weight,
    ln.bias,
    ln.eps,
    statesOf(states),
    layer,
  )
  context.check(status, 'wkv6')
}

function recordGatedAdd(
  context: CpuContext,
  program: Pointer,
  tokens: number,
  x: Tensor,
  gate: Tensor,
  value: Tensor,
): void {
  const C = channelsOf(x)
  const operand = (tensor: Tensor) => pointerOf(tensor, tokens * C)
  const status = context.native.sk_record_gated_add(program, operand(x), operand(gate), operand(value), C)
  context.check(status, 'gatedAdd')
}

function addresses(pointers: readonly (Pointer | null)[]): BigUint64Array {
  return BigUint64Array.from(pointers, (pointer) => pointer ?? 0n)
}

/** The address of a tensor that has room for `count` numbers. */
function pointerOf(tensor: Tensor, count: number): Pointer {
  assert(tensor instanceof CpuTensor, 'a tensor of another backend')
  assert(tensor.count >= count, `a tensor [${tensor.shape}] where ${count} numbers are used`)
  return tensor.pointer
}

function normOf(norm: Norm, channels: number) {
  return { weight: pointerOf(norm.weight, channels), bias: pointerOf(norm.bias, channels), eps: norm.eps }
}

const matrixOf = (matrix: Matrix) => own(CpuMatrix, matrix).pointer
const tableOf = (table: Table | HostTable) => own(CpuTable, table).pointer
const statesOf = (states: StatePool) => own(CpuStatePool, states).pointer
const penaltiesOf = (penalties: PenaltyPool) => own(CpuPenaltyPool, penalties)

/** Channels of an activation [T, C]. */
function channelsOf({ shape }: Tensor): number {
  assert(shape.length === 2, `a tensor [${shape}] where [T, C] is used`)
  return shape[1]!
}
