/**
 * The recurrent states and the penalties of a cuda backend's slots, in device memory; all operations are in order with
 * the steps. Knows nothing of who owns a slot.
 */
import { assert, SkeinError } from '../../errors.ts'
import type { Flight, PenaltyPool, SlotCopy, StateData, StatePool, StateShape } from '../backend.ts'
import { arraysOf, checkState, createState, stateBytesOf } from '../state-shape.ts'
import type { CudaDevice } from './device/device.ts'
import { type DevicePointer, i32, i64, type KernelArgs } from './kernel/args.ts'
import type { Kernel } from './kernel/kernel.ts'
import { StructBytes } from './kernel/struct-bytes.ts'
import { convert, type TensorType, widen } from './resources.ts'
import { type LaneSlot, StateLanes } from './state-lanes.ts'
import { logBytes, StateLog } from './state-log.ts'

/** All bits set is a NaN in f32 and in f16. */
const NAN_BYTE = 0xff
/** kCopies of copy-slots.cu, its threads, what a thread copies, and the blocks of a copy at most. */
const COPIES_AT_ONCE = 32
const COPY_THREADS = 256
const COPY_BYTES = 16
const COPY_BLOCKS = 32

/** One array of the states of all slots: [slots, L, …shape]. */
class Pool {
  readonly address: DevicePointer
  readonly slotBytes: number
  readonly length: number
  readonly #device: CudaDevice
  readonly #type: TensorType
  #copyArgs: KernelArgs | null = null

  constructor(device: CudaDevice, numSlots: number, length: number, type: TensorType) {
    this.#device = device
    this.#type = type
    this.length = length
    this.slotBytes = length * (type === 'f32' ? 4 : 2)
    this.address = allocSlots(device, numSlots, this.slotBytes)
  }

