/**
 * A live request and its sequences, one per choice. Counters are the truth, phases are views of them. This file owns
 * what a drawn token means for its answer (go on, stop, length); it does not know when a sequence is stepped
 * (scheduler.ts) nor how slots are won and lost (slots.ts).
 */
import { randomBytes } from 'node:crypto'
import { assert } from '../errors.ts'
import type { Matcher } from '../grammar/matcher.ts'
import type { AnswerRules } from '../grammar/matchers.ts'
import {
  type BatchRow,
  type Blend,
  fedByDraw,
  type SampleSpec,
  type StateData,
  type TokenLogprob,
} from '../model/runner.ts'
import { AnswerText, type TokenBytes } from './answer/answer-text.ts'
import { biasOf, createDraw, drawsFrom, type Mutable, NO_SLOT, stopTokensOf } from './answer/draw-numbers.ts'
import { EmbeddingSum } from './answer/embedding-sum.ts'
import { withBytes } from './answer/logprobs.ts'
import { StopStrings } from './answer/stop-strings.ts'
import type { Mixture, Start } from './kept/start.ts'
import type { FinishReason, GenerateRequest, TokenText } from './messages.ts'

/** Tokens that are told together where nobody reads along. */
const GATHERED = 16

/** Rows that wait for their masks after a mask came late. */
const LATE_ROWS = 4

/** Why an answer ended: a string, a token id, or null for length. */
interface Finish {
  readonly reason: FinishReason
  readonly matched: string | number | null
}

export class LiveRequest {
  readonly request: GenerateRequest
  /** Tokens to read before the first draw. With a session these include more than the request's own prompt. */
  prompt: Int32Array
  readonly seed: bigint
  readonly bias: ReadonlyMap<number, number> | null
  readonly stopTokens: ReadonlySet<number>
  readonly sequences: readonly Sequence[]
  /** One per prompt token scored so far; null for the first, which nothing precedes. Null when not asked. */
  readonly promptLogprobs: (TokenText | null)[] | null
  /** The embedding so far, when the request asks for one instead of an answer. */
  readonly embedding: EmbeddingSum | null
  /** The state that the prompt continues; null: the empty state. */
  start: Start | null = null
  /** Set before admission; the request then has one choice, no session and no kept prefixes. */
  mixture: Mixture | null = null
  /** Set before admission. */
  rules: AnswerRules | null = null
  /**
   * Prompt tokens that the first sequence's slot has consumed, those in flight included. The others get a copy when the
   * prompt is complete.
   */
  numFed = 0
  /** Rows with prompt tokens in flight. */
  numChunksSent = 0
  /** States on their way into its slots, or waiting to be copied out. It is not stepped before they are done. */
  numTransfers = 0
  /** Cancelled: nothing more of it is launched. */
  isLeaving = false
  /** Ascending positions where reading stops for a copy of the state; those reached are removed. */
  points: readonly number[] = []

  constructor(request: GenerateRequest, tokenBytes: TokenBytes) {
    this.request = request
    this.prompt = request.prompt
    this.seed = request.sampling.seed ?? randomBytes(8).readBigUInt64LE()
    this.bias = biasOf(request)
    this.stopTokens = stopTokensOf(request)
    this.promptLogprobs = request.promptLogprobs === null ? null : [null]
    this.embedding = request.embedding === undefined ? null : new EmbeddingSum()
    const stops = new StopStrings(request.stop.strings)
    const withLogprobs = request.logprobs !== null
    this.sequences = Array.from({ length: request.n }, (_, index) => {
      const text = new AnswerText(tokenBytes, stops, withLogprobs)
      return new Sequence(this, index, text, tokenBytes)
    })
  }

  get id(): string {
    return this.request.id
  }

  /** Slots of each choice: the tokens of a row are fed once per slot. */
  get width(): number {
    return 1 + (this.mixture?.others.length ?? 0)
  }

