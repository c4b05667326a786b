/**
 * The Runner over a recorded model: packs rows of a step into the batch arrays, replays the program, unpacks what was
 * drawn. Owns the slots' device memory. Decides nothing: which rows run is the scheduler's business.
 */
import {
  type Backend,
  type Batch,
  type Capacity,
  createBatch,
  MAX_TOP_LOGPROBS,
  type PenaltyPool,
  type Program,
  SAMPLE_FLOATS,
  SAMPLE_INTS,
  SampleFloat,
  SampleInt,
  type StateData,
  type StatePool,
  type Tensor,
} from '../backend/backend.ts'
import { assert } from '../errors.ts'
import type { Model } from './model.ts'
import type { BatchRow, Drawn, ModelInfo, RowResult, Runner, SampleSpec } from './runner.ts'

export interface RunnerOptions {
  readonly numSlots: number
  /** Token budget of one step. */
  readonly maxTokens: number
  readonly fingerprint: string
  /** The state before any token, where the model was tuned to another than zero. */
  readonly startState?: StateData | null
}

/** Rows of logits beyond one per slot, so that scoring a prompt moves on while every slot decodes. */
const SCORED_TOKENS = 32

export class ModelRunner implements Runner {
  readonly info: ModelInfo
  readonly numSlots: number
  readonly maxTokens: number
  readonly maxLogits: number
  readonly maxSamples: number
  readonly #backend: Backend
  readonly #states: StatePool
  readonly #penalties: PenaltyPool
  readonly #logits: Tensor
  readonly #program: Program
  readonly #batch: Batch
  readonly #startState: StateData | null

  constructor(model: Model, backend: Backend, options: RunnerOptions) {
    const { numSlots, maxTokens, fingerprint, startState = null } = options
    const { stateShape, vocabSize } = model
    this.numSlots = numSlots
    this.maxTokens = maxTokens
    this.maxSamples = numSlots
    this.maxLogits = Math.min(numSlots + SCORED_TOKENS, maxTokens)
    this.#backend = backend
    this.#startState = startState
    this.#states = backend.statePool(stateShape, numSlots)
    this.#penalties = backend.penaltyPool(vocabSize, numSlots)
    const capacity: Capacity = {
      tokens: maxTokens,
      rows: numSlots,
      logits: this.maxLogits,
      samples: this.maxSamples,
    }
    this.#batch = createBatch(capacity)
    this.#logits = backend.tensor([capacity.logits, vocabSize])
    const hidden = backend.activation([capacity.logits, stateShape.channels])
    this.#program = backend.record(capacity, (ops) => {
      const [x] = model.forward(ops, this.#states, capacity)
      assert(model.output !== null, 'a runner over a part of a model')
      ops.gatherNorm(hidden, x, model.output.ln_out)
      ops.logits(this.#logits, hidden, model.output.head)
      ops.sample(this.#logits, this.#penalties)
    })
    const { architecture, numParameters, weightType, weightBytes, tableBytes } = model
    this.info = {
      architecture,
      vocabSize,
      numParameters,
      stateShape,
      weightType,
      weightBytes,
      tableBytes,
      stateBytes: this.#states.bytesPerSlot,
      fingerprint,
      device: backend.description,
    }
  }

  step(rows: readonly BatchRow[]): RowResult[] {
    const packed = this.#pack(rows)
    this.#program.run(this.#batch)
    return rows.map((row, b) => this.#unpack(row, packed[b]!))
  }

  /** Fills the batch; returns for each row the index of its first logits row and of its first sample. */
  #pack(rows: readonly BatchRow[]): { logitRow: number; sample: number }[] {
    const batch = this.#batch
    const seen = new Set<number>()
    const biases: [number, number][] = []
    assert(rows.length <= this.numSlots, `${rows.length} rows > ${this.numSlots} slots`)
    batch.numTokens = 0
    batch.numLogits = 0
    batch.numSamples = 0
    batch.numRows = rows.length
    const packed = rows.map((row, b) => {
      assert(row.tokens.length > 0, 'a row of a step without tokens')
      assert(row.slot >= 0 && row.slot < this.numSlots, `slot ${row.slot} of ${this.numSlots}`)
      assert(!seen.has(row.slot), `slot ${row.slot} twice in one step`)
      seen.add(row.slot)
      assert(batch.numTokens + row.tokens.length <= this.maxTokens, 'step over its token budget')
      batch.slots[b] = row.slot
      batch.starts[b] = batch.numTokens
      batch.tokens.set(row.tokens, batch.numTokens)
      batch.numTokens += row.tokens.length
      batch.starts[b + 1] = batch.numTokens
      return this.#packOutputs(row, biases)
    })
    batch.biasStarts[batch.numSamples] = biases.length
    batch.biasIds = Int32Array.from(biases, ([token]) => token)
    batch.biasValues = Float32Array.from(biases, ([, value]) => value)
    return packed
  }

  /** Asks for the logits of a row's last token, or of all its tokens, and adds its draws. */
  #packOutputs(row: BatchRow, biases: [number, number][]): { logitRow: number; sample: number } {
    const batch = this.#batch
    const at = { logitRow: batch.numLogits, sample: batch.numSamples }
    const wanted = row.allLogits ? row.tokens.length : Math.min(1, row.samples.length)
    assert(batch.numLogits + wanted <= this.maxLogits, `more than ${this.maxLogits} logit rows`)
    assert(
      batch.numSamples + row.samples.length <= this.maxSamples,
      `more than ${this.maxSamples} draws`,
    )
    for (let t = batch.numTokens - wanted; t < batch.numTokens; t++)
      batch.logitRows[batch.numLogits++] = t
    for (const spec of row.samples) {
      batch.biasStarts[batch.numSamples] = biases.length
      if (spec.bias) biases.push(...spec.bias)
      packSample(batch, batch.numSamples, batch.numLogits - 1, spec)
      batch.numSamples++
    }
    return at
  }

