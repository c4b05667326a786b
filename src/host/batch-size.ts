/**
 * Chooses the slots and the tokens per step: as asked, or to fit the memory that is free after loading the weights. A
 * batch that cannot fit device memory is refused at start, never at a request.
 */
import type { StateShape } from '../backend/backend.ts'
import { SkeinError } from '../errors.ts'
import { MAX_GUESSES, MAX_SPARE_PLACES, SCORED_TOKENS } from '../model/run/model-runner.ts'
import type { Runner } from '../model/runner.ts'

export type BatchSize = Pick<Runner, 'numSlots' | 'maxTokens' | 'numKept'>

export interface FreeMemory {
  readonly bytes: number
  /** GPU memory is a hard limit; host memory may be freed by other programs. */
  readonly isDevice: boolean
  /** Part of the free memory that steps of this size need besides buffers and states: copies of matrices. */
  scratchBytes?(maxTokens: number): number
  /** Part of the free memory that a slot needs besides its state, with this many slots: the log of an RWKV-7 state. */
  logBytes?(shape: StateShape, numSlots: number): number
  /** Where a GPU reads no more than so many bytes of a buffer in one launch, of which a step's has used some already. */
  readonly bound?: { readonly bytes: number; readonly usedBytes: number }
}

/** Model facts that determine a batch's memory. */
interface BatchModel {
  readonly stateShape: StateShape
  readonly vocabSize: number
  /** Vectors of C floats per token besides those of the ops. */
  readonly moreVectors?: number
  /** Maximum rows with guesses, as far as there are slots for them. */
  readonly guessingRows?: number
  /** Their states between guesses are kept, where there is room. */
  readonly keepsStates?: boolean
}

const HOST = { stepTokens: 512, maxSlots: 64 } as const
const DEVICE = { stepTokens: 2048, maxSlots: 256 } as const
/** Share of free memory for states if the number of slots is chosen here. */
const STATE_MEMORY_SHARE = 0.25
/** Share of what is left after that for states between guesses. */
const KEPT_MEMORY_SHARE = 0.25
/**
 * Vectors of C floats, or their equivalent, that the ops of a step hold per token, including inputs and sums of fp8.
 */
const VECTORS_PER_TOKEN = 18
/** Graphs, work space of matrix products, alignment, and buffers for moving states (backend/cuda/state-lanes.ts). */
const DEVICE_RESERVE_BYTES = 1 << 30

/** The same, and the rest, where activations are f32: RWKV-7 has 21.5, RWKV-6 20.5, RWKV-7a 25. */
const BOUND_VECTORS = 26

export function chooseBatchSize(
  asked: { readonly slots?: number | undefined; readonly maxTokens?: number | undefined },
  model: BatchModel,
  free: FreeMemory,
): BatchSize {
  const { stepTokens, maxSlots } = free.isDevice ? DEVICE : HOST
  const most = Math.floor((STATE_MEMORY_SHARE * free.bytes) / bytesPerSlot(model, free, maxSlots))
  const numSlots = asked.slots ?? Math.max(1, Math.min(maxSlots, most, boundSlots(model, free)))
  const usual = Math.max(1, Math.min(stepTokens, boundTokens(model, free, numSlots)))
  // All slots can decode in one step, which still leaves a quarter of it to prompts.
  const maxTokens = Math.max(asked.maxTokens ?? usual, Math.ceil(TOKENS_PER_SLOT * numSlots))
  const left = free.isDevice ? leftBeside({ numSlots, maxTokens }, model, free) : 0
  return { numSlots, maxTokens, numKept: model.keepsStates === true ? keptStates(left, numSlots, model, free) : 0 }
}

/** A row has one place anyway. */
function keptStates(left: number, numSlots: number, model: BatchModel, free: FreeMemory): number {
  const most = (MAX_GUESSES - 1) * Math.min(numSlots, model.guessingRows ?? 0)
  return Math.min(most, Math.floor((KEPT_MEMORY_SHARE * left) / stateBytes(model, free, numSlots)))
}

const TOKENS_PER_SLOT = 4 / 3

