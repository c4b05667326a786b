/**
 * What a program's steps draw, in device memory, and page-locked images of it: one for each step on its way. All steps
 * write to the same place, so that the next one finds there what the one before drew.
 */
import { type Batch, MAX_TOP_LOGPROBS, SAMPLE_INTS, SampleInt } from '../../batch.ts'
import type { CudaDevice } from '../device/device.ts'
import type { PinnedBuffer } from '../device/pinned.ts'
import type { DevicePointer } from '../kernel/args.ts'
import { ALIGNMENT, Layout } from './layout.ts'

function outputLayout(samples: number) {
  const layout = new Layout()
  const sections = {
    sampled: layout.section(samples),
    sampledLogprob: layout.section(samples),
    topIds: layout.section(samples * MAX_TOP_LOGPROBS),
    topLogprobs: layout.section(samples * MAX_TOP_LOGPROBS),
  }
  return { ...sections, bytes: Math.max(ALIGNMENT, layout.bytes) }
}

export type OutputName = 'sampled' | 'sampledLogprob' | 'topIds' | 'topLogprobs'

export class StepOutputs {
  readonly #device: CudaDevice
  readonly #layout: ReturnType<typeof outputLayout>
  readonly #address: DevicePointer
  readonly #images: readonly PinnedBuffer[]

  constructor(device: CudaDevice, samples: number, numImages: number) {
    this.#device = device
    this.#layout = outputLayout(samples)
    this.#address = device.alloc(this.#layout.bytes)
    const images: PinnedBuffer[] = []
    this.#images = images
    try {
      while (images.length < numImages) images.push(device.pinned(this.#layout.bytes))
      // No draw, should a first step ask for one.
      device.fill(this.#address, 0xff, this.#layout.bytes)
    } catch (error) {
      device.free(this.#address)
      for (const image of images) image.dispose()
      throw error
    }
  }

  address(name: OutputName): DevicePointer {
    return this.#address + BigInt(this.#layout[name].at)
  }

  /** Puts the copy of what a batch asked for on the stream. */
  download(batch: Batch, image: number): void {
    if (batch.numSamples === 0) return
    const { bytes, sampledLogprob, topIds } = this.#layout
    const end = { none: sampledLogprob.at, drawn: topIds.at, top: bytes }[asked(batch)]
    this.#device.downloadAsync(this.#images[image]!, this.#address, end)
  }

  /** Hands the results to the batch, once the download has run. */
  unpack(batch: Batch, image: number): void {
    const { buffer } = this.#images[image]!
    const { sampled, sampledLogprob, topIds, topLogprobs } = this.#layout
    const count = batch.numSamples
    const wanted = asked(batch)
    batch.sampled.set(new Int32Array(buffer, sampled.at, count))
    dropUnfounded(batch)
    if (wanted === 'none') return
    batch.sampledLogprob.set(new Float32Array(buffer, sampledLogprob.at, count))
    if (wanted !== 'top') return
    batch.topIds.set(new Int32Array(buffer, topIds.at, count * MAX_TOP_LOGPROBS))
    batch.topLogprobs.set(new Float32Array(buffer, topLogprobs.at, count * MAX_TOP_LOGPROBS))
  }

  dispose(): void {
    this.#device.free(this.#address)
    for (const image of this.#images) image.dispose()
  }
}

/** Draws after guesses that were wrong are none: the device makes some before it is known. */
function dropUnfounded({ numSamples, sampleInts, sampled }: Batch): void {
  for (let s = 1; s < numSamples; s++) {
    const after = sampleInts[s * SAMPLE_INTS + SampleInt.after]!
    if (after > 0 && sampled[s - 1] !== after - 1) sampled[s] = -1
  }
}

/** Log-probabilities that a batch asks for: none, those of the drawn tokens, or the best ones' too. */
function asked({ numSamples, sampleInts }: Batch): 'none' | 'drawn' | 'top' {
  let most = -1
  for (let s = 0; s < numSamples; s++)
    most = Math.max(most, sampleInts[s * SAMPLE_INTS + SampleInt.topLogprobs]!)
  if (most < 0) return 'none'
  return most === 0 ? 'drawn' : 'top'
}
