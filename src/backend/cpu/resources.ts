/**
 * What a cpu backend hands out: tensors, packed matrices, tables, and the pools of states and penalties. All live in
 * native memory that the context owns. Knows nothing of ops.
 */
import { assert, SkeinError } from '../../errors.ts'
import type {
  Matrix,
  MatrixSource,
  PenaltyPool,
  QuantisedSource,
  StateData,
  StatePool,
  StateShape,
  Table,
  Tensor,
  WeightType,
} from '../backend.ts'
import type { Pointer } from '../ffi.ts'
import { numScales, refuseFp8, valueBytes } from '../quantised.ts'
import { checkBytes, readBlocks, rowBlocks } from '../source-rows.ts'
import type { CpuContext } from './context.ts'

/** Values of sk_type. */
export const TYPES: Readonly<Record<Exclude<WeightType, 'fp8'>, number>> = {
  f32: 0,
  f16: 1,
  bf16: 2,
  i8: 3,
  q4: 4,
  nf4: 5,
}
/** Rows of a native tile: blocks handed to packing are multiples of it. */
const TILE_ROWS = 64

export class CpuTensor implements Tensor {
  readonly shape: readonly number[]
  /** f32 [shape] */
  readonly pointer: Pointer
  readonly count: number

  constructor(context: CpuContext, shape: readonly number[], values?: Float32Array) {
    this.shape = shape
    this.count = shape.reduce((a, b) => a * b, 1)
    assert(Number.isSafeInteger(this.count) && this.count > 0, `tensor shape [${shape}]`)
    this.pointer = context.checkPointer(
      context.native.sk_tensor_new(context.handle, this.count),
      `tensor [${shape}]`,
    )
    if (values === undefined) return
    assert(values.length === this.count, `${values.length} values for a tensor [${shape}]`)
    context.native.sk_tensor_write(this.pointer, 0, values, this.count)
  }
}

export class CpuMatrix implements Matrix {
  readonly rows: number
  readonly columns: number
  readonly type: WeightType
  readonly bytes: number
  readonly pointer: Pointer

  constructor(context: CpuContext, source: MatrixSource, type: WeightType) {
    if (type === 'fp8') refuseFp8()
    const { name, rows, columns, dtype } = source
    const { native } = context
    this.rows = rows
    this.columns = columns
    this.type = type
    this.pointer = context.checkPointer(
      native.sk_matrix_new(context.handle, rows, columns, TYPES[type]),
      name,
    )
    const { quantised } = source
    if (quantised?.type === type) this.#packQuantised(context, source, quantised)
    else
      for (const [start, end, values] of readBlocks(source, TILE_ROWS))
        context.check(
          native.sk_matrix_pack(this.pointer, start, end - start, TYPES[dtype], values),
          name,
        )
    this.bytes = native.sk_matrix_bytes(this.pointer)
  }

  #packQuantised(context: CpuContext, source: MatrixSource, { type, readRows }: QuantisedSource) {
    const { name, rows, columns } = source
    for (const [start, end] of rowBlocks(rows, columns, TILE_ROWS)) {
      const { values, scales } = readRows(start, end)
      checkBytes(source, start, end, values, valueBytes(type, columns))
      checkBytes(source, start, end, scales, 2 * numScales(type, columns))
      const status = context.native.sk_matrix_pack_quantised(
        this.pointer,
        start,
        end - start,
        values,
        scales,
      )
      context.check(status, name)
    }
  }
}

export class CpuTable implements Table {
  readonly rows: number
  readonly columns: number
  readonly bytes: number
  readonly pointer: Pointer

  constructor(context: CpuContext, source: MatrixSource) {
    const { name, rows, columns, dtype } = source
    const { native } = context
    this.rows = rows
    this.columns = columns
    this.pointer = context.checkPointer(
      native.sk_table_new(context.handle, rows, columns, TYPES[dtype]),
      name,
    )
    for (const [start, end, values] of readBlocks(source))
      context.check(native.sk_table_write(this.pointer, start, end - start, values), name)
    this.bytes = native.sk_table_bytes(this.pointer)
  }
}

