/**
 * A step's batch on its way to the device and back: page-locked images of the input and output arrays and their places
 * in device memory, for a fixed capacity. One copy goes up and one comes down. Steps that are on their way at once have
 * images of their own, and share the places: the device takes them in turn. Knows nothing of kernels.
 */
import { assert } from '../../errors.ts'
import {
  type Batch,
  type Capacity,
  MAX_TOP_LOGPROBS,
  SAMPLE_FLOATS,
  SAMPLE_INTS,
  SampleInt,
} from '../backend.ts'
import type { CudaDevice } from './device.ts'
import type { DevicePointer } from './kernel-args.ts'
import type { PinnedBuffer } from './pinned.ts'
import { StructBytes } from './struct-bytes.ts'

/** Bias entries there is always room for. */
const MIN_BIASES = 1024
/** Every array starts on a boundary that suits vector loads. */
const ALIGNMENT = 16

/** Where an array lies in its buffer, in bytes. */
interface Section {
  readonly at: number
  readonly length: number
}

/** Sections of 4-byte numbers, one after the other. */
class Layout {
  bytes = 0

  section(length: number): Section {
    const at = this.bytes
    this.bytes = Math.ceil((at + 4 * length) / ALIGNMENT) * ALIGNMENT
    return { at, length }
  }
}

function inputLayout({ tokens, rows, logits, samples }: Capacity, biases: number) {
  const layout = new Layout()
  const sections = {
    counts: layout.section(4),
    tokens: layout.section(tokens),
    tokenRows: layout.section(tokens),
    starts: layout.section(rows + 1),
    slots: layout.section(rows),
    logitRows: layout.section(logits),
    sampleRow: layout.section(samples),
    sampleSlot: layout.section(samples),
    sampleFloats: layout.section(samples * SAMPLE_FLOATS),
    sampleInts: layout.section(samples * SAMPLE_INTS),
    biasStarts: layout.section(samples + 1),
    biasIds: layout.section(biases),
    biasValues: layout.section(biases),
  }
  return { ...sections, bytes: layout.bytes }
}

function outputLayout(samples: number) {
  const layout = new Layout()
  const sections = {
    sampled: layout.section(samples),
    sampledLogprob: layout.section(samples),
    topIds: layout.section(samples * MAX_TOP_LOGPROBS),
    topLogprobs: layout.section(samples * MAX_TOP_LOGPROBS),
  }
  return { ...sections, bytes: layout.bytes }
}

type Input = ReturnType<typeof inputLayout>
type Output = ReturnType<typeof outputLayout>

/** A step's arrays on the host. */
interface Image {
  readonly up: PinnedBuffer
  readonly down: PinnedBuffer
}

export class StepBuffer {
  readonly capacity: Capacity
  readonly maxBiases: number
  readonly #device: CudaDevice
  readonly #input: Input
  readonly #output: Output
  readonly #images: readonly Image[]
  #numUploads = 0
  readonly #inputAddress: DevicePointer
  readonly #outputAddress: DevicePointer

  constructor(device: CudaDevice, capacity: Capacity, maxBiases = MIN_BIASES, numImages = 1) {
    this.#device = device
    this.capacity = capacity
    this.maxBiases = maxBiases
    this.#input = inputLayout(capacity, maxBiases)
    this.#output = outputLayout(capacity.samples)
    const outputBytes = Math.max(ALIGNMENT, this.#output.bytes)
    this.#images = Array.from({ length: numImages }, () => ({
      up: device.pinned(this.#input.bytes),
      down: device.pinned(outputBytes),
    }))
    this.#inputAddress = device.alloc(this.#input.bytes)
    this.#outputAddress = device.alloc(outputBytes)
    device.fill(this.#inputAddress, 0, this.#input.bytes)
  }