  get numSlots(): number {
    return this.request.n * this.width
  }

  get promptLeft(): number {
    return this.prompt.length - this.numFed
  }

  get isPrefilling(): boolean {
    return this.promptLeft > 0
  }

  /** The next prompt tokens are also scored. The last token scores nothing, so it is fed alone, as any prompt's end. */
  get isScoring(): boolean {
    return this.promptLogprobs !== null && this.promptLeft > 1
  }

  /** Each of the next prompt tokens takes a row of logits. */
  get readsEach(): boolean {
    return this.isScoring || this.request.embedding === 'mean'
  }

  /** The most prompt tokens of the next row. */
  get maxChunk(): number {
    const end = this.isScoring ? this.prompt.length - 1 : this.prompt.length
    return Math.min(end, this.points[0] ?? end) - this.numFed
  }

  /** More of the prompt can be launched, whether or not earlier rows have landed. */
  get canSendChunk(): boolean {
    if (!this.isPrefilling || this.numTransfers > 0 || this.isLeaving) return false
    if (!this.sequences.every(({ isSettled, isAway }) => isSettled && !isAway)) return false
    // Scores are read before more is fed.
    return this.numChunksSent === 0 || this.promptLogprobs === null
  }

  /** It has rows in flight, or states on their way out of slots or back. */
  get isOnItsWay(): boolean {
    return this.numChunksSent > 0 || this.sequences.some(({ numAwaited, numMoves }) => numAwaited + numMoves > 0)
  }

  /** Prompt tokens were launched. */
  sent(numPrompt: number): void {
    this.numFed += numPrompt
    this.numChunksSent++
  }

  get isDone(): boolean {
    return this.sequences.every((sequence) => sequence.isOver)
  }
}

export class Sequence {
  readonly owner: LiveRequest
  /** Index of the choice, which is also its random stream. */
  readonly index: number
  readonly text: AnswerText
  /** Tokens drawn and handled, the stopping token included. */
  readonly drawn: number[] = []
  finish: Finish | null = null
  /** Its last row ran past the end of the answer and was not finite: its state must not be kept. */
  isSpoilt = false
  /** Its state is being copied: it is not stepped and has nothing in flight. */
  isCopying = false
  /** It has given its slots to others for a while (fairness/preemption.ts): it is not stepped. */
  isAway = false
  /** Its states on their way out of slots for that, or back. */
  numMoves = 0
  /** Its state while it has no slot. */
  saved: StateData | null = null
  /** Rows that it has run in its slot. */
  numRows = 0
  /** Draws in flight. */
  numAwaited = 0
  /** The flight of the last of them, and its index among the flight's draws. */
  #awaited = { flight: 0, draw: 0 }
  /** Draws that launched rows feed, if they run. */
  #numSent = 0
  /** How many of these the first state has consumed that the last row with guesses keeps. Its guesses count as drawn until it lands. */
  #numBefore = 0
  readonly #tokenBytes: TokenBytes
  /** The same two objects serve every decode step: a step allocates nothing per row. */
  readonly #draw: Mutable<SampleSpec>
  readonly #decodeRow: Mutable<BatchRow>
  readonly #guessDraws: Mutable<SampleSpec>[] = []
  #slot: number | null = null
  #place: number | null = null
  /** Slots that count for its tenant until it has ended, even one that a session has kept by then. */
  numHeld = 0
  /** Slots of the other states of a mixture, with their weights. */
  #blend: Blend | null = null
  /** The answer's position in its grammar; null without a grammar or a slot. */
  matcher: Matcher | null = null
  /** Rows that wait for their masks before launch, because a mask came late. */
  #numToWait = 0

  constructor(owner: LiveRequest, index: number, text: AnswerText, tokenBytes: TokenBytes) {
    this.owner = owner
    this.index = index
    this.text = text
    this.#tokenBytes = tokenBytes
    this.#draw = createDraw(owner, index)
    this.#decodeRow = { slot: NO_SLOT, tokens: new Int32Array(1), samples: [this.#draw], stops: owner.stopTokens }
  }

