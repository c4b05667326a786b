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
  /** The step's first kernel fetches the batch (take-draws.cu) if that is small, instead of a copy before the step. */
  readonly isFetched?: boolean
}

/** Rows of a batch that one block fetches in the time that a copy needs to begin. */
const MAX_FETCHED_ROWS = 8

/** Numbers of a batch, its words and biases for the kernel that fetches it, and its image of results. */
const COUNTS = 9

function inputLayout({ tokens, rows, logits, samples }: Capacity, entries: number) {
  const layout = new Layout()
  const sections = {
    counts: layout.section(COUNTS),
    tokens: layout.section(tokens),
    tokenRows: layout.section(tokens),
    keeps: layout.section(tokens),
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
  return { ...sections, bytes: layout.bytes, turn: layout.section(1), allBytes: layout.bytes }
}

type Input = ReturnType<typeof inputLayout>
type InputName = Exclude<keyof Input, 'bytes' | 'allBytes'>

export class StepBuffer {
  readonly capacity: Capacity
  readonly outputs: StepOutputs
  readonly #device: CudaDevice
  readonly #input: Input
  readonly #isFetched: boolean
  readonly #flights: number
  /** One after the other. */
  readonly #images: PinnedBuffer
  readonly #address: DevicePointer
  readonly #ownsOutputs: boolean
  #numUploads = 0

  constructor(device: CudaDevice, capacity: Capacity, options: StepBufferOptions = {}) {
    const { outputs, entries = 0, flights = 1, isFetched = false } = options
    const { rows, samples } = capacity
    this.#device = device
    this.capacity = capacity
    this.#input = inputLayout(capacity, Math.max(entries, MIN_ENTRIES + ENTRIES_PER_ROW * rows))
    this.#ownsOutputs = outputs === undefined
    this.#flights = flights
    this.#isFetched = isFetched && rows <= MAX_FETCHED_ROWS
    const { bytes, allBytes } = this.#input
    // First, since it is what there may be no room for.
    this.#address = device.alloc(allBytes)
    let images: PinnedBuffer | null = null
    try {
      images = device.pinned(bytes * flights)
      device.fill(this.#address, 0, allBytes)
      this.outputs = outputs ?? new StepOutputs(device, samples, flights)
    } catch (error) {
      device.free(this.#address)
      images?.dispose()
      throw error
    }
    this.#images = images
  }

  /** `Step` of common.cuh. */
  step(): Uint8Array {
    const { counts, tokens, tokenRows, starts, slots, logitRows } = this.#input
    const { sampleRow, sampleSlot, sampleFloats, sampleInts, biasStarts } = this.#input
    const { blendCounts, blendWeights, keeps } = this.#input
    const struct = new StructBytes()
    for (const { at } of [counts, tokens, tokenRows, starts, slots, logitRows])
      struct.pointer(this.#address + BigInt(at))
    for (const { at } of [sampleRow, sampleSlot, sampleFloats, sampleInts, biasStarts])
      struct.pointer(this.#address + BigInt(at))
    for (const { at } of [blendCounts, blendWeights, keeps]) struct.pointer(this.#address + BigInt(at))
    return struct.bytes()
  }

  input(name: InputName): DevicePointer {
    return this.#address + BigInt(this.#input[name].at)
  }

  output(name: OutputName): DevicePointer {
    return this.outputs.address(name)
  }

  /** `Fetched` of take-draws.cu. */
  fetched(): Uint8Array {
    const { bytes, biasIds, biasValues } = this.#input
    return new StructBytes()
      .pointer(this.#isFetched ? this.#images.address : null)
      .pointer(this.#address)
      .pointer(this.input('turn'))
      .i32(this.#flights)
      .i32(bytes / 4)
      .i32(biasIds.at / 4)
      .i32(biasValues.at / 4)
      .bytes()
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
   * that is what the number of images is for. `results`: the image that its results go to.
   */
  upload(batch: Batch, { singles, longRows }: RowKinds, results = 0): void {
    assert(this.holds(batch), 'a batch beyond its step buffer')
    const { numTokens, numRows, numLogits, numSamples } = batch
    const layout = this.#input
    const image = layout.bytes * (this.#numUploads++ % this.#flights)
    const { buffer } = this.#images
    const ints = ({ at, length }: Section) => new Int32Array(buffer, image + at, length)
    const floats = ({ at, length }: Section) => new Float32Array(buffer, image + at, length)
    const numBiases = batch.biasStarts[numSamples]!
    const numStops = batch.stopStarts[numRows]!
    const end = layout.stopIds.at + 4 * numStops
    const counts = [numTokens, numRows, numLogits, numSamples, singles, numRows - longRows]
    ints(layout.counts).set([...counts, end / 4, numBiases, results])
    ints(layout.tokens).set(batch.tokens.subarray(0, numTokens))
    ints(layout.keeps).set(batch.keeps.subarray(0, numTokens))
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
    if (this.#isFetched) return
    this.#device.uploadAsync(this.#address, this.#images, end, image)
    if (numBiases === 0) return
    const { at } = layout.biasIds
    const length = layout.biasValues.at + 4 * numBiases - at
    this.#device.uploadAsync(this.#address + BigInt(at), this.#images, length, image + at)
  }

  dispose(): void {
    this.#device.free(this.#address)
    this.#images.dispose()
    if (this.#ownsOutputs) this.outputs.dispose()
  }
}

/** Length of the longer of its lists. */
export function numEntries({ biasStarts, stopStarts, numSamples, numRows }: Batch): number {
  return Math.max(biasStarts[numSamples]!, stopStarts[numRows]!)
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
 * same device memory, so that each finds there what the one before drew. Tokens are written to the image, too; a copy brings
 * log-probabilities.
 */
export class StepOutputs {
  readonly #device: CudaDevice
  readonly #layout: ReturnType<typeof outputLayout>
  readonly #address: DevicePointer
  /** One after the other. */
  readonly #images: PinnedBuffer

  constructor(device: CudaDevice, samples: number, numImages: number) {
    this.#device = device
    this.#layout = outputLayout(samples)
    const { bytes } = this.#layout
    this.#address = device.alloc(bytes)
    let images: PinnedBuffer | null = null
    try {
      images = device.pinned(bytes * numImages)
      // No draw, should a first step ask for one.
      device.fill(this.#address, 0xff, bytes)
    } catch (error) {
      device.free(this.#address)
      images?.dispose()
      throw error
    }
    this.#images = images
  }

  /** Where the tokens of the first image are, and the words from one image to the next. */
  get hostTokens() {
    return { address: this.#images.address + BigInt(this.#layout.sampled.at), words: this.#layout.bytes / 4 }
  }

  address(name: OutputName): DevicePointer {
    return this.#address + BigInt(this.#layout[name].at)
  }

  /** Puts the copy of what a batch asked for on the stream. */
  download(batch: Batch, image: number): void {
    const wanted = asked(batch)
    if (wanted === 'none') return
    const { bytes, topIds } = this.#layout
    const end = wanted === 'drawn' ? topIds.at : bytes
    this.#device.downloadAsync(this.#images, this.#address, end, image * bytes)
  }

  /** Hands the results to the batch, once the download has run. */
  unpack(batch: Batch, image: number): void {
    const { buffer } = this.#images
    const { sampled, sampledLogprob, topIds, topLogprobs, bytes } = this.#layout
    const count = batch.numSamples
    const wanted = asked(batch)
    const ints = ({ at }: Section, length: number) => new Int32Array(buffer, image * bytes + at, length)
    const floats = ({ at }: Section, length: number) => new Float32Array(buffer, image * bytes + at, length)
    batch.sampled.set(ints(sampled, count))
    dropUnfounded(batch)
    if (wanted === 'none') return
    batch.sampledLogprob.set(floats(sampledLogprob, count))
    if (wanted !== 'top') return
    batch.topIds.set(ints(topIds, count * MAX_TOP_LOGPROBS))
    batch.topLogprobs.set(floats(topLogprobs, count * MAX_TOP_LOGPROBS))
  }

  dispose(): void {
    this.#device.free(this.#address)
    this.#images.dispose()
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