  #unpack(row: BatchRow, { logitRow, sample }: { logitRow: number; sample: number }): RowResult {
    const drawn = row.samples.map((spec, i) => readDrawn(this.#batch, sample + i, spec))
    if (!row.allLogits) return { drawn }
    const V = this.info.vocabSize
    const logits = this.#backend.readTensor(this.#logits, logitRow * V, row.tokens.length * V)
    return { drawn, logits }
  }

  clearSlot(slot: number): void {
    if (this.#startState === null) this.#states.clear(slot)
    else this.#states.write(slot, this.#startState)
    this.#penalties.reset(slot, new Int32Array(0))
  }

  copySlot(from: number, to: number): void {
    this.#states.copy(from, to)
  }

  poisonSlot(slot: number): void {
    this.#states.poison(slot)
  }

  resetPenalties(slot: number, promptTokens: Int32Array): void {
    this.#penalties.reset(slot, promptTokens)
  }

  readState(slot: number): StateData {
    return this.#states.read(slot)
  }

  writeState(slot: number, state: StateData): void {
    this.#states.write(slot, state)
  }

  dispose(): void {
    this.#program.dispose()
    this.#backend.dispose()
  }
}

function packSample(batch: Batch, s: number, logitRow: number, spec: SampleSpec): void {
  const floats = batch.sampleFloats.subarray(s * SAMPLE_FLOATS, (s + 1) * SAMPLE_FLOATS)
  const ints = batch.sampleInts.subarray(s * SAMPLE_INTS, (s + 1) * SAMPLE_INTS)
  batch.sampleRow[s] = logitRow
  batch.sampleSlot[s] = spec.slot
  floats[SampleFloat.temperature] = spec.temperature
  floats[SampleFloat.topP] = spec.topP
  floats[SampleFloat.minP] = spec.minP
  floats[SampleFloat.presence] = spec.presencePenalty
  floats[SampleFloat.frequency] = spec.frequencyPenalty
  floats[SampleFloat.decay] = spec.penaltyDecay
  floats[SampleFloat.repetition] = spec.repetitionPenalty
  ints[SampleInt.topK] = spec.topK
  ints[SampleInt.seedLow] = Number(BigInt.asIntN(32, spec.seed))
  ints[SampleInt.seedHigh] = Number(BigInt.asIntN(32, spec.seed >> 32n))
  ints[SampleInt.position] = spec.position
  ints[SampleInt.stream] = spec.stream
  ints[SampleInt.topLogprobs] =
    spec.logprobs === null ? -1 : Math.min(spec.logprobs, MAX_TOP_LOGPROBS)
}

function readDrawn(batch: Batch, s: number, spec: SampleSpec): Drawn {
  const token = batch.sampled[s]!
  if (spec.logprobs === null || token < 0) return { token, logprob: null }
  const top = Array.from({ length: Math.min(spec.logprobs, MAX_TOP_LOGPROBS) }, (_, i) => ({
    token: batch.topIds[s * MAX_TOP_LOGPROBS + i]!,
    logprob: batch.topLogprobs[s * MAX_TOP_LOGPROBS + i]!,
  }))
  return { token, logprob: { token, logprob: batch.sampledLogprob[s]!, top } }
}
