/**
 * Rows of a step into the flat arrays of a batch, and what was drawn out of them again. Knows no program and no device;
 * which draws of an earlier flight a row feeds is looked up by the caller where the device does not.
 */
import { type Batch, MAX_TOP_LOGPROBS, NOWHERE, SAMPLE_FLOATS, SAMPLE_INTS, SampleInt } from '../../backend/batch.ts'
import { assert } from '../../errors.ts'
import { SAMPLING_ROWS, type SamplingName } from '../../sampling.ts'
import type { BatchRow, Blend, Drawn, Guesses, RowResult, SampleSpec, TokenLogprob } from '../runner.ts'

const FLOAT_NAMES = namesInOrder('float')
const INT_NAMES = namesInOrder('int')

function namesInOrder(kind: 'float' | 'int'): SamplingName[] {
  const own = SAMPLING_ROWS.filter(([, row]) => row[kind] !== undefined)
  return own.sort(([, a], [, b]) => a[kind]! - b[kind]!).map(([name]) => name)
}

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
  /** Rows of hidden states to read, and the first of them. */
  readonly numHidden: number
  readonly hiddenRow: number
}

/**
 * Fills the batch. The arrays' lengths are the limits. Outputs are in the order of the rows; inputs need not be. `states`:
 * which state of the pool is each slot's, and behind the slots each spare's; the slot's own number where absent.
 */
export function packRows(batch: Batch, rows: readonly BatchRow[], states?: Int32Array): PackedRow[] {
  const ends = packInputs(batch, rows, states)
  const biases: Biases = { length: 0, parts: [] }
  batch.numMasks = 0
  batch.numLater = 0
  batch.numLogits = 0
  batch.numSamples = 0
  const { specs } = keptOf(batch)
  const packed = rows.map((row, i) => {
    const own = ends[i]!
    const packed = packOutputs(batch, row, own[0] ?? 0, biases, specs)
    if (row.blend) packBlend(batch, row, row.blend, own.slice(1))
    return packed
  })
  batch.biasStarts[batch.numSamples] = biases.length
  batch.biasIds = new Int32Array(biases.length)
  batch.biasValues = new Float32Array(biases.length)
  let at = 0
  for (const { ids, values } of biases.parts) {
    batch.biasIds.set(ids, at)
    batch.biasValues.set(values, at)
    at += ids.length
  }
  return packed
}

/** The biases of a request as columns. */
interface Bias {
  readonly ids: Int32Array
  readonly values: Float32Array
}

/** Those of the draws of a step, one after the other. */
interface Biases {
  length: number
  readonly parts: Bias[]
}

/** A request's are the same at every draw, of which a step with guesses has many. */
const BIASES = new WeakMap<ReadonlyMap<number, number>, Bias>()

function addBias(biases: Biases, bias: ReadonlyMap<number, number>): void {
  let columns = BIASES.get(bias)
  if (columns === undefined) {
    columns = { ids: Int32Array.from(bias.keys()), values: Float32Array.from(bias.values()) }
    BIASES.set(bias, columns)
  }
  biases.parts.push(columns)
  biases.length += bias.size
}

/** A request's are the same at every step. */
const STOPS = new WeakMap<ReadonlySet<number>, readonly number[]>()

function addStops(stops: number[], own: ReadonlySet<number>): void {
  let list = STOPS.get(own)
  if (list === undefined) {
    list = [...own]
    STOPS.set(own, list)
  }
  for (let i = 0; i < list.length; i++) stops.push(list[i]!)
}

