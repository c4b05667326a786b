/**
 * A scripted Runner. Its "language": the next token is a hash of every token the slot has consumed, of the sampling
 * numbers and of the slot's penalty counts, so that any leak, wrong fork, off-by-one or reuse changes the text.
 * It refuses what a scheduler must never do: name a slot twice, use a freed or never cleared one, exceed a budget.
 */

import { doneFlight } from '../../src/backend/flight.ts'
import { HOST_GUESSING } from '../../src/backend/host-guessing.ts'
import { fedDraw, idleResult, runsOn } from '../../src/model/run/step-packing.ts'
import type {
  BatchRow,
  Drawn,
  Flight,
  GuessCosts,
  Guesses,
  ModelInfo,
  RowResult,
  Runner,
  SampleSpec,
  StateData,
  TokenLogprob,
} from '../../src/model/runner.ts'

export interface FakeOptions {
  readonly numSlots?: number
  readonly maxTokens?: number
  readonly maxLogits?: number
  readonly maxSamples?: number
  /** The most rows of a step with guesses. */
  readonly numSpares?: number
  /** Further places for states, which rows of so many tokens keep. */
  readonly numKept?: number
  readonly keptRow?: number
  readonly vocabSize?: number
  /** Of its states. */
  readonly layers?: number
  /** The type in which the device holds a state; default f32. */
  readonly stateBytes?: number
}

/** What a slot has consumed: enough to derive the next token, cheap to copy for a prompt of 100k tokens. */
interface History {
  readonly hash: number
  readonly length: number
}

const EMPTY: History = { hash: 0x811c9dc5, length: 0 }

function mix(hash: number, value: number): number {
  let h = Math.imul(hash ^ value, 0x01000193)
  h ^= h >>> 15
  return Math.imul(h, 0x2c1b3c6d) >>> 0
}

function consume({ hash, length }: History, tokens: Iterable<number>): History {
  let [h, n] = [hash, length]
  for (const token of tokens) {
    h = mix(h, token + 1)
    n++
  }
  return { hash: h, length: n }
}

/** Logits [V] after a history: spread over about ±4, all different enough for a clear order. */
export function logitsAfter({ hash }: History, vocabSize: number): Float32Array {
  return Float32Array.from({ length: vocabSize }, (_, id) => (mix(hash, id + 7) % 8191) / 1024 - 4)
}

const halves = (value: number): number[] => [value >>> 16, value & 0xffff]
const whole = (values: Float32Array, at: number): number => ((values[at]! << 16) | values[at + 1]!) >>> 0

/** A history as numbers that differ by layer. The second array checks the first, so mixed states are noticed. */
function stateOf({ hash, length }: History, layers: number): readonly [Float32Array, Float32Array] {
  const shift: number[] = []
  const wkv: number[] = []
  for (let layer = 0; layer < layers; layer++) {
    const own = mix(hash, layer)
    shift.push(...halves(layer === 0 ? hash : own), ...halves(length))
    wkv.push(...halves(mix(own, length)), 0, 0)
  }
  return [Float32Array.from(shift), Float32Array.from(wkv)]
}

function historyOf(state: StateData, layers: number): History {
  const [shift] = state
  const history = { hash: whole(shift!, 0), length: whole(shift!, 2) }
  const isSame = (a: Float32Array, b: Float32Array) => Buffer.from(a.buffer).equals(bytesOf(b))
  if (!stateOf(history, layers).every((array, i) => isSame(array, state[i]!))) throw new Error('a torn state')
  return history
}

function bytesOf({ buffer, byteOffset, byteLength }: Float32Array): Uint8Array {
  return new Uint8Array(buffer, byteOffset, byteLength)
}

/** The state after exactly these tokens. */
export function stateAfter(tokens: Iterable<number>, layers = 1): StateData {
  return stateOf(consume(EMPTY, tokens), layers)
}

/** The tokens counted for a slot's penalties. */
interface Seen {
  readonly prompt: number
  readonly answer: number
}

const NOTHING_SEEN: Seen = { prompt: 0, answer: 0 }

function penaltyHash(seen: Seen, spec: SampleSpec): number {
  const { presencePenalty, frequencyPenalty, repetitionPenalty } = spec
  if (repetitionPenalty !== 1) return mix(seen.answer, seen.prompt)
  return presencePenalty !== 0 || frequencyPenalty !== 0 ? seen.answer : 0
}