/** Slots that fit what a GPU binds at once: states of a layer, penalties, and the step with its logits. */
function boundSlots(model: BatchModel, free: FreeMemory): number {
  if (free.bound === undefined) return Number.POSITIVE_INFINITY
  const { stateShape, vocabSize } = model
  const { bytes } = free.bound
  // Two slots are not requests'; penalties have more places than there are slots.
  const states = bytes / stateBytes({ ...model, stateShape: { ...stateShape, layers: 1 } }, free, 1) - 2
  const penalties = bytes / (4 * vocabSize) - MAX_SPARE_PLACES
  const ofStep = boundBytes(model, free.bound) / (8 * vocabSize + TOKENS_PER_SLOT * boundBytesPerToken(model))
  return Math.floor(Math.min(states, penalties, ofStep))
}

function boundTokens(model: BatchModel, { bound }: FreeMemory, numSlots: number): number {
  if (bound === undefined) return Number.POSITIVE_INFINITY
  return Math.floor((boundBytes(model, bound) - 8 * model.vocabSize * numSlots) / boundBytesPerToken(model))
}

/** For slots, each with logits and the sampler's scratch, and tokens. */
function boundBytes({ vocabSize }: BatchModel, { bytes, usedBytes }: NonNullable<FreeMemory['bound']>): number {
  return bytes - usedBytes - 4 * SCORED_TOKENS * vocabSize
}

function boundBytesPerToken({ stateShape }: BatchModel): number {
  return 4 * BOUND_VECTORS * stateShape.channels
}

/**
 * A slot holds a state, penalty counts (4 bytes) and flags (1), a row of logits and the sampler's scratch (4 each).
 * States count as f32 with a log, which is a little too much for f16 and RWKV-6.
 */
function bytesPerSlot(model: BatchModel, free: FreeMemory, slots: number) {
  return stateBytes(model, free, slots) + 13 * model.vocabSize
}

function stateBytes({ stateShape }: BatchModel, free: FreeMemory, slots: number) {
  const { layers, channels, headSize } = stateShape
  return 4 * layers * channels * (2 + headSize) + (free.logBytes?.(stateShape, slots) ?? 0)
}

/** Rows of logits beyond one per slot, penalties of answers without a slot, and a prompt's tokens for the penalties. */
function bytesBesidesSlots({ vocabSize }: BatchModel) {
  return (4 * (SCORED_TOKENS + 1) + 5 * MAX_SPARE_PLACES) * vocabSize
}

/** Bytes of a row with guesses: the state before it, and for each guess a row of logits and the sampler's scratch. */
function bytesPerGuessingRow(model: BatchModel, free: FreeMemory, slots: number) {
  return stateBytes(model, free, slots) + 8 * MAX_GUESSES * model.vocabSize
}

/** Bytes of device memory that a batch of this size leaves. Throws where it does not fit. */
function leftBeside(size: Omit<BatchSize, 'numKept'>, model: BatchModel, free: FreeMemory): number {
  const perToken = 4 * (VECTORS_PER_TOKEN + (model.moreVectors ?? 0)) * model.stateShape.channels
  const guessingRows = Math.min(size.numSlots, model.guessingRows ?? 0)
  // Whether states have logs depends on the number of all places on the device.
  const places = size.numSlots + guessingRows
  const perSlot = bytesPerSlot(model, free, places)
  // The device has one more slot, for rows that turn out not to run.
  const guessing = guessingRows * bytesPerGuessingRow(model, free, places)
  const fixed = DEVICE_RESERVE_BYTES + bytesBesidesSlots(model) + perSlot + guessing
  const ofStep = size.maxTokens * perToken + (free.scratchBytes?.(size.maxTokens) ?? 0)
  const fitting = Math.floor((free.bytes - fixed - ofStep) / perSlot)
  if (size.numSlots <= fitting) return free.bytes - fixed - ofStep - size.numSlots * perSlot
  const [left, each] = [mebibytes(free.bytes), mebibytes(perSlot)]
  const advice =
    fitting > 0
      ? `the largest batch that fits is --slots ${fitting}`
      : 'not even one slot fits; stop other programs on the GPU, or use a smaller --step-tokens'
  const message = `${size.numSlots} slots of ${each} and a step of ${size.maxTokens} tokens do not fit the ${left} of device memory that the weights leave; ${advice}`
  throw new SkeinError('out_of_memory', message)
}

function mebibytes(bytes: number): string {
  return `${Math.ceil(bytes / 2 ** 20)} MiB`
}
