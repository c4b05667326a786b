/** The buffer in which a product by matrices finds its inputs as f16; the next product's take their place. Knows no product. */
/// <reference types="@webgpu/types" />
import { assert } from '../../errors.ts'
import { USAGE, type WebgpuDevice } from './device.ts'

export class Halves {
  readonly #device: WebgpuDevice
  /** Vectors of eight. */
  #most = 0
  #buffer: GPUBuffer | undefined

  constructor(device: WebgpuDevice) {
    this.#device = device
  }

  reserve(eights: number): void {
    assert(this.#buffer === undefined, 'halves reserved after they were bound')
    this.#most = Math.max(this.#most, eights)
  }

  /** Made when first bound, as large as the largest product needs it. f16 [eights, 8] */
  get buffer(): GPUBuffer {
    this.#buffer ??= this.#device.buffer(16 * this.#most, USAGE.storage)
    return this.#buffer
  }

  dispose(): void {
    if (this.#buffer) this.#device.free(this.#buffer)
  }
}
