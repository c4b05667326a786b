/**
 * Numbers of states on their way to a device, without waiting for the steps that are on their way: from page-locked memory
 * that is used from its beginning to its end and then again. Knows nothing of slots.
 */
import type { CudaDevice } from './device.ts'
import { CudaEvent } from './event.ts'
import type { DevicePointer } from './kernel-args.ts'
import type { PinnedBuffer } from './pinned.ts'
import { convert, type TensorType } from './resources.ts'

/** What of a state is on its way to the device at a time, at most. */
const PART_FLOATS = 1 << 18

export class StateSender {
  readonly #device: CudaDevice
  readonly #pinned: PinnedBuffer
  readonly #capacity: number
  /** Recorded after the last send: what was sent before that can be written over. */
  readonly #sent: CudaEvent
  /** Numbers of the pinned memory that may still be on their way. */
  #numUsed = 0
  /** f32 [PART_FLOATS] on the device, of numbers that become halves there. */
  #scratch: DevicePointer | null = null

  /** `capacity` numbers can be on their way, a whole state. Page-locking them takes milliseconds, so it is done here. */
  constructor(device: CudaDevice, capacity: number) {
    this.#device = device
    this.#capacity = capacity
    this.#pinned = device.pinned(4 * capacity)
    this.#sent = new CudaEvent(device)
    device.atEnd(() => this.#sent.dispose())
  }

  send(to: DevicePointer, type: TensorType, start: number, values: Float32Array): void {
    for (let at = 0; at < values.length; at += PART_FLOATS) {
      const part = values.subarray(at, at + PART_FLOATS)
      if (type === 'f32') this.#upload(to + BigInt(4 * (start + at)), part)
      else this.#uploadHalves(to + BigInt(2 * (start + at)), part)
    }
  }

  #upload(to: DevicePointer, part: Float32Array): void {
    const device = this.#device
    if (this.#numUsed + part.length > this.#capacity) {
      this.#sent.wait()
      this.#numUsed = 0
    }
    const at = 4 * this.#numUsed
    new Float32Array(this.#pinned.buffer, at, part.length).set(part)
    device.uploadAsync(to, this.#pinned, part.byteLength, at)
    this.#sent.record()
    this.#numUsed += part.length
  }

  /** The scratch is written again after the kernel that reads it: both are on the stream. */
  #uploadHalves(to: DevicePointer, part: Float32Array): void {
    this.#scratch ??= this.#device.alloc(4 * PART_FLOATS)
    this.#upload(this.#scratch, part)
    convert(this.#device, to, this.#scratch, 'f32', part.length)
  }
}
