/**
 * Masks of draws on their way to the device: one place there for all steps of a program, and page-locked images of it, one
 * for each step on its way, made when first needed. Steps without masks copy nothing.
 */
import { type Batch, type Capacity, maskWords } from '../../batch.ts'
import type { CudaDevice } from '../device/device.ts'
import type { PinnedBuffer } from '../device/pinned.ts'
import type { DevicePointer } from '../kernel/args.ts'

export class StepMasks {
  readonly address: DevicePointer
  readonly #device: CudaDevice
  readonly #words: number
  readonly #bytes: number
  readonly #numImages: number
  readonly #images: PinnedBuffer[] = []
  #numUploads = 0

  constructor(device: CudaDevice, { samples }: Capacity, vocabSize: number, numImages: number) {
    this.#device = device
    this.#words = maskWords(vocabSize)
    this.#bytes = Math.max(16, 4 * samples * this.#words)
    this.#numImages = numImages
    this.address = device.alloc(this.#bytes)
  }

  /** The image is that of the upload `numImages` before, whose step has run: no more steps are on their way. */
  upload({ numMasks, masks }: Batch): void {
    if (numMasks === 0) return
    const at = this.#numUploads++ % this.#numImages
    const image = this.#images[at] ?? this.#device.pinned(this.#bytes)
    this.#images[at] = image
    const count = numMasks * this.#words
    new Uint32Array(image.buffer, 0, count).set(masks.subarray(0, count))
    this.#device.uploadAsync(this.address, image, 4 * count)
  }

  dispose(): void {
    this.#device.free(this.address)
    for (const image of this.#images) image.dispose()
  }
}
