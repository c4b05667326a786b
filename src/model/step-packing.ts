/**
 * Rows of a step into the flat arrays of a batch, and what was drawn out of them again. Knows no program and no device;
 * which draws of an earlier flight a row feeds is looked up by the caller where the device does not.
 */
import {
  type Batch,
  MAX_TOP_LOGPROBS,
  SAMPLE_FLOATS,
  SAMPLE_INTS,
  SampleFloat,
  SampleInt,
} from '../backend/backend.ts'
import { assert } from '../errors.ts'
import type { BatchRow, Blend, Drawn, RowResult, SampleSpec } from './runner.ts'

/** Where the outputs of a row are in its batch, and which were asked for. */
export interface PackedRow {
  readonly numTokens: number
  /** First of its logits rows. */
  readonly logitRow: number
  /** First of its samples. */
  readonly sample: number
  /** Log-probabilities asked with each sample. */
  readonly logprobs: readonly (number | null)[]
  readonly hasAllLogits: boolean
}

/** Fills the batch. The arrays' lengths are the limits. */
export function packRows(batch: Batch, rows: readonly BatchRow[]): PackedRow[] {
  const seen = new Set<number>()
  const biases: [number, number][] = []
  const stops: number[] = []
  batch.numTokens = 0
  batch.numLogits = 0
  batch.numSamples = 0
  batch.numRows = 0
  const addRow = (slot: number, { tokens, stops: own }: BatchRow) => {
    const b = batch.numRows++
    assert(b < batch.slots.length, `more than ${batch.slots.length} rows`)
    assert(slot >= 0 && slot < batch.slots.length, `slot ${slot} of ${batch.slots.length}`)
    assert(!seen.has(slot), `slot ${slot} twice in one step`)
    seen.add(slot)
    assert(batch.numTokens + tokens.length <= batch.tokens.length, 'step over its token budget')
    batch.slots[b] = slot
    batch.starts[b] = batch.numTokens
    batch.stopStarts[b] = stops.length
    if (own) stops.push(...own)
    batch.tokens.set(tokens, batch.numTokens)
    batch.numTokens += tokens.length
    batch.starts[b + 1] = batch.numTokens
  }
  const packed = rows.map((row) => {
    assert(row.tokens.length > 0, 'a row of a step without tokens')
    addRow(row.slot, row)
    const packed = packOutputs(batch, row, biases)
    if (row.blend) packBlend(batch, row, row.blend, addRow)
    return packed
  })
  batch.stopStarts[batch.numRows] = stops.length
  batch.stopIds = Int32Array.from(stops)
  batch.biasStarts[batch.numSamples] = biases.length
  batch.biasIds = Int32Array.from(biases, ([token]) => token)
  batch.biasValues = Float32Array.from(biases, ([, value]) => value)
  return packed
}

/** Asks for the logits of a row's last token, or of all its tokens, and adds its draws. */
function packOutputs(batch: Batch, row: BatchRow, biases: [number, number][]): PackedRow {
  const { tokens, samples, allLogits = false, withHead = false } = row
  const { numLogits, numSamples } = batch
  const wanted = allLogits ? tokens.length : Number(withHead || samples.length > 0)
  assert(
    numLogits + wanted <= batch.logitRows.length,
    `more than ${batch.logitRows.length} logit rows`,
  )
  assert(
    numSamples + samples.length <= batch.sampled.length,
    `more than ${batch.sampled.length} draws`,
  )
  for (let t = batch.numTokens - wanted; t < batch.numTokens; t++) addLogitRow(batch, t)
  for (const spec of samples) {
    batch.biasStarts[batch.numSamples] = biases.length
    if (spec.bias) biases.push(...spec.bias)
    packSample(batch, batch.numSamples, batch.numLogits - 1, spec)
    batch.numSamples++
  }
  return {
    numTokens: tokens.length,
    logitRow: numLogits,
    sample: numSamples,
    logprobs: samples.map(({ logprobs }) => logprobs),
    hasAllLogits: allLogits,
  }
}

