/** One step's input and output. The letters in shapes are those of backend.ts. */
import { assert } from '../errors.ts'
import { samplingColumns } from '../sampling.ts'

/**
 * The input and output of one step, as flat arrays of fixed capacity that the runner fills in place.
 * Row b feeds tokens[starts[b] … starts[b+1]) into the state in slots[b], which no other row of the step names. Rows of
 * fewer tokens come before rows of more, so that a backend finds those of one token together.
 */
export interface Batch {
  numTokens: number
  numRows: number
  readonly tokens: Int32Array // [maxTokens]
  readonly starts: Int32Array // [maxRows + 1]
  readonly slots: Int32Array // [maxRows]
  /**
   * For programs with flights only: a token −1 − s of a row of one token is what draw s of the launch before drew. The
   * row does not run, leaving state and counts untouched, when that is −1 or in stopIds[stopStarts[b] … stopStarts[b+1]).
   */
  readonly stopStarts: Int32Array // [maxRows + 1]
  stopIds: Int32Array
  /**
   * The slot that also gets the row's state from after the token; else NOWHERE. For backends with Guessing.keptRow: of tokens
   * of rows of 2 to so many, but the last.
   */
  readonly keeps: Int32Array // [maxTokens]

  /** Token positions (0 … numTokens) whose logits are computed. −1 − p: what a batch before kept as p, on backends that draw later. */
  numLogits: number
  readonly logitRows: Int32Array // [maxLogits]
  /** 0, or 1 + p: the row's normed hidden vector is kept as p, too. */
  readonly keptAs: Int32Array // [maxLogits]
  /**
   * Rows of logits, this one first, that are blended into it: the normed hidden vectors of as many logit rows are added,
   * each times its weight, which is blending their logits. 0 or 1: none.
   */
  readonly blendCounts: Int32Array // [maxLogits]
  readonly blendWeights: Float32Array // [maxLogits]

  /** Draws: sample s is drawn from logits row sampleRow[s]; several samples may share a row. */
  numSamples: number
  readonly sampleRow: Int32Array // [maxSamples]
  /** Slot whose penalty counts apply and are updated by the drawn token. */
  readonly sampleSlot: Int32Array // [maxSamples]
  /** [maxSamples, SAMPLE_FLOATS] f32, in the order of SampleFloat. */
  readonly sampleFloats: Float32Array
  /** [maxSamples, SAMPLE_INTS] i32, in the order of SampleInt. */
  readonly sampleInts: Int32Array
  /** Additive logit bias, concatenated: sample s owns entries biasStarts[s] … biasStarts[s+1). −Infinity bans. */
  readonly biasStarts: Int32Array // [maxSamples + 1]
  biasIds: Int32Array
  biasValues: Float32Array
  /**
   * Sets of tokens, one bit each, the lowest first: a draw whose SampleInt.mask is k has none but those of row k − 1. Each
   * row has at least one.
   */
  numMasks: number
  masks: Uint32Array // [numMasks, maskWords(V)]
  /** Draws whose masks come when the batch has been launched: ProgramFlights.drawLater. */
  numLater: number
  /** For such a mask: 1 when it has come; the draws of the others are −1. */
  readonly hasCome: Int32Array // [maxSamples]

  /** Out. The drawn token of each sample; −1 where the logits were not finite. */
  readonly sampled: Int32Array // [maxSamples]
  /** Out, for samples with topLogprobs ≥ 0: log-probability of the drawn token (of the raw logits). */
  readonly sampledLogprob: Float32Array // [maxSamples]
  /** Out: the topLogprobs best tokens, best first. */
  readonly topIds: Int32Array // [maxSamples, MAX_TOP_LOGPROBS]
  readonly topLogprobs: Float32Array // [maxSamples, MAX_TOP_LOGPROBS]
}

export const MAX_TOP_LOGPROBS = 20

