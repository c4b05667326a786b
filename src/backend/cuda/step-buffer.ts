/**
 * One step's batch on its way to the device and back: page-locked images of the input and output arrays and their places
 * in device memory, for a fixed capacity. One copy goes up and one comes down. Knows nothing of kernels.
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

export class StepBuffer {
  readonly capacity: Capacity
  readonly maxBiases: number
  readonly #device: CudaDevice
  readonly #input: Input
  readonly #output: Output
  readonly #up: PinnedBuffer
  readonly #down: PinnedBuffer
  readonly #inputAddress: DevicePointer
  readonly #outputAddress: DevicePointer

  constructor(device: CudaDevice, capacity: Capacity, maxBiases = MIN_BIASES) {
    this.#device = device
    this.capacity = capacity
    this.maxBiases = maxBiases
    this.#input = inputLayout(capacity, maxBiases)
    this.#output = outputLayout(capacity.samples)
    this.#up = device.pinned(this.#input.bytes)
    this.#down = device.pinned(Math.max(ALIGNMENT, this.#output.bytes))
    this.#inputAddress = device.alloc(this.#input.bytes)
    this.#outputAddress = device.alloc(this.#down.bytes)
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

  /** Puts the copy of a batch on the stream. The step before must have run: its image is overwritten. */
  upload(batch: Batch): void {
    assert(this.holds(batch), 'a batch beyond its step buffer')
    const { numTokens, numRows, numLogits, numSamples } = batch
    const layout = this.#input
    const numBiases = batch.biasStarts[numSamples]!
    this.#ints(layout.counts).set([numTokens, numRows, numLogits, numSamples])
    this.#ints(layout.tokens).set(batch.tokens.subarray(0, numTokens))
    this.#ints(layout.starts).set(batch.starts.subarray(0, numRows + 1))
    this.#ints(layout.slots).set(batch.slots.subarray(0, numRows))
    this.#ints(layout.logitRows).set(batch.logitRows.subarray(0, numLogits))
    this.#ints(layout.sampleRow).set(batch.sampleRow.subarray(0, numSamples))
    this.#ints(layout.sampleSlot).set(batch.sampleSlot.subarray(0, numSamples))
    this.#floats(layout.sampleFloats).set(
      batch.sampleFloats.subarray(0, numSamples * SAMPLE_FLOATS),
    )
    this.#ints(layout.sampleInts).set(batch.sampleInts.subarray(0, numSamples * SAMPLE_INTS))
    this.#ints(layout.biasStarts).set(batch.biasStarts.subarray(0, numSamples + 1))
    this.#ints(layout.biasIds).set(batch.biasIds.subarray(0, numBiases))
    this.#floats(layout.biasValues).set(batch.biasValues.subarray(0, numBiases))
    const tokenRows = this.#ints(layout.tokenRows)
    for (let b = 0; b < numRows; b++) tokenRows.fill(b, batch.starts[b]!, batch.starts[b + 1]!)
    const end = numBiases > 0 ? layout.bytes : layout.biasIds.at
    this.#device.uploadAsync(this.#inputAddress, this.#up, end)
  }

  /** Puts the copy of the results on the stream. */
  download(batch: Batch): void {
    if (batch.numSamples === 0) return
    const bytes = wantsTop(batch) ? this.#output.bytes : this.#output.topIds.at
    this.#device.downloadAsync(this.#down, this.#outputAddress, bytes)
  }

  /** Hands the results to the batch, once the download has run. */
  unpack(batch: Batch): void {
    const { buffer } = this.#down
    const { sampled, sampledLogprob, topIds, topLogprobs } = this.#output
    const count = batch.numSamples
    batch.sampled.set(new Int32Array(buffer, sampled.at, count))
    batch.sampledLogprob.set(new Float32Array(buffer, sampledLogprob.at, count))
    if (!wantsTop(batch)) return
    batch.topIds.set(new Int32Array(buffer, topIds.at, count * MAX_TOP_LOGPROBS))
    batch.topLogprobs.set(new Float32Array(buffer, topLogprobs.at, count * MAX_TOP_LOGPROBS))
  }

  #ints({ at, length }: Section): Int32Array {
    return new Int32Array(this.#up.buffer, at, length)
  }

  #floats({ at, length }: Section): Float32Array {
    return new Float32Array(this.#up.buffer, at, length)
  }

  dispose(): void {
    this.#device.free(this.#inputAddress)
    this.#device.free(this.#outputAddress)
    this.#up.dispose()
    this.#down.dispose()
  }
}

function wantsTop({ numSamples, sampleInts }: Batch): boolean {
  for (let s = 0; s < numSamples; s++)
    if (sampleInts[s * SAMPLE_INTS + SampleInt.topLogprobs]! > 0) return true
  return false
}
