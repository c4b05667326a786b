/**
 * Page-locked host memory: what the device copies from and to without the host waiting, seen from JavaScript as an
 * ArrayBuffer. Owned by the device that made it; its buffer must not be touched after dispose().
 */
import { viewMemory } from '../../ffi.ts'
import type { CudaDriver } from '../driver/driver.ts'
import type { DevicePointer } from '../kernel/args.ts'

/** CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP */
const FLAGS = 1 | 2

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
