/**
 * The Runner over a recorded model. Owns the slots' device memory and the program; how rows become a step's batch and
 * come back is flight-queue.ts. Decides nothing: which rows run is the scheduler's business.
 */
import type {
  Backend,
  Flight,
  GuessCosts,
  PenaltyPool,
  Program,
  SlotCopy,
  StateData,
  StatePool,
  Tensor,
} from '../../backend/backend.ts'
import type { Capacity } from '../../backend/batch.ts'
import { assert } from '../../errors.ts'
import type { Model } from '../model.ts'
import type { BatchRow, ModelInfo, RowResult, Runner } from '../runner.ts'
import { FlightQueue } from './flight-queue.ts'
import { type WarmUp, warmUp } from './warm-up.ts'

interface RunnerOptions {
  readonly numSlots: number
  /** Token budget of one step. */
  readonly maxTokens: number
  readonly fingerprint: string
  /** Rows of a step that may have guesses, each of at most MAX_GUESSES; none where the backend does not draw them. */
  readonly numSpares?: number
  /** Further places for states between guesses, as far as the backend keeps these. */
  readonly numKept?: number
  /** The state before any token, where the model was tuned to another than zero. */
  readonly startState?: StateData | null
}

/** Rows of logits beyond one per slot, so that scoring a prompt moves on while every slot decodes. */
export const SCORED_TOKENS = 32

/** Most guesses of one row. */
export const MAX_GUESSES = 7

/** Of the states between guesses in a large step so many are kept: to feed two tokens again costs as much as to keep their states. */
const KEPT_EVERY = 3

/** Most answers that can be without a slot at a time, as far as their penalty counts have a place. */
export const MAX_SPARE_PLACES = 33

/** The longest row whose states between tokens can be kept; 0: none. */
export function keptRowOf({ architecture }: Model, { guessing }: Backend): number {
  return architecture === 'rwkv6' ? 0 : (guessing?.keptRow ?? 0)
}

export class ModelRunner implements Runner {
  readonly info: ModelInfo
  readonly numSlots: number
  readonly numPlaces: number
  readonly maxTokens: number
  readonly maxLogits: number
  readonly maxSamples: number
  readonly numSpares: number
  readonly numKept: number
  readonly keptRow: number
  readonly guessCosts: GuessCosts
  readonly drawsLater: boolean
  readonly #backend: Backend
  readonly #states: StatePool
  /** Which of these is a slot's, and from `numSlots` on a spare's: a slot that takes a state back changes with its spare. */
  readonly #stateOf: Int32Array
  readonly #penalties: PenaltyPool
  readonly #logits: Tensor
  readonly #program: Program
  readonly #flights: FlightQueue
  /** Disposed of together with the runner. */
  readonly #companions: { dispose(): void }[] = []
  /** Holds the state before any token where that is not zero; no row names it. */
  readonly #startSlot: number | null

