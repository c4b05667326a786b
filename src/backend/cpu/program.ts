/**
 * Recording and replaying: each op is checked against its shapes here, once, and appended to a native command list
 * that runs a whole step in one call. Knows no maths.
 */
import { assert } from '../../errors.ts'
import {
  type Epilogue,
  type HostTable,
  type Matrix,
  type Norm,
  type Ops,
  own,
  type Program,
  type StatePool,
  type Table,
  type Tensor,
} from '../backend.ts'
import { assertRoom, type Batch, type Capacity } from '../batch.ts'
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

/** Records ops for steps of up to `capacity`. */
function createRecorder(context: CpuContext, program: Pointer, { tokens, logits: rowsOfLogits }: Capacity): Ops {
  const { native } = context
  /** Of a tensor with so many channels for each token. */
  const all = (tensor: Tensor, channels: number) => pointerOf(tensor, tokens * channels)
  const eachOf = (tensors: readonly Tensor[], count: number) =>
    addresses(tensors.map((tensor) => pointerOf(tensor, count)))
  return {
    embed(x, table, norm) {
      const C = table.columns
      context.check(native.sk_record_embed(program, all(x, C), tableOf(table), ...normOf(norm, C)), 'embed')
    },

    shiftMix(out, x, norm, mix, states, layer, which) {
      const C = states.shape.channels
      assert(out.length === mix.length, 'shiftMix: as many outputs as mixes')
      const status = native.sk_record_shift_mix(
        program,
        out.length,
        eachOf(out, tokens * C),
        all(x, C),
        ...normOf(norm, C),
        eachOf(mix, C),
        statesOf(states),
        layer,
        which,
      )
      context.check(status, 'shiftMix')
    },

    linear(jobs) {
      const status = native.sk_record_linear(
        program,
        jobs.length,
        addresses(jobs.map(({ y, weight }) => all(y, weight.rows))),
        addresses(jobs.map(({ x, weight }) => all(x, weight.columns))),
        addresses(jobs.map(({ weight }) => matrixOf(weight))),
        addresses(jobs.map(({ bias, weight }) => (bias ? pointerOf(bias, weight.rows) : null))),
        Int32Array.from(jobs, ({ epilogue = 'none' }) => EPILOGUES[epilogue]),
      )
      context.check(status, 'linear')
    },

    wkv7(out, { r, k, v, w, a, g, vGate, vFirst }, { k_k, k_a, r_k, ln_x }, states, layer) {
      const C = states.shape.channels
      const status = native.sk_record_wkv7(
        program,
        ...pointersOf(tokens * C, out, r, k, v, w, a, g),
        vGate ? all(vGate, C) : null,
        all(vFirst, C),
        ...pointersOf(C, k_k, k_a, r_k),
        ...normOf(ln_x, C),
        statesOf(states),
        layer,
      )
      context.check(status, 'wkv7')
    },

    deepEmbed(u, low, own, { s_emb, s2, s0 }) {
      const side = Math.sqrt(s_emb.columns)
      const F = channelsOf(u)
      const status = native.sk_record_deep_embed(
        program,
        all(u, F),
        all(low, side),
        all(own, side * side),
        tableOf(s_emb),
        pointerOf(s2, side * F),
        pointerOf(s0, F),
        F,
        side,
      )
      context.check(status, 'deepEmbed')
    },

    ddlerp(mix, h, prev, base) {
      const C = channelsOf(h)
      assert(mix.length === base.length, 'ddlerp: as many mixes as bases')
      const [outputs, bases] = [eachOf(mix, tokens * C), eachOf(base, C)]
      const status = native.sk_record_ddlerp(program, mix.length, outputs, all(h, C), all(prev, C), bases, C)
      context.check(status, 'ddlerp')
    },

    wkv6(out, { r, k, v, w, g }, { u, ln_x }, states, layer) {
      const C = states.shape.channels
      const status = native.sk_record_wkv6(
        program,
        ...pointersOf(tokens * C, out, r, k, v, w, g),
        pointerOf(u, C),
        ...normOf(ln_x, C),
        statesOf(states),
        layer,
      )
      context.check(status, 'wkv6')
    },

    gatedAdd(x, gate, value) {
      const C = channelsOf(x)
      context.check(native.sk_record_gated_add(program, ...pointersOf(tokens * C, x, gate, value), C), 'gatedAdd')
    },

    gatherNorm(out, x, norm) {
      const C = norm.weight.shape.reduce((a, b) => a * b, 1)
      const y = pointerOf(out, rowsOfLogits * C)
      context.check(native.sk_record_gather_norm(program, y, all(x, C), C, ...normOf(norm, C)), 'gatherNorm')
    },

    logits(y, x, weight) {
      const { rows, columns } = weight
      const [scores, inputs] = [pointerOf(y, rowsOfLogits * rows), pointerOf(x, rowsOfLogits * columns)]
      context.check(native.sk_record_logits(program, scores, inputs, matrixOf(weight)), 'logits')
    },

    sample(logits, penalties) {
      const pool = own(CpuPenaltyPool, penalties)
      const scores = pointerOf(logits, rowsOfLogits * pool.vocabSize)
      context.check(native.sk_record_sample(program, scores, pool.pointer), 'sample')
    },
  }
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

/** The addresses of tensors that each have room for `count` numbers. */
function pointersOf<T extends readonly Tensor[]>(count: number, ...tensors: T) {
  return tensors.map((tensor) => pointerOf(tensor, count)) as { [K in keyof T]: Pointer }
}

/** Weight, bias and eps. */
function normOf({ weight, bias, eps }: Norm, channels: number): [Pointer, Pointer, number] {
  return [pointerOf(weight, channels), pointerOf(bias, channels), eps]
}

const matrixOf = (matrix: Matrix) => own(CpuMatrix, matrix).pointer
const tableOf = (table: Table | HostTable) => own(CpuTable, table).pointer
const statesOf = (states: StatePool) => own(CpuStatePool, states).pointer

/** Channels of an activation [T, C]. */
function channelsOf({ shape }: Tensor): number {
  assert(shape.length === 2, `a tensor [${shape}] where [T, C] is used`)
  return shape[1]!
}
