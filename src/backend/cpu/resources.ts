/**
 * Resources of a cpu backend: tensors, packed matrices, tables, and the pools of states and penalties. All are in
 * native memory that the context owns.
 */
import { assert } from '../../errors.ts'
import type { Flight, Matrix, PenaltyPool, StateData, StatePool, StateShape, Table, Tensor } from '../backend.ts'
import type { Pointer } from '../ffi.ts'
import { doneFlight } from '../flight.ts'
import { refuseFp8 } from '../quantised.ts'
import { readBlocks, readPackedBlocks, readQuantisedBlocks } from '../source-rows.ts'
import { checkState, createState } from '../state-shape.ts'
import { isPacked, type MatrixSource, type PackedType, type QuantisedSource, type WeightType } from '../weight-types.ts'
import type { CpuContext } from './context.ts'

/** Values of sk_type. */
export const TYPES: Readonly<Record<Exclude<WeightType, 'fp8'>, number>> = {
  f32: 0,
  f16: 1,
  bf16: 2,
  i8: 3,
  q4: 4,
  nf4: 5,
  Q4_0: 6,
  Q4_1: 7,
  Q5_0: 8,
  Q5_1: 9,
  Q8_0: 10,
  Q4_K: 11,
  Q5_K: 12,
  Q6_K: 13,
}
/** Rows of a native tile: blocks handed to packing are multiples of it. */
const TILE_ROWS = 64
/** Values of the largest f32 matrix that is read twice, to see whether bf16 holds it. */
const MOST_CHECKED = 4 << 20

export class CpuTensor implements Tensor {
  readonly shape: readonly number[]
  /** f32 [shape] */
  readonly pointer: Pointer
  readonly count: number

  constructor(context: CpuContext, shape: readonly number[], values?: Float32Array) {
    this.shape = shape
    this.count = shape.reduce((a, b) => a * b, 1)
    assert(Number.isSafeInteger(this.count) && this.count > 0, `tensor shape [${shape}]`)
    this.pointer = context.checkPointer(context.native.sk_tensor_new(context.handle, this.count), `tensor [${shape}]`)
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
    const held = type === 'f32' && fitsBf16(source) ? 'bf16' : type
    this.pointer = context.checkPointer(native.sk_matrix_new(context.handle, rows, columns, TYPES[held]), name)
    const { quantised } = source
    if (isPacked(type)) this.#packBlocks(context, source, type)
    else if (quantised?.type === type) this.#packQuantised(context, source, quantised)
    else
      for (const [start, end, values] of readBlocks(source, TILE_ROWS))
        context.check(native.sk_matrix_pack(this.pointer, start, end - start, TYPES[dtype], values), name)
    this.bytes = native.sk_matrix_bytes(this.pointer)
  }

  #packBlocks(context: CpuContext, source: MatrixSource, type: PackedType) {
    for (const [start, end, blocks] of readPackedBlocks(source, type, TILE_ROWS)) {
      const { native } = context
      context.check(native.sk_matrix_pack_blocks(this.pointer, start, end - start, blocks), source.name)
    }
  }

  #packQuantised(context: CpuContext, source: MatrixSource, quantised: QuantisedSource) {
    for (const [start, end, { values, scales }] of readQuantisedBlocks(source, quantised, source.columns, TILE_ROWS)) {
      const status = context.native.sk_matrix_pack_quantised(this.pointer, start, end - start, values, scales)
      context.check(status, source.name)
    }
  }
}

/**
 * Whether bf16 holds every value of a small f32 matrix, as of a GGUF's low-rank factors, which were bf16 before they were
 * converted. Then its products have the same bits in half the memory.
 */
function fitsBf16(source: MatrixSource): boolean {
  if (source.dtype !== 'f32' || source.rows * source.columns > MOST_CHECKED) return false
  for (const [, , bytes] of readBlocks(source)) {
    for (let i = 0; i < bytes.length; i += 4) if (bytes[i] !== 0 || bytes[i + 1] !== 0) return false
  }
  return true
}

export class CpuTable implements Table {
  readonly rows: number
  readonly columns: number
  readonly bytes: number
  readonly pointer: Pointer

  constructor(context: CpuContext, source: MatrixSource) {
    const { name, rows, columns, dtype, packed } = source
    const { native } = context
    this.rows = rows
    this.columns = columns
    this.pointer = context.checkPointer(
      native.sk_table_new(context.handle, rows, columns, TYPES[packed?.type ?? dtype]),
      name,
    )
    for (const [start, end, values] of packed ? readPackedBlocks(source, packed.type) : readBlocks(source))
      context.check(native.sk_table_write(this.pointer, start, end - start, values), name)
    this.bytes = native.sk_table_bytes(this.pointer)
  }
}

export class CpuStatePool implements StatePool {
  readonly shape: StateShape
  readonly numSlots: number
  readonly bytesPerSlot: number
  readonly canMove = true
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

  /** A plain copy of memory, made at once: a step of the same model reads all its weights, which are hundreds of times as many bytes. */
  read(slot: number, into = createState(this.shape)): Flight<StateData> {
    const { native } = this.#context
    checkState(this.shape, into)
    const [shift, wkv] = into as [Float32Array, Float32Array] // checked above
    this.#context.check(
      native.sk_states_read(this.pointer, slot, 0, this.shape.layers, shift, wkv),
      `read slot ${slot}`,
    )
    return doneFlight(into)
  }

  /** The native side takes the lengths on trust. */
  write(slot: number, state: StateData): Flight<void> {
    const { native } = this.#context
    checkState(this.shape, state)
    const [shift, wkv] = state as [Float32Array, Float32Array] // checked above
    this.#context.check(
      native.sk_states_write(this.pointer, slot, 0, this.shape.layers, shift, wkv),
      `write slot ${slot}`,
    )
    return doneFlight(undefined)
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