  /** Null before admission, after the end, and while others have the slot. */
  get slot(): number | null {
    return this.#slot
  }

  set slot(slot: number | null) {
    this.#slot = slot
    this.numRows = 0
    this.#decodeRow.slot = slot ?? NO_SLOT
  }

  /** Where its penalty counts are, from admission to the end. */
  get place(): number | null {
    return this.#place
  }

  set place(place: number | null) {
    this.#place = place
    this.#draw.slot = place ?? NO_SLOT
  }

  get blend(): Blend | null {
    return this.#blend
  }

  set blend(blend: Blend | null) {
    this.#blend = blend
    if (blend === null) delete this.#decodeRow.blend
    else this.#decodeRow.blend = blend
  }

  get numDrawn(): number {
    return this.drawn.length
  }

  /** It is decoding and nothing of its own holds it up. */
  get canGoOn(): boolean {
    return this.isDecoding && !this.isCopying && !this.isAway && !this.owner.isLeaving
  }

  get isDecoding(): boolean {
    return this.numDrawn > 0 && this.finish === null
  }

  /** The mask of the next draw is known, and the tokens that must come before it have been taken. */
  get isSettled(): boolean {
    return this.matcher === null || (this.numAwaited === 0 && this.matcher.hasTaken)
  }

  /** Its next row can run before the mask of its draw is known: the draw is made later. */
  get canDrawLater(): boolean {
    return this.numAwaited === 1 && this.#numToWait === 0 && this.blend === null
  }

  /** Tokens arrived without a draw after a row was launched that draws the next: that draw is useless. */
  get isOvertaken(): boolean {
    return this.numAwaited > 0 && this.#numSent < this.numDrawn
  }

  /** The draw after its last token was not made when it could have been. */
  get isBehind(): boolean {
    return this.numAwaited === 0 && this.#numSent === this.numDrawn
  }

  /** The mask of the draw after the last token is needed and not known yet. */
  get lacksMask(): boolean {
    const { finish, matcher, owner } = this
    if (matcher === null || finish !== null || owner.isLeaving || this.isOvertaken) return false
    return !matcher.isReady || !matcher.hasTaken
  }

  /** Gives up the draw that is left: it is useless, or its mask has not come. */
  forgoes(): void {
    if (!this.isOvertaken) this.#numToWait = LATE_ROWS
    this.numAwaited--
  }

  /** It has ended and no row of it will run: a drawn stop token holds the next row back, a stop string does not. */
  get isOver(): boolean {
    if (this.finish === null) return false
    return this.numAwaited === 0 || (typeof this.finish.matched !== 'string' && !this.isOvertaken)
  }

