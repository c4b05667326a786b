/**
 * Copies between JavaScript memory and the device. Ordinary memory goes through page-locked buffers in turn: while the device
 * reads one, the next is filled. They are made at the first copy, and so many that the short uploads between two steps find
 * one free: a copy is behind the steps that were launched before it. Memory shared by threads, which weights are read into
 * again and again, is page-locked itself. Knows nothing of what is copied.
 */
import { type Pointer, viewMemory } from '../../ffi.ts'
import type { CudaDriver } from '../driver/driver.ts'
import type { DevicePointer } from '../kernel/args.ts'

/** Large enough that a copy's fixed cost does not count, small enough to stay in the CPU's cache. */
const PART_BYTES = 1 << 20
const NUM_PARTS = 16
/** CU_EVENT_DISABLE_TIMING */
const NO_TIMING = 2
/** CU_MEMHOSTREGISTER_PORTABLE */
const PORTABLE = 1

interface Part {
  readonly buffer: PinnedBuffer
  /** Recorded after the last copy out of the buffer. */
  readonly isFree: Pointer
}

export class Staging {
  readonly #driver: CudaDriver
  readonly #stream: Pointer
  #parts: readonly Part[] | null = null
  #turn = 0
  /** Shared memory that has come, and what became of locking it. */
  readonly #locked = new Map<SharedArrayBuffer, 'here' | 'elsewhere' | 'refused'>()

  constructor(driver: CudaDriver, stream: Pointer) {
    this.#driver = driver
    this.#stream = stream
  }

  upload(to: DevicePointer, values: ArrayBufferView): void {
    const source = new Uint8Array(values.buffer, values.byteOffset, values.byteLength)
    if (this.#isLocked(values.buffer)) this.#uploadLocked(to, source)
    else this.#uploadInParts(to, source)
  }

  #uploadInParts(to: DevicePointer, source: Uint8Array): void {
    for (let start = 0; start < source.length; start += PART_BYTES) {
      const part = source.subarray(start, start + PART_BYTES)
      const { buffer, isFree } = this.#nextPart()
      this.#driver.call('cuEventSynchronize', isFree)
      new Uint8Array(buffer.buffer).set(part)
      const target = to + BigInt(start)
      this.#driver.call('cuMemcpyHtoDAsync_v2', target, buffer.address, part.length, this.#stream)
      this.#driver.call('cuEventRecord', isFree, this.#stream)
    }
  }

  #isLocked(buffer: ArrayBufferLike): boolean {
    if (!(buffer instanceof SharedArrayBuffer)) return false
    const known = this.#locked.get(buffer) ?? this.#lock(buffer)
    return known !== 'refused'
  }

  #lock(buffer: SharedArrayBuffer): 'here' | 'elsewhere' | 'refused' {
    const { functions, words } = this.#driver
    const status = functions.cuMemHostRegister_v2(new Uint8Array(buffer), buffer.byteLength, PORTABLE)
    // Another device has locked it, for all of them.
    const isElsewhere = status === words.statuses.isLocked
    const became = status === 0 ? 'here' : isElsewhere ? 'elsewhere' : 'refused'
    this.#locked.set(buffer, became)
    return became
  }

  /** The next values are read into the same memory, so this waits for the copy. */
  #uploadLocked(to: DevicePointer, source: Uint8Array): void {
    const { isFree } = this.#nextPart()
    this.#driver.call('cuMemcpyHtoDAsync_v2', to, source, source.byteLength, this.#stream)
    this.#driver.call('cuEventRecord', isFree, this.#stream)
    this.#driver.call('cuEventSynchronize', isFree)
  }

  download(from: DevicePointer, bytes: number): Uint8Array<ArrayBuffer> {
    const values = new Uint8Array(bytes)
    for (let start = 0; start < bytes; start += PART_BYTES) {
      const length = Math.min(PART_BYTES, bytes - start)
      const { buffer, isFree } = this.#nextPart()
      const source = from + BigInt(start)
      this.#driver.call('cuMemcpyDtoHAsync_v2', buffer.address, source, length, this.#stream)
      this.#driver.call('cuEventRecord', isFree, this.#stream)
      this.#driver.call('cuEventSynchronize', isFree)
      values.set(new Uint8Array(buffer.buffer, 0, length), start)
    }
    return values
  }

  #nextPart(): Part {
    this.#parts ??= Array.from({ length: NUM_PARTS }, () => this.#part())
    this.#turn = (this.#turn + 1) % NUM_PARTS
    return this.#parts[this.#turn]!
  }

  #part(): Part {
    const event = new BigUint64Array(1)
    this.#driver.call('cuEventCreate', event, NO_TIMING)
    return { buffer: new PinnedBuffer(this.#driver, PART_BYTES), isFree: event[0]! }
  }

  dispose(): void {
    for (const { buffer, isFree } of this.#parts ?? []) {
      buffer.dispose()
      this.#driver.call('cuEventDestroy_v2', isFree)
    }
    this.#parts = null
    for (const [buffer, became] of this.#locked)
      if (became === 'here') this.#driver.call('cuMemHostUnregister', new Uint8Array(buffer))
    this.#locked.clear()
  }
}

/** CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP */
const FLAGS = 1 | 2

/**
 * Page-locked host memory: what the device copies from and to without the host waiting, seen from JavaScript as an
 * ArrayBuffer. Owned by the device that made it; its buffer must not be touched after dispose().
 */
export class PinnedBuffer {
  readonly bytes: number
  /** One address for host and device (unified addressing): a kernel may read and write it too. */
  readonly address: DevicePointer
  readonly buffer: ArrayBuffer
  readonly #driver: CudaDriver
  readonly #onDispose: () => void
  #isDisposed = false

  /** Clearing takes its time, and is of no use where nothing runs. */
  constructor(driver: CudaDriver, bytes: number, onDispose = () => {}, isCleared = true) {
    const out = new BigUint64Array(1)
    driver.call('cuMemHostAlloc', out, bytes, FLAGS)
    this.#driver = driver
    this.#onDispose = onDispose
    this.bytes = bytes
    this.address = out[0]!
    this.buffer = viewMemory(this.address, bytes)
    if (isCleared) new Uint8Array(this.buffer).fill(0)
  }

  get isDisposed(): boolean {
    return this.#isDisposed
  }

  dispose(): void {
    if (this.#isDisposed) return
    this.#isDisposed = true
    this.#driver.call('cuMemFreeHost', this.address)
    this.#onDispose()
  }
}
