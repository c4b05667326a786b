/** Device memory that the commands of a recording share: it holds nothing from one to the next. */
import { assert } from '../../../errors.ts'
import type { CudaDevice } from '../device/device.ts'
import type { DevicePointer } from '../kernel/args.ts'

export class Scratch {
  readonly #device: CudaDevice
  readonly #isZeroed: boolean
  #bytes = 0
  #address: DevicePointer | null = null

  /** `isZeroed`: it holds zeros at first, and commands leave zeros behind. */
  constructor(device: CudaDevice, isZeroed = false) {
    this.#device = device
    this.#isZeroed = isZeroed
  }

  /** Makes it that large at least. All must be said before the first use. */
  reserve(bytes: number): void {
    assert(this.#address === null, 'scratch memory reserved after its use')
    this.#bytes = Math.max(this.#bytes, bytes)
  }

  /** Allocates at the first use, which must not be inside a capture. */
  get address(): DevicePointer {
    if (this.#address === null) {
      this.#address = this.#device.alloc(this.#bytes)
      if (this.#isZeroed) this.#device.fill(this.#address, 0, this.#bytes)
    }
    return this.#address
  }

  allocate(): void {
    void this.address
  }

  dispose(): void {
    if (this.#address !== null) this.#device.free(this.#address)
    this.#address = null
  }
}
