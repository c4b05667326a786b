/**
 * The Runner over a recorded model. Owns the slots' device memory and the program; how rows become a step's batch and
 * come back is flight-queue.ts. Decides nothing: which rows run is the scheduler's business.
 */
import type {
  Backend,
  Capacity,
  PenaltyPool,
  Program,
  StateData,
  StatePool,
  Tensor,
} from '../backend/backend.ts'
import { assert } from '../errors.ts'
import { FlightQueue } from './flight-queue.ts'
import type { Model } from './model.ts'
import type { BatchRow, Flight, ModelInfo, RowResult, Runner } from './runner.ts'
import { type WarmUp, warmUp } from './warm-up.ts'

export interface RunnerOptions {
  readonly numSlots: number
  /** Token budget of one step. */
  readonly maxTokens: number
  readonly fingerprint: string
  /** The state before any token, where the model was tuned to another than zero. */
  readonly startState?: StateData | null
}

/** Rows of logits beyond one per slot, so that scoring a prompt moves on while every slot decodes. */
export const SCORED_TOKENS = 32

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
  readonly #flights: FlightQueue
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
    this.#logits = backend.tensor([capacity.logits, vocabSize])
    const hidden = backend.activation([capacity.logits, stateShape.channels])
    this.#program = backend.record(capacity, (ops) => {
      const [x] = model.forward(ops, this.#states, capacity)
      assert(model.output !== null, 'a runner over a part of a model')
      ops.gatherNorm(hidden, x, model.output.ln_out)
      ops.logits(this.#logits, hidden, model.output.head)
      ops.sample(this.#logits, this.#penalties)
    })
    this.#flights = new FlightQueue(this.#program, capacity, (start, count) =>
      backend.readTensor(this.#logits, start * vocabSize, count * vocabSize),
    )
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

  get maxFlights(): number {
    return this.#flights.max
  }

  get feedsDraws(): boolean {
    return this.#flights.feedsDraws
  }

  launch(rows: readonly BatchRow[]): Flight {
    return this.#flights.launch(rows)
  }

  step(rows: readonly BatchRow[]): RowResult[] {
    return this.launch(rows).results()
  }

  /** Before the first request, while all slots are free; a step works without it, at first use more slowly. */
  warmUp(options: WarmUp = {}): void {
    warmUp(this, this.#program, options)
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

  readLayers(slot: number, from: number, to: number, into: StateData): void {
    this.#states.readLayers(slot, from, to, into)
  }

  writeState(slot: number, state: StateData): void {
    this.#states.write(slot, state)
  }

  writeLayers(slot: number, from: number, to: number, state: StateData): void {
    this.#states.writeLayers(slot, from, to, state)
  }

  dispose(): void {
    this.#program.dispose()
    this.#backend.dispose()
  }
}