/** The tokens of every slot, the shortest rows first. Returns where those of each row end, its blended slots after its own. */
function packInputs(batch: Batch, rows: readonly BatchRow[], states?: Int32Array): number[][] {
  const inputs: { readonly row: BatchRow; readonly slot: number; readonly ends: number[] }[] = []
  let [isSorted, longest] = [true, 0]
  const allEnds = rows.map((row) => {
    const ends: number[] = []
    const { length } = row.tokens
    if (length === 0) return ends
    if (length < longest) isSorted = false
    longest = length
    inputs.push({ row, slot: row.slot, ends })
    if (row.blend) for (const { slot } of row.blend.others) inputs.push({ row, slot, ends })
    return ends
  })
  assert(inputs.length <= batch.slots.length, `more than ${batch.slots.length} rows`)
  const kept = keptOf(batch)
  const { seen } = kept
  const step = ++kept.numSteps
  const stops: number[] = []
  batch.keeps.fill(NOWHERE, 0, batch.numTokens)
  batch.numTokens = 0
  batch.numRows = inputs.length
  // Stable: the slots of a row stay in their order.
  if (!isSorted) inputs.sort((a, b) => a.row.tokens.length - b.row.tokens.length)
  // No message is made for a row that is as it should be: it would take as long as the row.
  for (let b = 0; b < inputs.length; b++) {
    const { row, slot, ends } = inputs[b]!
    const { tokens } = row
    if (slot < 0 || slot >= batch.slots.length) assert(false, `slot ${slot} of ${batch.slots.length}`)
    if (seen[slot] === step) assert(false, `slot ${slot} twice in one step`)
    seen[slot] = step
    const end = batch.numTokens + tokens.length
    assert(end <= batch.tokens.length, 'step over its token budget')
    batch.slots[b] = states?.[slot] ?? slot
    batch.starts[b] = batch.numTokens
    batch.stopStarts[b] = stops.length
    if (row.stops) addStops(stops, row.stops)
    if (tokens.length === 1) batch.tokens[batch.numTokens] = tokens[0]!
    else batch.tokens.set(tokens, batch.numTokens)
    if (row.guesses !== undefined && row.guesses.every > 0) packKept(batch, end, row.guesses, states)
    batch.numTokens = end
    ends.push(end)
  }
  batch.starts[batch.numRows] = batch.numTokens
  batch.stopStarts[batch.numRows] = stops.length
  batch.stopIds = new Int32Array(stops)
  return allEnds
}

/** States between the tokens of a row, which ends before token `end`. */
function packKept(batch: Batch, end: number, { count, spares, every }: Guesses, states: Int32Array | undefined): void {
  assert(states !== undefined && spares.length === Math.ceil(count / every), `${spares.length} places for states`)
  const first = end - 1 - count
  for (const [i, spare] of spares.entries()) batch.keeps[first + i * every] = states[batch.slots.length + spare]!
}

/** Of most rows: one draw. */
const NO_LOGPROBS = [null] as const

