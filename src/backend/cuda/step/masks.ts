/**
 * Masks of draws on their way to the device: one place there for all steps of a program, and page-locked images of it, made
 * when first needed. Those of draws that are made later follow their step. Steps without masks copy nothing.
 */
import { type Batch, type Capacity, maskWords } from '../../batch.ts'
import type { CudaDevice } from '../device/device.ts'
import type { PinnedBuffer } from '../device/pinned.ts'
import type { DevicePointer } from '../kernel/args.ts'
import { Layout } from './layout.ts'

/** Copies of one step: ahead of it, and when the masks of its later draws have come. */
const COPIES = 2

export class StepMasks {
  /** [samples] i32, of each mask whether it has come; where a draw is made later, it is drawn if so. */
  readonly hasCome: DevicePointer
  readonly address: DevicePointer
  readonly #device: CudaDevice
  readonly #words: number
  readonly #at: number
  readonly #bytes: number
  readonly #numImages: number
  readonly #images: PinnedBuffer[] = []
  #numUploads = 0

  constructor(device: CudaDevice, { samples }: Capacity, vocabSize: number, numFlights: number) {
    this.#device = device
    this.#words = maskWords(vocabSize)
    const layout = new Layout()
    layout.section(samples)
    this.#at = layout.section(samples * this.#words).at
    this.#bytes = Math.max(16, layout.bytes)
    this.#numImages = COPIES * numFlights
    this.hasCome = device.alloc(this.#bytes)
    this.address = this.hasCome + BigInt(this.#at)
  }

  /** Ahead of a step; nothing where all its masks are of draws that are made later. */
  upload(batch: Batch): void {
    if (batch.numMasks > batch.numLater) this.#copy(batch)
  }

  /** What has come for the draws that are left of the step. */
  uploadLater(batch: Batch): void {
    this.#copy(batch)
  }

  /** The image is that of the copy `numImages` before, whose step has run: no more steps are on their way. */
  #copy({ numMasks, masks, hasCome }: Batch): void {
    const at = this.#numUploads++ % this.#numImages
    const image = this.#images[at] ?? this.#device.pinned(this.#bytes)
    this.#images[at] = image
    const count = numMasks * this.#words
    new Int32Array(image.buffer, 0, numMasks).set(hasCome.subarray(0, numMasks))
    new Uint32Array(image.buffer, this.#at, count).set(masks.subarray(0, count))
    this.#device.uploadAsync(this.hasCome, image, this.#at + 4 * count)
  }

  dispose(): void {
    this.#device.free(this.hasCome)
    for (const image of this.#images) image.dispose()
  }
}