function drawAfter(history: History, seen: Seen, spec: SampleSpec, vocabSize: number): number {
  let h = mix(history.hash, penaltyHash(seen, spec))
  if (spec.temperature > 0) {
    h = mix(h, Number(BigInt.asUintN(31, spec.seed)))
    h = mix(mix(h, spec.position), spec.stream)
  }
  for (const [token, bias] of spec.bias ?? []) if (bias !== -Infinity) h = mix(h, token)
  let token = (h >>> 3) % vocabSize
  const isAllowed = (id: number) => spec.mask === undefined || ((spec.mask[id >> 5]! >>> (id & 31)) & 1) === 1
  for (let tries = 0; !isAllowed(token) || spec.bias?.get(token) === -Infinity; tries++) {
    if (tries > vocabSize) throw new Error('a draw of which nothing is allowed')
    token = (token + 1) % vocabSize
  }
  return token
}

function logprobAfter(history: History, token: number, k: number, vocabSize: number): TokenLogprob {
  const logits = logitsAfter(history, vocabSize)
  const logSum = Math.log(logits.reduce((sum, value) => sum + Math.exp(value), 0))
  const order = [...logits.keys()].sort((a, b) => logits[b]! - logits[a]! || a - b)
  const entry = (id: number) => ({ token: id, logprob: logits[id]! - logSum })
  return { ...entry(token), top: order.slice(0, k).map(entry) }
}

/** The fake model's answer without an engine: the oracle of every test. */
export function answerOf(prompt: Int32Array, spec: SampleSpec, numTokens: number, vocabSize: number): number[] {
  let history = consume(EMPTY, prompt)
  let seen = { prompt: history.hash, answer: 0 }
  const answer: number[] = []
  while (answer.length < numTokens) {
    const token = drawAfter(history, seen, { ...spec, position: answer.length }, vocabSize)
    answer.push(token)
    seen = { ...seen, answer: mix(seen.answer, token) }
    history = consume(history, [token])
  }
  return answer
}

export class FakeRunner implements Runner {
  readonly info: ModelInfo
  readonly numSlots: number
  readonly numPlaces: number
  readonly maxTokens: number
  readonly maxLogits: number
  readonly maxSamples: number
  readonly numSpares: number
  readonly numKept: number
  readonly keptRow: number
  guessCosts: GuessCosts = HOST_GUESSING.costs
  /** What each step ran, newest last. */
  readonly log: { readonly rows: number; readonly tokens: number; readonly slots: number[] }[] = []
  readonly calls = { copies: 0, clears: 0, poisons: 0, reads: 0, reused: 0, writes: 0 }
  isDisposed = false
  /** Called before each step with its rows; may throw. */
  onStep: (rows: readonly BatchRow[]) => void = () => {}
  /** Draws of these slots are −1, as for logits that are not finite. */
  readonly notFinite = new Set<number>()
  /** Makes logits of scored prompts contain a NaN. */
  hasNanPromptLogits = false
  readonly #states: (History | null)[]
  /** States from before rows with guesses and between these, each used once. */
  readonly #spares: (History | null)[]
  readonly #seen: Seen[]

  constructor(options: FakeOptions = {}) {
    const { numSlots = 8, maxTokens = 64, vocabSize = 97 } = options
    this.numSlots = numSlots
    this.numPlaces = 2 * numSlots + 1
    this.maxTokens = maxTokens
    this.maxSamples = options.maxSamples ?? numSlots
    this.numSpares = options.numSpares ?? 0
    this.numKept = options.numKept ?? 0
    this.keptRow = this.numKept > 0 ? (options.keptRow ?? 31) : 0
    this.#spares = Array.from({ length: this.numSpares + this.numKept }, () => null)
    this.maxLogits = options.maxLogits ?? numSlots
    this.#states = Array.from({ length: numSlots }, () => null)
    this.#seen = Array.from({ length: this.numPlaces }, () => NOTHING_SEEN)
    const info = fakeInfo(vocabSize, options.layers ?? 1)
    this.info = { ...info, stateBytes: options.stateBytes ?? info.stateBytes }
  }

  /** One, complete before launch() returns; DeferredRunner allows more. */
  readonly maxFlights = 1
  readonly feedsDraws = true
  readonly drawsLater = true
  readonly waitsForDraws = true
  #results: RowResult[] = []
  /** Late draws of the last launch: their row and history; null if the row did not run. */
  #left: { readonly b: number; readonly spec: SampleSpec; readonly after: History | null }[] = []
  /** By place: the history of an answer whose draw was not made. */
  readonly #kept = new Map<number, History>()

