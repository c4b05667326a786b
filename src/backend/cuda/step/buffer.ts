/**
 * One step's batch on its way to the device: its place in device memory for a fixed capacity, and page-locked images of
 * it, one for each step on its way. One copy goes up. Knows nothing of kernels.
 */
import { assert } from '../../../errors.ts'
import { type Batch, type Capacity, MAX_TOP_LOGPROBS, SAMPLE_FLOATS, SAMPLE_INTS, SampleInt } from '../../batch.ts'
import type { CudaDevice } from '../device/device.ts'
import type { PinnedBuffer } from '../device/staging.ts'
import type { DevicePointer } from '../kernel/args.ts'
import { StructBytes } from '../kernel/struct-bytes.ts'

/** Entries of lists of any length, over all rows, that there is always room for; and for each row. */
const MIN_ENTRIES = 1024
const ENTRIES_PER_ROW = 8

/** How many rows of a step, which come shortest first, have kernels of their own. */
export interface RowKinds {
  /** Rows of one token. */
  readonly singles: number
  /** Rows of LONG_ROW tokens or more. */
  readonly longRows: number
}

interface StepBufferOptions {
  /** Where its kernels write, for several buffers; its own when absent. */
  readonly outputs?: StepOutputs
  /** Entries of biases and of stops. */
  readonly entries?: number
  /** Steps on their way at once. */
  readonly flights?: number
}

function inputLayout({ tokens, rows, logits, samples }: Capacity, entries: number) {
  const layout = new Layout()
  const sections = {
    counts: layout.section(6),
    tokens: layout.section(tokens),
    tokenRows: layout.section(tokens),
    starts: layout.section(rows + 1),
    slots: layout.section(rows),
    logitRows: layout.section(logits),
    keptAs: layout.section(logits),
    blendCounts: layout.section(logits),
    blendWeights: layout.section(logits),
    sampleRow: layout.section(samples),
    sampleSlot: layout.section(samples),
    sampleFloats: layout.section(samples * SAMPLE_FLOATS),
    sampleInts: layout.section(samples * SAMPLE_INTS),
    biasStarts: layout.section(samples + 1),
    stopStarts: layout.section(rows + 1),
    stopIds: layout.section(entries),
    biasIds: layout.section(entries),
    biasValues: layout.section(entries),
  }
  return { ...sections, bytes: layout.bytes }
}

type Input = ReturnType<typeof inputLayout>
type InputName = Exclude<keyof Input, 'bytes'>

export class StepBuffer {
  readonly capacity: Capacity
  readonly outputs: StepOutputs
  readonly #device: CudaDevice
  readonly #input: Input
  readonly #images: readonly PinnedBuffer[]
  readonly #address: DevicePointer
  readonly #ownsOutputs: boolean
  #numUploads = 0