export class CpuStatePool implements StatePool {
  readonly shape: StateShape
  readonly numSlots: number
  readonly bytesPerSlot: number
  readonly pointer: Pointer
  readonly #context: CpuContext

  constructor(context: CpuContext, shape: StateShape, numSlots: number) {
    const { layers, channels, heads, headSize } = shape
    this.shape = shape
    this.numSlots = numSlots
    this.#context = context
    this.pointer = context.checkPointer(
      context.native.sk_states_new(context.handle, layers, channels, heads, headSize, numSlots),
      `${numSlots} recurrent states`,
    )
    this.bytesPerSlot = context.native.sk_states_bytes_per_slot(this.pointer)
  }

  clear(slot: number): void {
    const { native } = this.#context
    this.#context.check(native.sk_states_clear(this.pointer, slot), `clear slot ${slot}`)
  }

  poison(slot: number): void {
    const { native } = this.#context
    this.#context.check(native.sk_states_poison(this.pointer, slot), `poison slot ${slot}`)
  }

  copy(from: number, to: number): void {
    const { native } = this.#context
    this.#context.check(native.sk_states_copy(this.pointer, from, to), `copy slot ${from} to ${to}`)
  }

  read(slot: number): StateData {
    const state = {
      shift: new Float32Array(this.#shiftCount),
      wkv: new Float32Array(this.#wkvCount),
    }
    this.readLayers(slot, 0, this.shape.layers, state)
    return state
  }

  readLayers(slot: number, from: number, to: number, { shift, wkv }: StateData): void {
    const { native } = this.#context
    this.#checkShape(shift, wkv)
    this.#context.check(
      native.sk_states_read(this.pointer, slot, from, to - from, shift, wkv),
      `read layers ${from} to ${to} of slot ${slot}`,
    )
  }

  write(slot: number, state: StateData): void {
    this.writeLayers(slot, 0, this.shape.layers, state)
  }

  writeLayers(slot: number, from: number, to: number, { shift, wkv }: StateData): void {
    const { native } = this.#context
    this.#checkShape(shift, wkv)
    this.#context.check(
      native.sk_states_write(this.pointer, slot, from, to - from, shift, wkv),
      `write layers ${from} to ${to} of slot ${slot}`,
    )
  }

  /** The native side takes the lengths on trust. */
  #checkShape(shift: Float32Array, wkv: Float32Array): void {
    if (shift.length === this.#shiftCount && wkv.length === this.#wkvCount) return
    throw new SkeinError(
      'state_incompatible',
      `a state of ${shift.length} + ${wkv.length} numbers, expected ${this.#shiftCount} + ${this.#wkvCount}`,
    )
  }

  get #shiftCount(): number {
    return this.shape.layers * 2 * this.shape.channels
  }

  get #wkvCount(): number {
    return this.shape.layers * this.shape.heads * this.shape.headSize ** 2
  }
}

export class CpuPenaltyPool implements PenaltyPool {
  readonly vocabSize: number
  readonly numSlots: number
  readonly pointer: Pointer
  readonly #context: CpuContext

  constructor(context: CpuContext, vocabSize: number, numSlots: number) {
    this.vocabSize = vocabSize
    this.numSlots = numSlots
    this.#context = context
    this.pointer = context.checkPointer(
      context.native.sk_penalties_new(context.handle, vocabSize, numSlots),
      `penalty counts of ${numSlots} slots`,
    )
  }

  reset(slot: number, promptTokens: Int32Array): void {
    const { native } = this.#context
    this.#context.check(
      native.sk_penalties_reset(this.pointer, slot, promptTokens, promptTokens.length),
      `reset penalties of slot ${slot}`,
    )
  }
}