  /** `Step` of common.cuh. */
  step(): Uint8Array {
    const { counts, tokens, tokenRows, starts, slots, logitRows } = this.#input
    const { sampleRow, sampleSlot, sampleFloats, sampleInts, biasStarts } = this.#input
    const struct = new StructBytes()
    for (const { at } of [counts, tokens, tokenRows, starts, slots, logitRows])
      struct.pointer(this.#inputAddress + BigInt(at))
    for (const { at } of [sampleRow, sampleSlot, sampleFloats, sampleInts, biasStarts])
      struct.pointer(this.#inputAddress + BigInt(at))
    return struct.bytes()
  }

  input(name: 'biasIds' | 'biasValues'): DevicePointer {
    return this.#inputAddress + BigInt(this.#input[name].at)
  }

  output(name: 'sampled' | 'sampledLogprob' | 'topIds' | 'topLogprobs'): DevicePointer {
    return this.#outputAddress + BigInt(this.#output[name].at)
  }

  holds({ numTokens, numRows, numLogits, numSamples, biasStarts }: Batch): boolean {
    const { tokens, rows, logits, samples } = this.capacity
    return (
      numTokens <= tokens &&
      numRows <= rows &&
      numLogits <= logits &&
      numSamples <= samples &&
      biasStarts[numSamples]! <= this.maxBiases
    )
  }

  /**
   * Puts the copy of a batch on the stream; returns the number of its image. The step that had the image before, as many
   * uploads ago as there are images, must have been unpacked.
   */
  upload(batch: Batch): number {
    const image = this.#numUploads++ % this.#images.length
    const { up } = this.#images[image]!
    const ints = ({ at, length }: Section) => new Int32Array(up.buffer, at, length)
    const floats = ({ at, length }: Section) => new Float32Array(up.buffer, at, length)
    assert(this.holds(batch), 'a batch beyond its step buffer')
    const { numTokens, numRows, numLogits, numSamples } = batch
    const layout = this.#input
    const numBiases = batch.biasStarts[numSamples]!
    ints(layout.counts).set([numTokens, numRows, numLogits, numSamples])
    ints(layout.tokens).set(batch.tokens.subarray(0, numTokens))
    ints(layout.starts).set(batch.starts.subarray(0, numRows + 1))
    ints(layout.slots).set(batch.slots.subarray(0, numRows))
    ints(layout.logitRows).set(batch.logitRows.subarray(0, numLogits))
    ints(layout.sampleRow).set(batch.sampleRow.subarray(0, numSamples))
    ints(layout.sampleSlot).set(batch.sampleSlot.subarray(0, numSamples))
    floats(layout.sampleFloats).set(batch.sampleFloats.subarray(0, numSamples * SAMPLE_FLOATS))
    ints(layout.sampleInts).set(batch.sampleInts.subarray(0, numSamples * SAMPLE_INTS))
    ints(layout.biasStarts).set(batch.biasStarts.subarray(0, numSamples + 1))
    ints(layout.biasIds).set(batch.biasIds.subarray(0, numBiases))
    floats(layout.biasValues).set(batch.biasValues.subarray(0, numBiases))
    const tokenRows = ints(layout.tokenRows)
    for (let b = 0; b < numRows; b++) tokenRows.fill(b, batch.starts[b]!, batch.starts[b + 1]!)
    const end = numBiases > 0 ? layout.bytes : layout.biasIds.at
    this.#device.uploadAsync(this.#inputAddress, up, end)
    return image
  }

  /** Puts the copy of the results on the stream. */
  download(batch: Batch, image: number): void {
    if (batch.numSamples === 0) return
    const bytes = wantsTop(batch) ? this.#output.bytes : this.#output.topIds.at
    this.#device.downloadAsync(this.#images[image]!.down, this.#outputAddress, bytes)
  }

  /** Hands the results to the batch, once the download has run. */
  unpack(batch: Batch, image: number): void {
    const { buffer } = this.#images[image]!.down
    const { sampled, sampledLogprob, topIds, topLogprobs } = this.#output
    const count = batch.numSamples
    batch.sampled.set(new Int32Array(buffer, sampled.at, count))
    batch.sampledLogprob.set(new Float32Array(buffer, sampledLogprob.at, count))
    if (!wantsTop(batch)) return
    batch.topIds.set(new Int32Array(buffer, topIds.at, count * MAX_TOP_LOGPROBS))
    batch.topLogprobs.set(new Float32Array(buffer, topLogprobs.at, count * MAX_TOP_LOGPROBS))
  }

  dispose(): void {
    this.#device.free(this.#inputAddress)
    this.#device.free(this.#outputAddress)
    for (const { up, down } of this.#images) {
      up.dispose()
      down.dispose()
    }
  }
}

function wantsTop({ numSamples, sampleInts }: Batch): boolean {
  for (let s = 0; s < numSamples; s++)
    if (sampleInts[s * SAMPLE_INTS + SampleInt.topLogprobs]! > 0) return true
  return false
}