/** Asks for the logits of a row's last token, or of all its tokens, which end before token `end`; adds its draws. */
function packOutputs(batch: Batch, row: BatchRow, end: number, biases: Biases, lastSpecs: SampleSpec[]): PackedRow {
  const { tokens, samples, allLogits = false, withHead = false, hidden, guesses } = row
  const isPlain = row.blend === undefined && guesses === undefined && !allLogits && !hidden
  if (row.drawsLater === true || tokens.length === 0)
    assert(isPlain && samples.length === 1, 'a row that draws later is more than its draw')
  assert(row.drawsLater !== true || !samples[0]?.mask, 'a mask of a draw that is made later')
  const { numLogits, numSamples } = batch
  const numHidden = hidden === 'all' ? tokens.length : Number(hidden === 'last')
  const one = withHead || samples.length > 0
  const numGuesses = guesses?.count ?? 0
  const wanted = allLogits ? tokens.length : Math.max(numHidden, Number(one) + numGuesses)
  if (guesses !== undefined) assertGuesses(row, guesses)
  if (numLogits + wanted > batch.logitRows.length) assert(false, `more than ${batch.logitRows.length} logit rows`)
  if (numSamples + samples.length > batch.sampled.length) assert(false, `more than ${batch.sampled.length} draws`)
  const [first] = samples
  for (let t = end - wanted; t < end; t++) addLogitRow(batch, tokens.length > 0 ? t : -1 - first!.slot)
  if (row.drawsLater === true) batch.keptAs[batch.numLogits - 1] = 1 + first!.slot
  for (let i = 0; i < samples.length; i++) {
    const spec = samples[i]!
    batch.biasStarts[batch.numSamples] = biases.length
    if (spec.bias) addBias(biases, spec.bias)
    const s = batch.numSamples
    const isAfterGuess = numGuesses > 0 && i > 0
    const logitRow = batch.numLogits - 1 - (numGuesses > 0 ? numGuesses - i : 0)
    const after = isAfterGuess ? 1 + tokens[tokens.length - 1 - numGuesses + i]! : 0
    packSample(batch, s, logitRow, after, spec)
    if (row.drawsLater === true) packLater(batch, s)
    if (lastSpecs[s] !== spec) packNumbers(batch, s, spec)
    lastSpecs[s] = spec
    batch.numSamples++
  }
  return {
    numTokens: tokens.length,
    logitRow: numLogits,
    sample: numSamples,
    logprobs: samples.length === 1 && first!.logprobs === null ? NO_LOGPROBS : samples.map(({ logprobs }) => logprobs),
    hasAllLogits: allLogits,
    numHidden,
    hiddenRow: numLogits + wanted - numHidden,
  }
}

function assertGuesses(row: BatchRow, { count }: Guesses): void {
  const { tokens, samples, blend, allLogits = false, hidden } = row
  const isPlain = blend === undefined && !allLogits && hidden === undefined
  assert(isPlain, 'a row with guesses is more than its draws')
  const isWhole = count > 0 && count < tokens.length && samples.length === count + 1
  assert(isWhole, `${count} guesses in ${tokens.length} tokens with ${samples.length} draws`)
}

function addLogitRow(batch: Batch, token: number): void {
  const r = batch.numLogits++
  batch.logitRows[r] = token
  batch.keptAs[r] = 0
  batch.blendCounts[r] = 0
}

/** The outputs of the row itself are the last of the batch; those of its other slots, whose tokens end there, follow. */
function packBlend(batch: Batch, row: BatchRow, { weight, others }: Blend, ends: readonly number[]): void {
  assert(row.allLogits !== true && row.hidden === undefined, 'a blended row with more than its draws')
  if (row.samples.length === 0) return
  const first = batch.numLogits - 1
  const room = batch.logitRows.length
  assert(first + others.length < room, `more than ${room} logit rows`)
  batch.blendCounts[first] = 1 + others.length
  batch.blendWeights[first] = weight
  for (const [i, other] of others.entries()) {
    addLogitRow(batch, ends[i]! - 1)
    batch.blendWeights[first + 1 + i] = other.weight
  }
}

function packSample(batch: Batch, s: number, logitRow: number, after: number, spec: SampleSpec): void {
  const ints = batch.sampleInts
  batch.sampleRow[s] = logitRow
  batch.sampleSlot[s] = spec.slot
  const i = s * SAMPLE_INTS
  ints[i + SampleInt.mask] = spec.mask === undefined ? 0 : packMask(batch, spec.mask)
  ints[i + SampleInt.after] = after
  ints[i + SampleInt.position] = spec.position
}

/** What is kept of the steps that a batch was filled for. */
interface Kept {
  /**
   * Of each sample the last. A sequence draws all its tokens by the same numbers, most often as the same sample of a step: what
   * its columns hold already is not written again.
   */
  readonly specs: SampleSpec[]
  numSteps: number
  /** Of each slot the last step that named it. */
  readonly seen: Float64Array
}

const KEPT = new WeakMap<Batch, Kept>()

function keptOf(batch: Batch): Kept {
  const known = KEPT.get(batch)
  if (known !== undefined) return known
  const none = { specs: [], numSteps: 0, seen: new Float64Array(batch.slots.length) }
  KEPT.set(batch, none)
  return none
}