  launch(rows: readonly BatchRow[]): Flight<RowResult[]> {
    this.onStep(rows)
    this.#check(rows)
    if (this.#left.length > 0) throw new Error('a launch before the draws of the last')
    const lastDrawn = this.#results.flatMap(({ drawn }) => drawn.map(({ token }) => token))
    const known = rows.map((row) => this.#known(row, lastDrawn))
    this.#results = known.map((row, b) => (row === null ? idleResult(rows[b]!.samples.length) : this.#run(row)))
    for (const [b, { drawsLater, samples, slot }] of rows.entries())
      if (drawsLater === true) {
        const after = known[b] === null ? null : this.#stateOf(slot)
        this.#left.push({ b, spec: { ...samples[0]! }, after })
      }
    return doneFlight(this.#results)
  }

  drawLater(masks: readonly (Uint32Array | null)[]): void {
    const left = this.#left
    this.#left = []
    if (left.length === 0 || left.length !== masks.length) throw new Error('other draws are left')
    for (const [i, { b, spec, after }] of left.entries()) {
      const mask = masks[i]!
      if (after === null) continue
      if (mask === null) this.#kept.set(spec.slot, after)
      else this.#results[b] = { drawn: [this.#draw(-1, after, { ...spec, mask })] }
    }
  }

  /** Steps are padded to multiples of this. */
  grain = 1

  keptEvery(tokens: number): number {
    return tokens <= 8 ? 1 : 3
  }

  stepSize(tokens: number): number {
    return Math.min(this.maxTokens, this.grain * Math.ceil(tokens / this.grain))
  }

  step(rows: readonly BatchRow[]): RowResult[] {
    return this.launch(rows).result()
  }

  /** Replaces a fed draw by its token; null if the row does not run. */
  #known(row: BatchRow, lastDrawn: readonly number[]): BatchRow | null {
    const draw = fedDraw(row)
    if (draw === null) return row
    const token = lastDrawn[draw]
    if (token === undefined) throw new Error(`draw ${draw} was not made by the flight before`)
    return runsOn(token, row) ? { ...row, tokens: Int32Array.of(token) } : null
  }

  clearSlot(slot: number): void {
    this.calls.clears++
    this.#states[slot] = EMPTY
  }

  copySlot(from: number, to: number): void {
    this.calls.copies++
    if (to >= this.numSlots) throw new Error(`no slot ${to}`)
    this.#states[to] = this.#stateOf(from)
  }

  rewindSlot(slot: number, spare: number): void {
    const before = this.#spares[spare]
    if (!before) throw new Error(`spare ${spare} holds nothing to go back to`)
    this.#spares[spare] = null
    this.#states[slot] = before
  }

  poisonSlot(slot: number): void {
    this.calls.poisons++
    this.#states[slot] = null
  }

  resetPenalties(place: number, promptTokens: Int32Array): void {
    if (this.#seen[place] === undefined) throw new Error(`no place ${place}`)
    this.#seen[place] = { prompt: consume(EMPTY, promptTokens).hash, answer: 0 }
  }

  readonly canMove = true

  readState(slot: number, into?: StateData): Flight<StateData> {
    this.calls.reads++
    const state = stateOf(this.#stateOf(slot), this.info.stateShape.layers)
    if (into === undefined) return doneFlight(state)
    this.calls.reused++
    for (const [i, array] of into.entries()) array.set(state[i]!)
    return doneFlight(into)
  }

  writeState(slot: number, state: StateData): Flight<void> {
    this.calls.writes++
    this.#states[slot] = historyOf(state, this.info.stateShape.layers)
    return doneFlight(undefined)
  }

  dispose(): void {
    this.isDisposed = true
  }

  #run(row: BatchRow): RowResult {
    const { vocabSize } = this.info
    const before = this.#stateOf(row.slot)
    if (row.tokens.length === 0) return { drawn: [this.#drawKept(row)] }
    const after = consume(before, row.tokens)
    this.#states[row.slot] = after
    if (row.drawsLater === true) return idleResult(row.samples.length)
    if (row.guesses !== undefined) return { drawn: this.#drawGuessed(row, row.guesses, before) }
    const drawn = row.samples.map((spec) => this.#draw(row.slot, after, spec))
    if (!row.allLogits) return { drawn }
    const logits = new Float32Array(row.tokens.length * vocabSize)
    let history = before
    for (const [i, token] of row.tokens.entries()) {
      history = consume(history, [token])
      logits.set(logitsAfter(history, vocabSize), i * vocabSize)
    }
    if (this.hasNanPromptLogits) logits[0] = Number.NaN
    return { drawn, logits }
  }

  #drawGuessed({ slot, tokens, samples }: BatchRow, guesses: Guesses, before: History): Drawn[] {
    const numKnown = tokens.length - guesses.count
    if (samples.length !== guesses.count + 1 || numKnown < 1) throw new Error('guesses that do not fit')
    const { spares, every } = guesses
    if (spares.length !== (every > 0 ? Math.ceil(guesses.count / every) : 1) || new Set(spares).size !== spares.length)
      throw new Error(`${spares.length} places for states`)
    if (every > 0 && tokens.length > this.keptRow) throw new Error('too long a row to keep its states')
    for (const [i, spare] of spares.entries()) {
      if (!(spare in this.#spares)) throw new Error(`no spare ${spare}`)
      this.#spares[spare] = every > 0 ? consume(before, tokens.subarray(0, numKnown + i * every)) : before
    }
    let isRight = true
    return samples.map((spec, i) => {
      if (!isRight) return { token: -1, logprob: null }
      const drawn = this.#draw(slot, consume(before, tokens.subarray(0, numKnown + i)), spec)
      isRight = drawn.token === tokens[numKnown + i]
      return drawn
    })
  }

  #drawKept({ slot, samples }: BatchRow): Drawn {
    const [spec] = samples
    const kept = this.#kept.get(spec!.slot)
    if (kept === undefined || kept.hash !== this.#stateOf(slot).hash) throw new Error('a draw from what was not kept')
    this.#kept.delete(spec!.slot)
    return this.#draw(slot, kept, spec!)
  }

  #draw(slot: number, history: History, spec: SampleSpec): Drawn {
    if (this.notFinite.has(slot)) return { token: -1, logprob: null }
    const { vocabSize } = this.info
    const seen = this.#seen[spec.slot]!
    const token = drawAfter(history, seen, spec, vocabSize)
    this.#seen[spec.slot] = { ...seen, answer: mix(seen.answer, token) }
    if (spec.logprobs === null) return { token, logprob: null }
    return { token, logprob: logprobAfter(history, token, spec.logprobs, vocabSize) }
  }

  #stateOf(slot: number): History {
    const state = this.#states[slot]
    if (state === undefined) throw new Error(`no slot ${slot}`)
    if (state === null) throw new Error(`slot ${slot} is used after it was freed`)
    return state
  }

  #check(rows: readonly BatchRow[]): void {
    const slots = rows.map((row) => row.slot)
    const tokens = rows.reduce((sum, row) => sum + row.tokens.length, 0)
    const samples = rows.reduce((sum, row) => sum + row.samples.length, 0)
    const logits = rows.reduce((sum, row) => sum + numLogits(row), 0)
    const rules: [boolean, string][] = [
      [rows.length > 0, 'an empty step'],
      [new Set(slots).size === slots.length, `a slot twice in a step: ${slots}`],
      [rows.every(isWhole), 'a row without tokens, or with a mask that is to come'],
      [tokens <= this.maxTokens, `${tokens} tokens > ${this.maxTokens}`],
      [samples <= this.maxSamples, `${samples} samples > ${this.maxSamples}`],
      [logits <= this.maxLogits, `${logits} logits > ${this.maxLogits}`],
    ]
    for (const [isKept, problem] of rules) if (!isKept) throw new Error(problem)
    this.log.push({ rows: rows.length, tokens, slots })
  }
}

/** A row without tokens only draws. A row that draws later has one draw, without a mask yet. */
function isWhole({ tokens, samples, drawsLater }: BatchRow): boolean {
  const [first] = samples
  if (drawsLater === true) return tokens.length === 1 && samples.length === 1 && first!.mask === undefined
  return tokens.length > 0 || (samples.length === 1 && first!.mask !== undefined)
}

/** As runner.ts counts them: every token of an allLogits row, and one per sampled row. */
function numLogits(row: BatchRow): number {
  if (row.guesses !== undefined) return row.samples.length
  return (row.allLogits ? row.tokens.length : 0) + (row.samples.length > 0 ? 1 : 0)
}

export function fakeInfo(vocabSize: number, layers: number): ModelInfo {
  return {
    architecture: 'fake',
    vocabSize,
    numParameters: 0,
    stateShape: { layers, channels: 2, heads: 1, headSize: 2 },
    weightType: 'f32',
    weightBytes: 0,
    tableBytes: 0,
    stateBytes: 32 * layers,
    fingerprint: 'fake',
    device: 'fake',
  }
}
