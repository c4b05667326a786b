/**
 * A batch on its way to the device: one buffer with the sizes, the place of each array, and the arrays, as kernels/webgpu/
 * step.wgsl reads them. Checks what kernels would follow out of their arrays. Knows no ops.
 */
/// <reference types="@webgpu/types" />
import { assert, SkeinError } from '../../errors.ts'
import {
  assertRoom,
  type Batch,
  type Capacity,
  MAX_TOP_LOGPROBS,
  maskWords,
  SAMPLE_FLOATS,
  SAMPLE_INTS,
  SampleInt,
} from '../batch.ts'
import { USAGE, type WebgpuDevice } from './device.ts'

/** Four sizes and thirteen places, in whole records. */
const HEADER_WORDS = 24
/** Of a token, and of the row of the same number: no step has more rows than tokens. */
const RECORD_WORDS = 8
/** −Infinity does not survive every shader compiler; scores below −1e38 are banned. */
const BAN = -3e38

export interface StepLimits {
  /** Ids of the table that tokens index; no end where the program embeds nothing. */
  readonly vocabulary: number
  /** Slots of the state pools, and of the penalties. */
  readonly slots: number
  readonly penaltySlots: number
  readonly logitVocabulary: number
}

export class StepBuffer {
  readonly #device: WebgpuDevice
  readonly #capacity: Capacity
  #words: Uint32Array
  #buffer: GPUBuffer
  #moves = 0

  constructor(device: WebgpuDevice, capacity: Capacity) {
    this.#device = device
    this.#capacity = capacity
    const { tokens, rows, logits, samples } = capacity
    const most = HEADER_WORDS + RECORD_WORDS * tokens + 2 * (rows + 1) + 3 * logits + 32 * (samples + 1)
    this.#words = new Uint32Array(most + 1024)
    this.#buffer = this.#create()
  }

  get buffer(): GPUBuffer {
    return this.#buffer
  }

  /** Changes when the buffer does. */
  get moves(): number {
    return this.#moves
  }

  #create(): GPUBuffer {
    return this.#device.buffer(this.#words.byteLength, USAGE.storage | USAGE.copyDst)
  }

  /** Puts the batch where the next launch reads it. */
  upload(batch: Batch, limits: StepLimits): void {
    assertBatch(batch, this.#capacity, limits)
    const { numTokens: T, numRows: B, numLogits: R, numSamples: S } = batch
    const arrays: readonly (Int32Array | Uint32Array | Float32Array)[] = [
      batch.logitRows.subarray(0, R),
      batch.blendCounts.subarray(0, R),
      batch.blendWeights.subarray(0, R),
      batch.sampleRow.subarray(0, S),
      batch.sampleSlot.subarray(0, S),
      batch.sampleFloats.subarray(0, S * SAMPLE_FLOATS),
      batch.sampleInts.subarray(0, S * SAMPLE_INTS),
      batch.biasStarts.subarray(0, S + 1),
      batch.biasIds,
      batch.biasValues.map((value) => Math.max(value, BAN)),
      batch.stopStarts.subarray(0, B + 1),
      batch.stopIds,
      batch.masks.subarray(0, batch.numMasks * maskWords(limits.logitVocabulary)),
    ]
    const records = recordsOf(batch)
    const size = HEADER_WORDS + records.length + arrays.reduce((sum, { length }) => sum + length, 0)
    if (size > this.#words.length) this.#grow(size)
    const words = this.#words
    const floats = new Float32Array(words.buffer)
    words.set([T, B, R, S])
    words.set(records, HEADER_WORDS)
    let at = HEADER_WORDS + records.length
    for (const [i, array] of arrays.entries()) {
      words[4 + i] = at
      const target = array instanceof Float32Array ? floats : words
      target.set(array, at)
      at += array.length
    }
    this.#device.write(this.#buffer, 0, words.subarray(0, at))
  }

  #grow(size: number): void {
    this.#device.free(this.#buffer)
    this.#words = new Uint32Array(2 * size)
    this.#buffer = this.#create()
    this.#moves++
  }

  dispose(): void {
    this.#device.free(this.#buffer)
  }
}

function recordsOf({ numRows, numTokens, starts, slots, tokens }: Batch): Int32Array {
  const records = new Int32Array(RECORD_WORDS * numTokens)
  const put = (at: number, row: number) => {
    records[at] = starts[row]!
    records[at + 1] = starts[row + 1]!
    records[at + 2] = slots[row]!
  }
  for (let b = 0; b < numRows; b++) {
    put(RECORD_WORDS * b + 4, b)
    for (let t = starts[b]!; t < starts[b + 1]!; t++) {
      records[RECORD_WORDS * t] = tokens[t]!
      put(RECORD_WORDS * t + 1, b)
    }
  }
  return records
}

/** Kernels follow these numbers without looking. */
function assertBatch(batch: Batch, capacity: Capacity, limits: StepLimits): void {
  const { numTokens: T, numRows: B, numLogits: R, numSamples: S } = batch
  assertRoom(batch, capacity)
  const slots = new Set<number>()
  for (let b = 0; b < B; b++) {
    const [start, end, slot] = [batch.starts[b]!, batch.starts[b + 1]!, batch.slots[b]!]
    assert(start >= 0 && start < end && end <= T, `starts of row ${b}: ${start} to ${end}`)
    assert(slot >= 0 && slot < limits.slots, `slot out of range: ${slot} of ${limits.slots}`)
    assert(!slots.has(slot), `the same slot ${slot} twice`)
    slots.add(slot)
  }
  for (let t = 0; t < T; t++) assert(batch.tokens[t]! < limits.vocabulary, `token id ${batch.tokens[t]} out of range`)
  for (let r = 0; r < R; r++)
    assert(batch.logitRows[r]! >= 0 && batch.logitRows[r]! < T, `logit row ${batch.logitRows[r]}`)
  for (let s = 0; s < S; s++) assertSample(batch, s, limits)
}

function assertSample(batch: Batch, s: number, limits: StepLimits): void {
  const row = batch.sampleRow[s]!
  const slot = batch.sampleSlot[s]!
  const top = batch.sampleInts[s * SAMPLE_INTS + SampleInt.topLogprobs]!
  assert(row >= 0 && row < batch.numLogits, `sample row ${row} of ${batch.numLogits}`)
  assert(slot >= 0 && slot < limits.penaltySlots, `penalty slot ${slot} of ${limits.penaltySlots}`)
  const mask = batch.sampleInts[s * SAMPLE_INTS + SampleInt.mask]!
  assert(mask >= 0 && mask <= batch.numMasks, `mask row ${mask} of ${batch.numMasks}`)
  assert(top <= MAX_TOP_LOGPROBS, `${top} top logprobs, ${MAX_TOP_LOGPROBS} at most`)
  for (let i = batch.biasStarts[s]!; i < batch.biasStarts[s + 1]!; i++) {
    const id = batch.biasIds[i]!
    assert(id >= 0 && id < limits.logitVocabulary, `bias token ${id}`)
    const value = batch.biasValues[i]!
    if (!(value < Number.POSITIVE_INFINITY))
      throw new SkeinError('invalid_request', 'a bias must be finite or −Infinity')
  }
}
