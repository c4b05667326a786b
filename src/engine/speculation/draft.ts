/**
 * Guesses of a draft model: a smaller one with the same vocabulary, which runs ahead of each answer. It draws almost as the answer
 * does, with the answer's own random numbers, so that where the two models agree they mostly draw the same token.
 *
 * The draft model's states follow answers in lanes. A lane has a state that has consumed tokens of the answer's text alone, and some that have
 * run ahead of it, each with one guess more. Nothing of a lane is ever kept elsewhere: one that was lost is filled again from
 * the last tokens of the text. A lane whose answer is over keeps its state for a text that begins with the same tokens: the next
 * turn of a conversation, or another choice.
 */
import {
  type BatchRow,
  type Flight,
  fedByDraw,
  type RowResult,
  type Runner,
  type SampleSpec,
} from '../../model/runner.ts'
import { stopTokensOf } from '../answer/draw-numbers.ts'
import type { GenerateRequest } from '../messages.ts'
import type { Proposer, ProposerSource } from './proposer.ts'

/** Tokens of a text that are read for a draft of what follows, where more are unread. */
const MOST_READ = 512
/** A lane that was not asked for so many drafts may be taken by another answer. */
const IDLE_DRAFTS = 256
/** For each answer that is drafted at once: others may be next. */
const LANES = 2
/** The shortest of so many last steps says what one takes. */
const REMEMBERED = 8
/** Unread tokens with which a row takes about as long as with one. */
const SHORT_ROW = 8
/**
 * Of the answer's temperature. At the same one, two models that differ a little draw the same token less often than the answer
 * draws the likelier ones (docs/dev/measurements.md).
 */
const COOLER = 0.7

export class Draft implements ProposerSource {
  readonly name = 'draft'
  readonly isAlike = true
  readonly #runner: Runner
  readonly #lanes: readonly Lane[]
  /** Answers of the step being planned, and how many guesses each wants. */
  readonly #asked = new Map<DraftedAnswer, number>()
  readonly mostAnswers: number
  #numDrafts = 0
  readonly #stepMs: number[] = []
  readonly #now: () => number