function packNumbers({ sampleFloats, sampleInts }: Batch, s: number, spec: SampleSpec): void {
  const i = s * SAMPLE_INTS
  sampleInts[i + SampleInt.seedLow] = Number(BigInt.asIntN(32, spec.seed))
  sampleInts[i + SampleInt.seedHigh] = Number(BigInt.asIntN(32, spec.seed >> 32n))
  sampleInts[i + SampleInt.stream] = spec.stream
  sampleInts[i + SampleInt.topLogprobs] = spec.logprobs === null ? -1 : Math.min(spec.logprobs, MAX_TOP_LOGPROBS)
  for (const [column, name] of FLOAT_NAMES.entries()) sampleFloats[s * SAMPLE_FLOATS + column] = spec[name]
  for (const [column, name] of INT_NAMES.entries()) sampleInts[i + column] = spec[name]
}

/** Which row of the masks it is, from 1. */
function packMask(batch: Batch, mask: Uint32Array): number {
  const row = batch.numMasks++
  writeMask(batch, row, mask)
  return 1 + row
}

function writeMask(batch: Batch, row: number, mask: Uint32Array): void {
  const at = row * mask.length
  if (batch.masks.length < at + mask.length) {
    const grown = new Uint32Array(Math.min(2 * at + mask.length, batch.sampled.length * mask.length))
    grown.set(batch.masks)
    batch.masks = grown
  }
  batch.masks.set(mask, at)
}

/** The mask comes when the batch is in flight. */
function packLater(batch: Batch, s: number): void {
  batch.hasCome[batch.numMasks] = 0
  batch.sampleInts[s * SAMPLE_INTS + SampleInt.mask] = -++batch.numMasks
  batch.numLater++
}

/** The masks of the draws that are made later, in their order; null where it has not come. */
export function packMasks(batch: Batch, masks: readonly (Uint32Array | null)[]): void {
  const { numLater } = batch
  assert(masks.length === numLater, `${masks.length} masks of ${numLater} draws`)
  let next = 0
  for (let s = 0; s < batch.numSamples; s++) {
    const row = -1 - batch.sampleInts[s * SAMPLE_INTS + SampleInt.mask]!
    if (row < 0) continue
    const mask = masks[next++]!
    if (mask === null) continue
    batch.hasCome[row] = 1
    writeMask(batch, row, mask)
  }
}

/** The result of a row that did not run. */
export function idleResult(numSamples: number): RowResult {
  return { drawn: Array.from({ length: numSamples }, () => NOTHING_DRAWN) }
}

const NOTHING_DRAWN: Drawn = { token: -1, logprob: null }

export function readDrawn(batch: Batch, s: number, k: number | null): Drawn {
  const token = batch.sampled[s]!
  if (k === null || token < 0) return { token, logprob: null }
  const top: TokenLogprob['top'][number][] = []
  const first = s * MAX_TOP_LOGPROBS
  for (let at = first; at < first + Math.min(k, MAX_TOP_LOGPROBS); at++)
    top.push({ token: batch.topIds[at]!, logprob: batch.topLogprobs[at]! })
  return { token, logprob: { token, logprob: batch.sampledLogprob[s]!, top } }
}

/** Which draw of the flight before a row feeds; null for a row of known tokens. */
export function fedDraw({ tokens }: Pick<BatchRow, 'tokens'>): number | null {
  const first = tokens[0] ?? 0
  if (first >= 0) return null
  assert(tokens.length === 1, 'a row feeds a draw and more')
  return -1 - first
}

/** Whether a row that feeds `token`, drawn by the flight before, runs. */
export function runsOn(token: number, { stops }: { readonly stops?: ReadonlySet<number> | undefined }): boolean {
  return token >= 0 && stops?.has(token) !== true
}
