/** Device memory that the commands of a recording share: it holds nothing from one to the next. */
import { assert } from '../../../errors.ts'
import type { CudaDevice } from '../device/device.ts'
import type { DevicePointer } from '../kernel/args.ts'

export class Scratch {
  readonly #device: CudaDevice
  #bytes = 0
  #address: DevicePointer | null = null

  constructor(device: CudaDevice) {
    this.#device = device
  }

  /** Makes it that large at least. All must be said before the first use. */
  reserve(bytes: number): void {
    assert(this.#address === null, 'scratch memory reserved after its use')
    this.#bytes = Math.max(this.#bytes, bytes)
  }

  /** Allocates at the first use, which must not be inside a capture. */
  get address(): DevicePointer {
    this.#address ??= this.#device.alloc(this.#bytes)
    return this.#address
  }

  dispose(): void {
    if (this.#address !== null) this.#device.free(this.#address)
    this.#address = null
  }
}