  /** Drawn tokens that its slot will have consumed when everything in flight has run. */
  get numFed(): number {
    const isHeldBack = typeof this.finish?.matched === 'number'
    return isHeldBack ? Math.min(this.#numSent, this.numDrawn - 1) : this.#numSent
  }

  /** Its next row can run: the token that it feeds is known here, or is on the device after `lastFlight`. */
  canStep(lastFlight: number): boolean {
    if (!this.canGoOn) return false
    if (this.numAwaited === 0) return true
    const isNext = this.#awaited.flight === lastFlight
    return isNext && this.numDrawn + this.numAwaited < this.owner.request.maxTokens
  }

  /** Its next token is draw `draw` of a flight. */
  awaits(flight: number, draw: number): void {
    this.#awaited = { flight, draw }
    this.numAwaited++
  }

  /** How the next token is drawn; valid until the next call. */
  get draw(): SampleSpec {
    return this.#drawAt(this.numDrawn)
  }

  /** Tokens that its next row feeds beside the usual one: they were not drawn. */
  get numExtra(): number {
    return this.numAwaited > 0 || this.isBehind ? 0 : this.numDrawn - 1 - this.#numSent
  }

  /**
   * Feeds the last token, which no state has consumed yet, and draws the next; valid until the next call. Feeds at most
   * `1 + maxExtra` tokens, and draws nothing while some are left.
   */
  nextRow(maxExtra: number): BatchRow {
    assert(this.#slot !== null && this.isDecoding, 'a sequence was stepped that has no next token')
    if (this.#numToWait > 0 && this.numAwaited === 0) this.#numToWait--
    this.#decodeRow.drawsLater = this.matcher !== null && this.numAwaited > 0
    if (this.isBehind || this.numExtra > 0)
      return this.#rowOfOther(this.isBehind ? 0 : 1 + Math.min(this.numExtra, maxExtra))
    const position = this.numDrawn + this.numAwaited
    this.#drawAt(position)
    this.#decodeRow.tokens[0] = this.numAwaited === 0 ? this.drawn.at(-1)! : fedByDraw(this.#awaited.draw)
    this.#numSent = position
    return this.#decodeRow
  }

  #rowOfOther(numTokens: number): BatchRow {
    const from = this.#numSent
    this.#numSent = from + numTokens
    const tokens = Int32Array.from(this.drawn.slice(from, this.#numSent))
    const isLast = this.#numSent === this.numDrawn
    return { ...this.#decodeRow, tokens, samples: isLast ? [this.#drawAt(this.numDrawn)] : [] }
  }

  /** As nextRow, with guesses of the tokens that follow. */
  rowWithGuesses(guesses: readonly number[], spares: readonly number[], every: number): BatchRow {
    assert(this.#slot !== null && this.numAwaited === 0, 'guesses beside a draw on its way')
    const unfed = this.drawn.slice(this.#numSent)
    this.#numBefore = every > 0 ? this.numDrawn : this.#numSent
    this.#numSent = this.numDrawn + guesses.length
    return {
      ...this.#decodeRow,
      tokens: Int32Array.of(...unfed, ...guesses),
      samples: drawsFrom(this.#guessDraws, this.#drawAt(this.numDrawn), guesses.length + 1),
      guesses: { count: guesses.length, spares, every },
    }
  }

  /** Its slot has consumed all tokens but the last, as after a row without guesses. */
  get isLevel(): boolean {
    return this.#numSent === this.numDrawn - 1
  }

  /** Its slot has a state that its last row kept: the first, or the one so many guesses later. */
  rewound(guesses: number): void {
    this.#numSent = this.#numBefore + guesses
  }

  #drawAt(position: number): SampleSpec {
    this.#draw.position = position
    this.#draw.mask = this.numAwaited > 0 ? undefined : this.matcher?.mask
    return this.#draw
  }

  /** What was released is told now. */
  get isTold(): boolean {
    const { numUntold } = this.text
    const isEnough = numUntold >= GATHERED || 2 * numUntold > this.numDrawn
    return this.owner.request.isGathered !== true || this.finish !== null || isEnough
  }

  /** Takes a drawn token and decides whether it ends the answer. */
  accept(token: number, logprob: TokenLogprob | null): void {
    this.drawn.push(token)
    if (this.owner.stopTokens.has(token)) {
      this.end({ reason: 'stop', matched: token })
      return
    }
    const matched = this.text.push(token, logprob && withBytes(logprob, this.#tokenBytes))
    if (matched !== null) this.finish = { reason: 'stop', matched }
    else if (this.numDrawn >= this.owner.request.maxTokens) this.endAtLength()
  }

  endAtLength(): void {
    this.end({ reason: 'length', matched: null })
  }

  /** Held text may now prove to be a stop string; that reason comes before the given one. */
  end(finish: Finish): void {
    const matched = this.text.end()
    this.finish = matched === null ? finish : { reason: 'stop', matched }
  }
}