function addLogitRow(batch: Batch, token: number): void {
  const r = batch.numLogits++
  batch.logitRows[r] = token
  batch.blendCounts[r] = 0
}

/** The row itself has been packed just before, and the last of its logit rows is the one to draw from. */
function packBlend(
  batch: Batch,
  row: BatchRow,
  { weight, others }: Blend,
  addRow: (slot: number, row: BatchRow) => void,
): void {
  assert(row.allLogits !== true, 'a blended row with all its logits')
  const first = batch.numLogits - 1
  for (const { slot } of others) addRow(slot, row)
  if (row.samples.length === 0) return
  const room = batch.logitRows.length
  assert(first + others.length < room, `more than ${room} logit rows`)
  batch.blendCounts[first] = 1 + others.length
  batch.blendWeights[first] = weight
  const numTokens = row.tokens.length
  for (const [i, other] of others.entries()) {
    addLogitRow(batch, batch.numTokens - numTokens * (others.length - 1 - i) - 1)
    batch.blendWeights[first + 1 + i] = other.weight
  }
}

function packSample(batch: Batch, s: number, logitRow: number, spec: SampleSpec): void {
  const f = s * SAMPLE_FLOATS
  const { sampleFloats: floats, sampleInts: ints } = batch
  batch.sampleRow[s] = logitRow
  batch.sampleSlot[s] = spec.slot
  floats[f + SampleFloat.temperature] = spec.temperature
  floats[f + SampleFloat.topP] = spec.topP
  floats[f + SampleFloat.minP] = spec.minP
  floats[f + SampleFloat.presence] = spec.presencePenalty
  floats[f + SampleFloat.frequency] = spec.frequencyPenalty
  floats[f + SampleFloat.decay] = spec.penaltyDecay
  floats[f + SampleFloat.repetition] = spec.repetitionPenalty
  floats[f + SampleFloat.noise] = spec.noise ?? 0
  const i = s * SAMPLE_INTS
  ints[i + SampleInt.topK] = spec.topK
  ints[i + SampleInt.seedLow] = Number(BigInt.asIntN(32, spec.seed))
  ints[i + SampleInt.seedHigh] = Number(BigInt.asIntN(32, spec.seed >> 32n))
  ints[i + SampleInt.position] = spec.position
  ints[i + SampleInt.stream] = spec.stream
  ints[i + SampleInt.topLogprobs] =
    spec.logprobs === null ? -1 : Math.min(spec.logprobs, MAX_TOP_LOGPROBS)
}

/** What was drawn for a row, once the batch's outputs are readable. */
export function readRow(batch: Batch, { sample, logprobs }: PackedRow): Drawn[] {
  return logprobs.map((k, i) => readDrawn(batch, sample + i, k))
}

/** Of a row that did not run. */
export function idleResult({ samples }: Pick<BatchRow, 'samples'>): RowResult {
  return { drawn: samples.map(() => NOTHING_DRAWN) }
}

const NOTHING_DRAWN: Drawn = { token: -1, logprob: null }

function readDrawn(batch: Batch, s: number, k: number | null): Drawn {
  const token = batch.sampled[s]!
  if (k === null || token < 0) return { token, logprob: null }
  const top = Array.from({ length: Math.min(k, MAX_TOP_LOGPROBS) }, (_, i) => ({
    token: batch.topIds[s * MAX_TOP_LOGPROBS + i]!,
    logprob: batch.topLogprobs[s * MAX_TOP_LOGPROBS + i]!,
  }))
  return { token, logprob: { token, logprob: batch.sampledLogprob[s]!, top } }
}

/** Which draw of the flight before a row feeds; null for a row of known tokens. */
export function fedDraw({ tokens }: Pick<BatchRow, 'tokens'>): number | null {
  const first = tokens[0]!
  if (first >= 0) return null
  assert(tokens.length === 1, 'a row feeds a draw and more')
  return -1 - first
}

/** Whether a row that feeds `token`, drawn by the flight before, runs. */
export function runsOn(
  token: number,
  { stops }: { readonly stops?: ReadonlySet<number> | undefined },
): boolean {
  return token >= 0 && stops?.has(token) !== true
}