  /** Two slots of the runner for each answer that it drafts, or more where it drafts few at once. `now`: milliseconds. */
  constructor(runner: Runner, mostAnswers = Number.POSITIVE_INFINITY, now = () => performance.now()) {
    this.mostAnswers = mostAnswers
    this.#runner = runner
    this.#now = now
    const numLanes = Math.min(Math.floor(runner.numSlots / 2), LANES * mostAnswers)
    const size = Math.floor(runner.numSlots / numLanes)
    this.#lanes = Array.from({ length: numLanes }, (_, lane) => {
      const [base, ...aheads] = Array.from({ length: size }, (_, i) => lane * size + i)
      return new Lane(base!, aheads)
    })
  }

  open(prompt: Int32Array, request: GenerateRequest, _choice: number, draw: SampleSpec): DraftedAnswer {
    return new DraftedAnswer(this, prompt, stopTokensOf(request), draw)
  }

  get guessMs(): number {
    return this.#stepMs.length === 0 ? 0 : Math.min(...this.#stepMs)
  }

  hasLaneFor(answer: DraftedAnswer): boolean {
    return this.#lanes.some((lane) => lane.holder === answer || this.#isFree(lane))
  }

  expect(answer: DraftedAnswer, most: number): void {
    this.#asked.set(answer, most)
  }

  release(answer: DraftedAnswer): void {
    this.#asked.delete(answer)
    for (const lane of this.#lanes) if (lane.holder === answer) lane.holder = null
  }

  /** Drafts for all answers that expect one. */
  run(): void {
    if (this.#asked.size === 0) return
    this.#numDrafts++
    const drafts = [...this.#asked].flatMap(([answer, most]) => {
      const lane = this.#laneOf(answer)
      return lane === null ? [] : [{ answer, lane, most, guesses: [] as number[] }]
    })
    this.#asked.clear()
    const begin = this.#now()
    const rows = this.#read(drafts)
    if (rows.length === 0) return
    const flights = [this.#runner.launch(rows.map(({ row }) => row))]
    const drawing = [rows.filter(({ row }) => row.samples.length > 0).map(({ draft }) => draft)]
    this.#runAhead(flights, drawing)
    this.#collect(flights, drawing)
    const isShort = rows.every(({ row }) => row.tokens.length <= SHORT_ROW)
    if (isShort) this.#learn((this.#now() - begin) / flights.length)
  }

  /** Rows of the tokens that the lanes have not read; those that read all of them draw a first guess. */
  #read(drafts: readonly Drafted[]): { readonly draft: Drafted; readonly row: BatchRow }[] {
    let left = this.#runner.maxTokens
    const unread = drafts.map((draft) => ({ draft, tokens: this.#unread(draft) }))
    unread.sort((a, b) => a.tokens.length - b.tokens.length)
    return unread.flatMap(({ draft, tokens }) => {
      const own = Int32Array.from(tokens.slice(0, left))
      if (own.length === 0) return []
      left -= own.length
      draft.lane.push(own)
      const samples = own.length === tokens.length ? [draft.answer.drawAt(0, draft.lane.base)] : []
      return [{ draft, row: { slot: draft.lane.base, tokens: own, samples } }]
    })
  }

  #unread({ answer, lane }: Drafted): readonly number[] {
    const { numTokens } = answer
    lane.takeAhead(answer)
    if (numTokens - lane.end > MOST_READ) lane.begin(numTokens - MOST_READ)
    if (lane.isEmpty) this.#runner.clearSlot(lane.base)
    return answer.tokensFrom(lane.end)
  }

  /** Each guess is fed where it was drawn, on the device, while the next step is launched. */
  #runAhead(flights: Flight<RowResult[]>[], drawing: Drafted[][]): void {
    const { maxFlights } = this.#runner
    for (let count = 1; ; count++) {
      const last = drawing[count - 1]!
      const going = last.filter(({ most }) => most > count)
      if (going.length === 0) return
      flights[flights.length - maxFlights]?.result()
      const rows = going.map((draft): BatchRow => {
        const { answer, lane } = draft
        const { from, slot } = lane.ahead(count)
        if (from !== slot) this.#runner.copySlot(from, slot)
        return {
          slot,
          tokens: Int32Array.of(fedByDraw(last.indexOf(draft))),
          stops: answer.stops,
          samples: [answer.drawAt(count, lane.base)],
        }
      })
      flights.push(this.#runner.launch(rows))
      drawing.push(going)
    }
  }

  #collect(flights: readonly Flight<RowResult[]>[], drawing: readonly Drafted[][]): void {
    for (const [step, flight] of flights.entries()) {
      const drawn = flight.result().flatMap((row) => row.drawn)
      for (const [i, { guesses }] of drawing[step]!.entries()) {
        const { token } = drawn[i]!
        if (token >= 0 && guesses.length === step) guesses.push(token)
      }
    }
    for (const { answer, lane, guesses } of drawing[0]!) {
      answer.guesses = guesses
      lane.aheadBy = guesses.slice(0, -1)
      // Its logits were not finite.
      if (guesses.length === 0) lane.begin(answer.numTokens)
    }
  }

  #learn(ms: number): void {
    this.#stepMs.push(ms)
    if (this.#stepMs.length > REMEMBERED) this.#stepMs.shift()
  }

  #isFree({ holder, lastUsed }: Lane): boolean {
    return holder === null || this.#numDrafts - lastUsed > IDLE_DRAFTS
  }

  /** Its own, or the free one that has read most of its text, or was used least of late. */
  #laneOf(answer: DraftedAnswer): Lane | null {
    let lane = this.#lanes.find(({ holder }) => holder === answer)
    if (lane === undefined) {
      const [best] = this.#lanes
        .filter((one) => this.#isFree(one))
        .map((one) => ({ one, numRead: one.numReadOf(answer) }))
        .sort((a, b) => b.numRead - a.numRead || a.one.lastUsed - b.one.lastUsed)
      if (best === undefined) return null
      lane = best.one
      lane.holder = answer
      if (best.numRead === 0) lane.begin(0)
    }
    lane.lastUsed = this.#numDrafts
    return lane
  }
}

/** One answer of a draft. */
interface Drafted {
  readonly answer: DraftedAnswer
  readonly lane: Lane
  readonly most: number
  readonly guesses: number[]
}

