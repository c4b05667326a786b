/**
 * The recurrent states and the penalties of a cuda backend's slots, in device memory; all operations are in order with
 * the steps. Knows nothing of who owns a slot.
 */
import { assert, SkeinError } from '../../errors.ts'
import type { PenaltyPool, StateData, StatePool, StateShape } from '../backend.ts'
import type { CudaDevice } from './device.ts'
import { type DevicePointer, i32, type KernelArgs } from './kernel-args.ts'
import { downloadFloats, type TensorType } from './resources.ts'
import { StateSender } from './state-sender.ts'

/** All bits set is a NaN in f32 and in f16. */
const NAN_BYTE = 0xff

/** One kind of state of all slots: [slots, size]. */
class Pool {
  readonly address: DevicePointer
  readonly slotBytes: number
  readonly #device: CudaDevice
  readonly #sender: StateSender
  readonly #type: TensorType
  readonly #size: number

  constructor(
    device: CudaDevice,
    sender: StateSender,
    numSlots: number,
    size: number,
    type: TensorType,
  ) {
    this.#device = device
    this.#sender = sender
    this.#type = type
    this.#size = size
    this.slotBytes = size * (type === 'f32' ? 4 : 2)
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

  read(slot: number): Float32Array {
    return downloadFloats(this.#device, this.#at(slot), this.#type, 0, this.#size)
  }

  /** Numbers from `start` on, to their places in a whole state's. */
  readPart(slot: number, start: number, count: number, into: Float32Array): void {
    into.set(downloadFloats(this.#device, this.#at(slot), this.#type, start, count), start)
  }

  /** Numbers of a whole state's from `start` on, to their places. */
  writePart(slot: number, start: number, values: Float32Array): void {
    this.#sender.send(this.#at(slot), this.#type, start, values)
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
  /** f32 [slots, L, 2, C] */
  readonly #shift: Pool
  /** wkvType [slots, L, H, N, N], row = value channel, column = key channel */
  readonly #wkv: Pool

  constructor(device: CudaDevice, shape: StateShape, numSlots: number, wkvType: TensorType) {
    const { headSize } = shape
    if (headSize !== 64)
      throw new SkeinError(
        'unsupported_weights',
        `heads of ${headSize} channels; the cuda kernels are written for 64; use --device cpu`,
      )
    this.shape = shape
    this.numSlots = numSlots
    this.wkvType = wkvType
    const sender = new StateSender(device, this.shiftStride + this.wkvStride)
    this.#shift = new Pool(device, sender, numSlots, this.shiftStride, 'f32')
    this.#wkv = new Pool(device, sender, numSlots, this.wkvStride, wkvType)
    this.bytesPerSlot = this.#shift.slotBytes + this.#wkv.slotBytes
  }

  /** Of slot 0; the others are `shiftStride` numbers apart. */
  shiftAddress(layer: number, which: 0 | 1): DevicePointer {
    return this.#shift.address + BigInt(4 * (2 * layer + which) * this.shape.channels)
  }

  get shiftStride(): number {
    return this.shape.layers * 2 * this.shape.channels
  }

  /** Of slot 0; the others are `wkvStride` numbers apart. */
  wkvAddress(layer: number): DevicePointer {
    const layerBytes = this.#wkv.slotBytes / this.shape.layers
    return this.#wkv.address + BigInt(layer * layerBytes)
  }

  get wkvStride(): number {
    const { layers, heads, headSize } = this.shape
    return layers * heads * headSize ** 2
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
    this.#shift.copy(from, to)
    this.#wkv.copy(from, to)
  }

  read(slot: number): StateData {
    this.#check(slot)
    return { shift: this.#shift.read(slot), wkv: this.#wkv.read(slot) }
  }

  readLayers(slot: number, from: number, to: number, into: StateData): void {
    this.#check(slot)
    const { shift, wkv } = this.#layerSizes(from, to)
    this.#shift.readPart(slot, from * shift, (to - from) * shift, into.shift)
    this.#wkv.readPart(slot, from * wkv, (to - from) * wkv, into.wkv)
  }

  write(slot: number, state: StateData): void {
    this.writeLayers(slot, 0, this.shape.layers, state)
  }

  writeLayers(slot: number, from: number, to: number, { shift, wkv }: StateData): void {
    this.#check(slot)
    const layer = this.#layerSizes(from, to)
    if (shift.length !== this.shiftStride || wkv.length !== this.wkvStride)
      throw new SkeinError(
        'state_incompatible',
        `a state of ${shift.length} + ${wkv.length} numbers, expected ${this.shiftStride} + ${this.wkvStride}`,
      )
    for (const [pool, values, size] of [
      [this.#shift, shift, layer.shift],
      [this.#wkv, wkv, layer.wkv],
    ] as const)
      pool.writePart(slot, from * size, values.subarray(from * size, to * size))
  }

  /** Numbers of a layer. */
  #layerSizes(from: number, to: number): { shift: number; wkv: number } {
    const { layers } = this.shape
    assert(0 <= from && from <= to && to <= layers, `layers ${from} to ${to} of ${layers}`)
    return { shift: this.shiftStride / layers, wkv: this.wkvStride / layers }
  }

  #fill(slot: number, byte: number): void {
    this.#check(slot)
    this.#shift.fill(slot, byte)
    this.#wkv.fill(slot, byte)
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
