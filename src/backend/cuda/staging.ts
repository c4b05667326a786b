/**
 * Copies between ordinary JavaScript memory and the device, through two page-locked buffers in turn: while the device
 * reads one, the other is filled. The buffers are made at the first copy. Knows nothing of what is copied.
 */
import type { Pointer } from '../ffi.ts'
import type { CudaDriver } from './driver.ts'
import type { DevicePointer } from './kernel-args.ts'
import { PinnedBuffer } from './pinned.ts'

/** Large enough that a copy's fixed cost does not count, small enough to stay in the CPU's cache for the most part. */
const HALF_BYTES = 8 << 20
/** CU_EVENT_DISABLE_TIMING */
const NO_TIMING = 2

interface Half {
  readonly buffer: PinnedBuffer
  /** Recorded after the last copy out of the buffer. */
  readonly isFree: Pointer
}

export class Staging {
  readonly #driver: CudaDriver
  readonly #stream: Pointer
  #halves: readonly [Half, Half] | null = null
  #turn = 0

  constructor(driver: CudaDriver, stream: Pointer) {
    this.#driver = driver
    this.#stream = stream
  }

  upload(to: DevicePointer, values: ArrayBufferView): void {
    const source = new Uint8Array(values.buffer, values.byteOffset, values.byteLength)
    for (let start = 0; start < source.length; start += HALF_BYTES) {
      const part = source.subarray(start, start + HALF_BYTES)
      const { buffer, isFree } = this.#nextHalf()
      this.#driver.call('cuEventSynchronize', isFree)
      new Uint8Array(buffer.buffer).set(part)
      const target = to + BigInt(start)
      this.#driver.call('cuMemcpyHtoDAsync_v2', target, buffer.address, part.length, this.#stream)
      this.#driver.call('cuEventRecord', isFree, this.#stream)
    }
  }

  download(from: DevicePointer, bytes: number): Uint8Array<ArrayBuffer> {
    const values = new Uint8Array(bytes)
    for (let start = 0; start < bytes; start += HALF_BYTES) {
      const length = Math.min(HALF_BYTES, bytes - start)
      const { buffer, isFree } = this.#nextHalf()
      const source = from + BigInt(start)
      this.#driver.call('cuMemcpyDtoHAsync_v2', buffer.address, source, length, this.#stream)
      this.#driver.call('cuEventRecord', isFree, this.#stream)
      this.#driver.call('cuEventSynchronize', isFree)
      values.set(new Uint8Array(buffer.buffer, 0, length), start)
    }
    return values
  }

  #nextHalf(): Half {
    this.#halves ??= [this.#half(), this.#half()]
    this.#turn = 1 - this.#turn
    return this.#halves[this.#turn]!
  }

  #half(): Half {
    const event = new BigUint64Array(1)
    this.#driver.call('cuEventCreate', event, NO_TIMING)
    return { buffer: new PinnedBuffer(this.#driver, HALF_BYTES), isFree: event[0]! }
  }

  dispose(): void {
    for (const { buffer, isFree } of this.#halves ?? []) {
      buffer.dispose()
      this.#driver.call('cuEventDestroy_v2', isFree)
    }
    this.#halves = null
  }
}