  constructor(model: Model, backend: Backend, options: RunnerOptions) {
    const { numSlots, maxTokens, fingerprint, startState = null } = options
    const numSpares = backend.guessing === null ? 0 : (options.numSpares ?? 0)
    const numGuesses = numSpares * MAX_GUESSES
    const { architecture, stateShape, vocabSize } = model
    this.numSlots = numSlots
    this.numPlaces = numSlots + Math.min(numSlots + 1, MAX_SPARE_PLACES)
    this.maxTokens = maxTokens
    this.numSpares = numSpares
    const keptRow = keptRowOf(model, backend)
    this.numKept = numSpares > 0 && keptRow > 0 ? (options.numKept ?? 0) : 0
    this.keptRow = this.numKept > 0 ? keptRow : 0
    const { costs = [], costsOfIntegers = costs } = backend.guessing ?? {}
    this.guessCosts = /^(f|bf)\d/.test(model.weightType) ? costs : costsOfIntegers
    this.drawsLater = backend.drawsLater
    this.maxSamples = numSlots + numGuesses
    this.maxLogits = Math.min(numSlots + Math.max(SCORED_TOKENS, numGuesses), maxTokens)
    this.#backend = backend
    // No row names what is behind the slots of requests: the spares, and the state before any token.
    const numNamed = numSlots + numSpares + this.numKept
    this.#startSlot = startState === null ? null : numNamed
    this.#states = backend.statePool(stateShape, startState === null ? numNamed : numNamed + 1)
    this.#stateOf = Int32Array.from({ length: numNamed }, (_, slot) => slot)
    if (startState !== null) this.#states.write(numNamed, startState).result()
    this.#penalties = backend.penaltyPool(vocabSize, this.numPlaces)
    const capacity: Capacity = { tokens: maxTokens, rows: numSlots, logits: this.maxLogits, samples: this.maxSamples }
    this.#logits = backend.tensor([capacity.logits, vocabSize])
    const hidden = backend.activation([capacity.logits, stateShape.channels])
    const kept = backend.activation([backend.drawsLater ? this.numPlaces : 1, stateShape.channels])
    this.#program = backend.record(capacity, (ops) => {
      const [x] = model.forward(ops, this.#states, capacity)
      assert(model.output !== null, 'a runner over a part of a model')
      ops.gatherNorm(hidden, x, model.output.ln_out, kept)
      ops.logits(this.#logits, hidden, model.output.head)
      ops.sample(this.#logits, this.#penalties)
    })
    const rowsOf = (tensor: Tensor, width: number) => (start: number, count: number) =>
      backend.readTensor(tensor, start * width, count * width)
    this.#flights = new FlightQueue(this.#program, capacity, this.#stateOf, {
      logits: rowsOf(this.#logits, vocabSize),
      hidden: rowsOf(hidden, stateShape.channels),
    })
    const { numParameters, weightType, weightBytes, tableBytes } = model
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

  keptEvery(tokens: number): number {
    return tokens <= (this.#backend.guessing?.keptEach ?? 0) ? 1 : KEPT_EVERY
  }

  stepSize(tokens: number): number {
    return Math.min(this.#program.stepSize?.(tokens) ?? tokens, this.maxTokens)
  }

  get overlaps(): boolean {
    return this.#flights.overlaps
  }

  get feedsDraws(): boolean {
    return this.#flights.feedsDraws
  }

  launch(rows: readonly BatchRow[]): Flight<RowResult[]> {
    this.#keepStates(rows)
    return this.#flights.launch(rows)
  }

  /** Those from before rows with guesses; those between guesses the step itself keeps. */
  #keepStates(rows: readonly BatchRow[]): void {
    const copies: SlotCopy[] = []
    for (const { slot, tokens, guesses } of rows) {
      if (guesses === undefined) continue
      if (guesses.every === 0) copies.push([this.#stateOf[slot]!, this.#stateOf[this.#spareSlot(guesses.spares[0]!)]!])
      else assert(tokens.length <= this.keptRow, `${tokens.length} tokens in a row that keeps its states`)
    }
    if (copies.length > 1 && this.#states.copyAll) this.#states.copyAll(copies)
    else for (const [from, to] of copies) this.#states.copy(from, to)
  }

  drawLater(masks: readonly (Uint32Array | null)[]): void {
    this.#flights.drawLater(masks)
  }

  get waitsForDraws(): boolean {
    return this.#flights.waitsForDraws
  }

  step(rows: readonly BatchRow[]): RowResult[] {
    return this.launch(rows).result()
  }

  /** Makes the warm-up shorter, where kernels can be compiled side by side. */
  async compile(): Promise<void> {
    await this.#program.compile?.()
  }

  /** Before the first request, while all slots are free; a step works without it, at first use more slowly. */
  warmUp(options: WarmUp = {}): void {
    warmUp(this, this.#program, options)
  }

  clearSlot(slot: number): void {
    if (this.#startSlot === null) this.#states.clear(this.#stateOf[slot]!)
    else this.#states.copy(this.#startSlot, this.#stateOf[slot]!)
  }

  copySlot(from: number, to: number): void {
    this.#states.copy(this.#stateOf[from]!, this.#stateOf[to]!)
  }

  rewindSlot(slot: number, spare: number): void {
    const kept = this.#spareSlot(spare)
    const states = this.#stateOf
    ;[states[slot], states[kept]] = [states[kept]!, states[slot]!]
  }

  poisonSlot(slot: number): void {
    this.#states.poison(this.#stateOf[slot]!)
  }

  resetPenalties(place: number, promptTokens: Int32Array): void {
    this.#penalties.reset(place, promptTokens)
  }

  get canMove(): boolean {
    return this.#states.canMove
  }

  readState(slot: number, into?: StateData): Flight<StateData> {
    return this.#states.read(this.#stateOf[slot]!, into)
  }

  writeState(slot: number, state: StateData): Flight<void> {
    return this.#states.write(this.#stateOf[slot]!, state)
  }

  #spareSlot(spare: number): number {
    const count = this.numSpares + this.numKept
    assert(spare >= 0 && spare < count, `spare ${spare} of ${count}`)
    return this.numSlots + spare
  }

  /** To be disposed of with this runner. */
  keep(companion: { dispose(): void }): void {
    this.#companions.push(companion)
  }

  heldBytes(): number {
    return this.#backend.heldBytes?.() ?? 0
  }

  dispose(): void {
    this.#program.dispose()
    this.#backend.dispose()
    for (const companion of this.#companions) companion.dispose()
  }
}