  constructor(device: CudaDevice, capacity: Capacity, options: StepBufferOptions = {}) {
    const { outputs, entries = 0, flights = 1 } = options
    const { rows, samples } = capacity
    this.#device = device
    this.capacity = capacity
    this.#input = inputLayout(capacity, Math.max(entries, MIN_ENTRIES + ENTRIES_PER_ROW * rows))
    this.#ownsOutputs = outputs === undefined
    // First, since it is what there may be no room for.
    this.#address = device.alloc(this.#input.bytes)
    const images: PinnedBuffer[] = []
    this.#images = images
    try {
      while (images.length < flights) images.push(device.pinned(this.#input.bytes))
      device.fill(this.#address, 0, this.#input.bytes)
      this.outputs = outputs ?? new StepOutputs(device, samples, flights)
    } catch (error) {
      device.free(this.#address)
      for (const image of images) image.dispose()
      throw error
    }
  }

  /** `Step` of common.cuh. */
  step(): Uint8Array {
    const { counts, tokens, tokenRows, starts, slots, logitRows } = this.#input
    const { sampleRow, sampleSlot, sampleFloats, sampleInts, biasStarts } = this.#input
    const { blendCounts, blendWeights } = this.#input
    const struct = new StructBytes()
    for (const { at } of [counts, tokens, tokenRows, starts, slots, logitRows])
      struct.pointer(this.#address + BigInt(at))
    for (const { at } of [sampleRow, sampleSlot, sampleFloats, sampleInts, biasStarts])
      struct.pointer(this.#address + BigInt(at))
    for (const { at } of [blendCounts, blendWeights]) struct.pointer(this.#address + BigInt(at))
    return struct.bytes()
  }

  input(name: InputName): DevicePointer {
    return this.#address + BigInt(this.#input[name].at)
  }

  output(name: OutputName): DevicePointer {
    return this.outputs.address(name)
  }

  holds(batch: Batch): boolean {
    const { numTokens, numRows, numLogits, numSamples } = batch
    const { tokens, rows, logits, samples } = this.capacity
    return (
      numTokens <= tokens &&
      numRows <= rows &&
      numLogits <= logits &&
      numSamples <= samples &&
      numEntries(batch) <= this.#input.biasIds.length
    )
  }

  /**
   * Puts the copy of a batch on the stream. Its image is that of the upload `flights` before, whose step must have run:
   * that is what the number of images is for.
   */
  upload(batch: Batch, { singles, longRows }: RowKinds): void {
    assert(this.holds(batch), 'a batch beyond its step buffer')
    const { numTokens, numRows, numLogits, numSamples } = batch
    const layout = this.#input
    const image = this.#images[this.#numUploads++ % this.#images.length]!
    const ints = (section: Section) => intsOf(image, section)
    const floats = ({ at, length }: Section) => new Float32Array(image.buffer, at, length)
    const numBiases = batch.biasStarts[numSamples]!
    const numStops = batch.stopStarts[numRows]!
    const counts = [numTokens, numRows, numLogits, numSamples, singles, numRows - longRows]
    ints(layout.counts).set(counts)
    ints(layout.tokens).set(batch.tokens.subarray(0, numTokens))
    ints(layout.starts).set(batch.starts.subarray(0, numRows + 1))
    ints(layout.slots).set(batch.slots.subarray(0, numRows))
    ints(layout.stopStarts).set(batch.stopStarts.subarray(0, numRows + 1))
    ints(layout.stopIds).set(batch.stopIds.subarray(0, numStops))
    ints(layout.logitRows).set(batch.logitRows.subarray(0, numLogits))
    ints(layout.keptAs).set(batch.keptAs.subarray(0, numLogits))
    ints(layout.blendCounts).set(batch.blendCounts.subarray(0, numLogits))
    floats(layout.blendWeights).set(batch.blendWeights.subarray(0, numLogits))
    ints(layout.sampleRow).set(batch.sampleRow.subarray(0, numSamples))
    ints(layout.sampleSlot).set(batch.sampleSlot.subarray(0, numSamples))
    floats(layout.sampleFloats).set(batch.sampleFloats.subarray(0, numSamples * SAMPLE_FLOATS))
    ints(layout.sampleInts).set(batch.sampleInts.subarray(0, numSamples * SAMPLE_INTS))
    ints(layout.biasStarts).set(batch.biasStarts.subarray(0, numSamples + 1))
    ints(layout.biasIds).set(batch.biasIds.subarray(0, numBiases))
    floats(layout.biasValues).set(batch.biasValues.subarray(0, numBiases))
    const tokenRows = ints(layout.tokenRows)
    for (let b = 0; b < numRows; b++) tokenRows.fill(b, batch.starts[b]!, batch.starts[b + 1]!)
    const end = layout.stopIds.at + 4 * numStops
    this.#device.uploadAsync(this.#address, image, end)
    if (numBiases === 0) return
    const { at } = layout.biasIds
    const length = layout.biasValues.at + 4 * numBiases - at
    this.#device.uploadAsync(this.#address + BigInt(at), image, length, at)
  }

  dispose(): void {
    this.#device.free(this.#address)
    for (const image of this.#images) image.dispose()
    if (this.#ownsOutputs) this.outputs.dispose()
  }
}

/** Length of the longer of its lists. */
export function numEntries({ biasStarts, stopStarts, numSamples, numRows }: Batch): number {
  return Math.max(biasStarts[numSamples]!, stopStarts[numRows]!)
}

function intsOf({ buffer }: PinnedBuffer, { at, length }: Section): Int32Array {
  return new Int32Array(buffer, at, length)
}

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

type OutputName = 'sampled' | 'sampledLogprob' | 'topIds' | 'topLogprobs'

/**
 * Draws of a program's steps: in device memory, and in one page-locked image per step in flight. All steps write to the
 * same device memory, so that each finds there what the one before drew.
 */
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
  for (let s = 0; s < numSamples; s++) most = Math.max(most, sampleInts[s * SAMPLE_INTS + SampleInt.topLogprobs]!)
  if (most < 0) return 'none'
  return most === 0 ? 'drawn' : 'top'
}

/** Every array starts on a boundary that suits vector loads. */
const ALIGNMENT = 16

/** Where an array lies in its buffer, in bytes, and how many numbers it has. */
interface Section {
  readonly at: number
  readonly length: number
}

/** Arrays of 4-byte numbers one after the other in a buffer. */
export class Layout {
  bytes = 0

  section(length: number): Section {
    const at = this.bytes
    this.bytes = Math.ceil((at + 4 * length) / ALIGNMENT) * ALIGNMENT
    return { at, length }
  }
}