/** In Batch.keeps. On `cuda` slot −1 is that of rows that do not run. */
export const NOWHERE = -2

/** Columns of `Batch.sampleFloats`: those numbers of sampling.ts that are not whole. */
export const SampleFloat = samplingColumns('float')

export const SAMPLE_FLOATS = Object.keys(SampleFloat).length

/** Columns of `Batch.sampleInts`. */
export const SampleInt = {
  ...samplingColumns('int'),
  /** Random stream of the draw: Philox4x32-10, key (seedLow, seedHigh), counter (position, stream, 0, 0). */
  seedLow: 1,
  seedHigh: 2,
  /** Index of the answer token being drawn, from 0. */
  position: 3,
  /** Which of the n choices of a request this is. */
  stream: 4,
  /** −1: no logprobs; k ≥ 0: the drawn token's and the k best. */
  topLogprobs: 5,
  /** 0: none; k: only tokens of row k − 1 of the batch's masks, before anything else; −k: likewise, and drawn later. */
  mask: 6,
  /**
   * 0: always drawn. t + 1: drawn if the sample before it, which counts into the same slot, drew token t; else it is −1 and
   * counts nothing. For backends that draw guesses.
   */
  after: 7,
} as const

export const SAMPLE_INTS = 8

/** Sizes a program is recorded for; a batch never exceeds them. */
export interface Capacity {
  readonly tokens: number
  readonly rows: number
  readonly logits: number
  readonly samples: number
  /** Steps to have on their way at once, where the backend can; its own choice when absent. */
  readonly flights?: number
}

/** Length of a row of masks. */
export function maskWords(vocabSize: number): number {
  return Math.ceil(vocabSize / 32)
}

/** Native code and kernels go as far as the batch's counts say, so the arrays must reach that far. */
export function assertRoom(batch: Batch, capacity: Capacity): void {
  const { numTokens, numRows, numLogits, numSamples } = batch
  assert(
    numTokens <= Math.min(capacity.tokens, batch.tokens.length) &&
      numRows <= Math.min(capacity.rows, batch.slots.length, batch.starts.length - 1) &&
      numLogits <= Math.min(capacity.logits, batch.logitRows.length) &&
      numSamples <= Math.min(capacity.samples, batch.sampled.length),
    `a batch of ${numTokens} tokens, ${numRows} rows, ${numLogits} logits, ${numSamples} samples over capacity`,
  )
}

/** Empty batch arrays for a capacity. */
export function createBatch(capacity: Capacity): Batch {
  const { tokens, rows, logits, samples } = capacity
  return {
    numTokens: 0,
    numRows: 0,
    tokens: new Int32Array(tokens),
    starts: new Int32Array(rows + 1),
    slots: new Int32Array(rows),
    stopStarts: new Int32Array(rows + 1),
    stopIds: new Int32Array(0),
    keeps: new Int32Array(tokens).fill(NOWHERE),
    numLogits: 0,
    logitRows: new Int32Array(logits),
    keptAs: new Int32Array(logits),
    blendCounts: new Int32Array(logits),
    blendWeights: new Float32Array(logits),
    numSamples: 0,
    sampleRow: new Int32Array(samples),
    sampleSlot: new Int32Array(samples),
    sampleFloats: new Float32Array(samples * SAMPLE_FLOATS),
    sampleInts: new Int32Array(samples * SAMPLE_INTS),
    biasStarts: new Int32Array(samples + 1),
    biasIds: new Int32Array(0),
    biasValues: new Float32Array(0),
    numMasks: 0,
    masks: new Uint32Array(0),
    numLater: 0,
    hasCome: new Int32Array(samples),
    sampled: new Int32Array(samples),
    sampledLogprob: new Float32Array(samples),
    topIds: new Int32Array(samples * MAX_TOP_LOGPROBS),
    topLogprobs: new Float32Array(samples * MAX_TOP_LOGPROBS),
  }
}