/** A state of the draft model that follows a text, and those ahead of it. */
class Lane {
  base: number
  readonly #aheads: number[]
  holder: DraftedAnswer | null = null
  lastUsed = 0
  /** What `base` has consumed: these tokens, from a place of the text on. */
  #start = 0
  #read: number[] = []
  /** What the state ahead of all has consumed beside that. */
  aheadBy: readonly number[] = []

  constructor(base: number, aheads: number[]) {
    this.base = base
    this.#aheads = aheads
  }

  /** Where the state that has consumed so many guesses is, and the one that it comes from. */
  ahead(count: number): { readonly from: number; readonly slot: number } {
    const last = this.#aheads.length
    const at = Math.min(count, last) - 1
    return { slot: this.#aheads[at]!, from: count > last ? this.#aheads[at]! : (this.#aheads[at - 1] ?? this.base) }
  }

  get end(): number {
    return this.#start + this.#read.length
  }

  get isEmpty(): boolean {
    return this.#read.length === 0
  }

  push(tokens: Iterable<number>): void {
    this.#read.push(...tokens)
    this.aheadBy = []
  }

  /** Nothing was read, and reading begins there. */
  begin(start: number): void {
    this.#start = start
    this.#read = []
    this.aheadBy = []
  }

  /** The state ahead that has consumed nothing but the text is the one that follows it. */
  takeAhead(answer: DraftedAnswer): void {
    const { aheadBy, end } = this
    const wrong = aheadBy.findIndex((token, i) => answer.tokenAt(end + i) !== token)
    // One token at least is left to be read.
    const right = Math.min(wrong === -1 ? aheadBy.length : wrong, answer.numTokens - end - 1)
    const { slot } = this.ahead(Math.max(1, right))
    // The last one has consumed all the others' guesses, too.
    const isOwn = right === aheadBy.length || right < this.#aheads.length
    if (right <= 0 || !isOwn) return
    this.#aheads[this.#aheads.indexOf(slot)] = this.base
    this.base = slot
    this.push(aheadBy.slice(0, right))
  }

  /** Tokens of the answer's text that were read, and nothing else; 0 where something else was. */
  numReadOf(answer: DraftedAnswer): number {
    if (this.end >= answer.numTokens) return 0
    const isSame = this.#read.every((token, i) => answer.tokenAt(this.#start + i) === token)
    return isSame ? this.#read.length : 0
  }
}

class DraftedAnswer implements Proposer {
  readonly stops: ReadonlySet<number>
  guesses: readonly number[] = []
  readonly #draft: Draft
  readonly #prompt: Int32Array
  readonly #drawn: number[] = []
  readonly #draw: SampleSpec

  constructor(draft: Draft, prompt: Int32Array, stops: ReadonlySet<number>, draw: SampleSpec) {
    this.#draft = draft
    this.#prompt = prompt
    this.stops = stops
    // Penalties count what was drawn, and guesses may not be.
    const plain = { presencePenalty: 0, frequencyPenalty: 0, repetitionPenalty: 1 }
    const temperature = COOLER * draw.temperature
    this.#draw = { ...draw, ...plain, temperature, logprobs: null, mask: undefined }
  }

  get numTokens(): number {
    return this.#prompt.length + this.#drawn.length
  }

  tokenAt(place: number): number | undefined {
    const { length } = this.#prompt
    return place < length ? this.#prompt[place] : this.#drawn[place - length]
  }

  tokensFrom(start: number): number[] {
    const { length } = this.#prompt
    const drawn = this.#drawn.slice(Math.max(0, start - length))
    return [...this.#prompt.subarray(start), ...drawn]
  }

  /** How the guess after so many others is drawn, with penalty counts of its own. */
  drawAt(numGuesses: number, slot: number): SampleSpec {
    return { ...this.#draw, slot, position: this.#drawn.length + numGuesses }
  }

  add(token: number): void {
    this.#drawn.push(token)
  }

  get isPromising(): boolean {
    return this.#draft.hasLaneFor(this)
  }

  expect(most: number): void {
    this.guesses = []
    this.#draft.expect(this, most)
  }

  propose(most: number): readonly number[] {
    this.#draft.run()
    return this.guesses.slice(0, most)
  }

  close(): void {
    this.#draft.release(this)
  }
}