  #at(slot: number): DevicePointer {
    return this.address + BigInt(slot * this.slotBytes)
  }

  fill(slot: number, byte: number): void {
    this.#device.fill(this.#at(slot), byte, this.slotBytes)
  }

  copy(from: number, to: number): void {
    this.#device.copy(this.#at(to), this.#at(from), this.slotBytes)
  }

  /** At most COPIES_AT_ONCE. */
  copyAll(kernel: Kernel, copies: readonly SlotCopy[]): void {
    const vectors = this.slotBytes / COPY_BYTES
    this.#copyArgs ??= this.#device.args([this.address, i64(BigInt(vectors)), copiesStruct([])])
    this.#copyArgs.set(2, copiesStruct(copies))
    const blocks = Math.min(COPY_BLOCKS, Math.ceil(vectors / COPY_THREADS))
    this.#device.launch(kernel, [blocks, copies.length, 1], [COPY_THREADS, 1, 1], 0, this.#copyArgs)
  }

  /** A slot's numbers as f32, elsewhere on the device. */
  gather(slot: number, to: DevicePointer): void {
    if (this.#type === 'f32') this.#device.copy(to, this.#at(slot), this.slotBytes)
    else widen(this.#device, to, this.#at(slot), this.length)
  }

  scatter(slot: number, from: DevicePointer): void {
    if (this.#type === 'f32') this.#device.copy(this.#at(slot), from, this.slotBytes)
    else convert(this.#device, this.#at(slot), from, 'f32', this.length)
  }
}

/**
 * Zeroed memory of slots; the address of slot 0. Slot −1 before it is for rows that turn out not to run (take-draws.cu):
 * several may use it at once, and nothing of it is ever looked at.
 */
function allocSlots(device: CudaDevice, numSlots: number, slotBytes: number): DevicePointer {
  const bytes = (numSlots + 1) * slotBytes
  const address = device.alloc(bytes)
  device.fill(address, 0, bytes)
  return address + BigInt(slotBytes)
}

export class CudaStatePool implements StatePool {
  readonly shape: StateShape
  readonly numSlots: number
  readonly bytesPerSlot: number
  readonly wkvType: TensorType
  readonly #device: CudaDevice
  readonly #leastLogHeads: number | undefined
  /** By the names of the arrays, in their order. */
  readonly #pools: ReadonlyMap<string, Pool>
  readonly #lanes: StateLanes
  readonly #copySlots: Kernel
  #log: StateLog | null = null

  constructor(device: CudaDevice, shape: StateShape, numSlots: number, wkvType: TensorType, leastLogHeads?: number) {
    const { headSize } = shape
    if (headSize !== 64)
      throw new SkeinError(
        'unsupported_weights',
        `heads of ${headSize} channels; the cuda kernels are written for 64; use --device cpu`,
      )
    this.#device = device
    this.#leastLogHeads = leastLogHeads
    this.shape = shape
    this.numSlots = numSlots
    this.wkvType = wkvType
    this.#pools = new Map(
      arraysOf(shape).map(({ name, size }) => {
        // The others are small, and read again in every step.
        const type = name === 'wkv' ? wkvType : 'f32'
        return [name, new Pool(device, numSlots, shape.layers * size, type)]
      }),
    )
    this.bytesPerSlot = [...this.#pools.values()].reduce((sum, { slotBytes }) => sum + slotBytes, 0)
    this.#lanes = new StateLanes(device, stateBytesOf(shape))
    this.#copySlots = device.kernel('copy-slots', 'copy_slots')
  }

  /** Slot 0's; the others are `shiftStride` numbers apart. */
  shiftAddress(layer: number, which: 0 | 1): DevicePointer {
    return this.#pool('shift').address + BigInt(4 * (2 * layer + which) * this.shape.channels)
  }

  get shiftStride(): number {
    return this.#pool('shift').length
  }

  /** Slot 0's; the others are `wkvStride` numbers apart. */
  wkvAddress(layer: number): DevicePointer {
    const { address, slotBytes } = this.#pool('wkv')
    return address + BigInt((layer * slotBytes) / this.shape.layers)
  }

  get wkvStride(): number {
    return this.#pool('wkv').length
  }

  #pool(name: string): Pool {
    const pool = this.#pools.get(name)
    assert(pool, `a state has no array ${name}`)
    return pool
  }

  /** The log that steps of RWKV-7 write, allocated when it is first asked for; null where so few slots have no use for one. */
  openLog(): StateLog | null {
    const [device, { shape, numSlots, wkvType }] = [this.#device, this]
    if (logBytes(device, wkvType, shape, numSlots, this.#leastLogHeads) === 0) return null
    this.#log ??= new StateLog(device, shape, numSlots, this.wkvAddress(0))
    return this.#log
  }

  get canMove(): boolean {
    return this.#lanes.isAnyFree
  }

  clear(slot: number): void {
    this.#fill(slot, 0)
  }

  poison(slot: number): void {
    this.#fill(slot, NAN_BYTE)
  }

  copy(from: number, to: number): void {
    this.#check(from)
    this.#check(to)
    this.#log?.merge([from])
    this.#log?.forget(to)
    for (const pool of this.#pools.values()) pool.copy(from, to)
  }

  copyAll(copies: readonly SlotCopy[]): void {
    for (const [from, to] of copies) {
      this.#check(from)
      this.#check(to)
      this.#log?.forget(to)
    }
    this.#log?.merge(copies.map(([from]) => from))
    for (let i = 0; i < copies.length; i += COPIES_AT_ONCE) {
      const part = copies.slice(i, i + COPIES_AT_ONCE)
      for (const pool of this.#pools.values()) pool.copyAll(this.#copySlots, part)
    }
  }

  read(slot: number, into = createState(this.shape)): Flight<StateData> {
    checkState(this.shape, into)
    return this.#lanes.read(this.#laneSlot(slot), into)
  }

  write(slot: number, state: StateData): Flight<void> {
    checkState(this.shape, state)
    return this.#lanes.write(this.#laneSlot(slot), state)
  }

  #laneSlot(slot: number): LaneSlot {
    this.#check(slot)
    const eachAt = (address: DevicePointer, act: (pool: Pool, at: DevicePointer) => void) => {
      let at = address
      for (const pool of this.#pools.values()) {
        act(pool, at)
        at += BigInt(4 * pool.length)
      }
    }
    return {
      gather: (to) => {
        this.#log?.merge([slot])
        eachAt(to, (pool, at) => pool.gather(slot, at))
      },
      scatter: (from) => {
        this.#log?.forget(slot)
        eachAt(from, (pool, at) => pool.scatter(slot, at))
      },
    }
  }

  #fill(slot: number, byte: number): void {
    this.#check(slot)
    this.#log?.forget(slot)
    for (const pool of this.#pools.values()) pool.fill(slot, byte)
  }

  #check(slot: number): void {
    assert(slot >= 0 && slot < this.numSlots, `slot ${slot} of ${this.numSlots}`)
  }
}

export class CudaPenaltyPool implements PenaltyPool {
  readonly vocabSize: number
  readonly numSlots: number
  /** f32 [slots, V]: decayed counts, meaningful where the flag says generated */
  readonly counts: DevicePointer
  /** u8 [slots, V]: 1 in the prompt, 2 generated */
  readonly flags: DevicePointer
  readonly #device: CudaDevice
  /** i32 [V] */
  readonly #tokens: DevicePointer
  readonly #args: KernelArgs

  constructor(device: CudaDevice, vocabSize: number, numSlots: number) {
    this.vocabSize = vocabSize
    this.numSlots = numSlots
    this.#device = device
    this.counts = allocSlots(device, numSlots, 4 * vocabSize)
    this.flags = allocSlots(device, numSlots, vocabSize)
    this.#tokens = device.alloc(4 * vocabSize)
    this.#args = device.args([this.flags, this.#tokens, i32(0), i32(vocabSize)])
  }

  reset(slot: number, promptTokens: Int32Array): void {
    assert(slot >= 0 && slot < this.numSlots, `penalty slot ${slot} of ${this.numSlots}`)
    const flags = this.flags + BigInt(slot * this.vocabSize)
    this.#device.fill(flags, 0, this.vocabSize)
    const kernel = this.#device.kernel('penalties', 'mark_prompt')
    for (let start = 0; start < promptTokens.length; start += this.vocabSize) {
      const part = promptTokens.subarray(start, start + this.vocabSize)
      this.#device.upload(this.#tokens, part)
      this.#args.set(0, flags)
      this.#args.set(2, i32(part.length))
      const grid = [Math.ceil(part.length / 256), 1, 1] as const
      this.#device.launch(kernel, grid, [256, 1, 1], 0, this.#args)
    }
  }
}

/** `Copies` of copy-slots.cu. */
function copiesStruct(copies: readonly SlotCopy[]): Uint8Array {
  const struct = new StructBytes()
  for (const [from] of copies) struct.i32(from)
  struct.padTo(4 * COPIES_AT_ONCE)
  for (const [, to] of copies) struct.i32(to)
  return struct.padTo(8 * COPIES_AT_ONCE).bytes()
}
