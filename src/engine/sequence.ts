/**
 * A live request and its sequences, one per choice. Counters are the truth, phases are views of them. This file owns
 * what a drawn token means for its answer (go on, stop, length); it does not know when a sequence is stepped
 * (scheduler.ts) nor how slots are won and lost (slots.ts).
 */
import { randomBytes } from 'node:crypto'
import { assert } from '../errors.ts'
import type { AnswerRules, Matcher } from '../grammar/matchers.ts'
import {
  type BatchRow,
  type Blend,
  fedByDraw,
  type SampleSpec,
  type StateData,
  type TokenLogprob,
} from '../model/runner.ts'
import { AnswerText, type TokenBytes } from './answer/answer-text.ts'
import { biasOf, createDraw, type Mutable, NO_SLOT, stopTokensOf } from './answer/draw-numbers.ts'
import { EmbeddingSum } from './answer/embedding-sum.ts'
import { withBytes } from './answer/logprobs.ts'
import { StopStrings } from './answer/stop-strings.ts'
import type { Mixture, Start } from './kept/start.ts'
import type { FinishReason, GenerateRequest, TokenText } from './messages.ts'

/** Rows that wait for their masks after one that came late. */
const LATE_ROWS = 4

/** Why an answer is over, and what stopped it: a string, a token id, or null for length. */
interface Finish {
  readonly reason: FinishReason
  readonly matched: string | number | null
}

export class LiveRequest {
  readonly request: GenerateRequest
  /** What is read before the first draw. With a session that is more than the request's own prompt. */
  prompt: Int32Array
  readonly seed: bigint
  readonly bias: ReadonlyMap<number, number> | null
  readonly stopTokens: ReadonlySet<number>
  readonly sequences: readonly Sequence[]
  /** One per prompt token scored so far; the first has nothing before it. Null when not asked. */
  readonly promptLogprobs: (TokenText | null)[] | null
  /** What is known of the embedding that was asked instead of an answer. */
  readonly embedding: EmbeddingSum | null
  /** Where a prompt begins of which no prefix is kept; null: the state before any token. */
  start: Start | null = null
  /** Set before it is admitted; then there is one choice, and neither a session nor kept prefixes. */
  mixture: Mixture | null = null
  /** Set before it is admitted. */
  rules: AnswerRules | null = null
  /**
   * Prompt tokens consumed by the first sequence's slot, those on their way there included. The others get a copy when
   * the prompt is complete.
   */
  numFed = 0
  /** Rows with prompt tokens that are on their way. */
  numChunksSent = 0
  /** States on their way into its slots, or waiting to be copied out of one: it is not stepped before they are. */
  numTransfers = 0
  /** It was cancelled, and nothing more of it is launched. */
  isLeaving = false
  /** Where reading stops for a copy of the state, ascending; those reached are taken out. */
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

  /** Slots of each choice: the tokens of a row are fed as many times. */
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

  /**
   * The next prompt tokens are fed for their log-probabilities too, which takes the logits after each of them. Those
   * after the last token score nothing of the prompt, so it goes alone, as any other prompt's end.
   */
  get isScoring(): boolean {
    return this.promptLogprobs !== null && this.promptLeft > 1
  }

  /** Each of the next prompt tokens takes a row of logits. */
  get readsEach(): boolean {
    return this.isScoring || this.request.embedding === 'mean'
  }

  /** Most prompt tokens of the next row. */
  get maxChunk(): number {
    const end = this.isScoring ? this.prompt.length - 1 : this.prompt.length
    return Math.min(end, this.points[0] ?? end) - this.numFed
  }

  /** More of the prompt can go, whether or not what went before has been looked at. */
  get canSendChunk(): boolean {
    if (!this.isPrefilling || this.numTransfers > 0 || this.isLeaving) return false
    if (!this.sequences.every(({ isSettled, isAway }) => isSettled && !isAway)) return false
    // The state at a point is copied, and scores are read, before more is fed.
    const isLookedAt = this.promptLogprobs !== null || this.numFed === this.points[0]
    return this.numChunksSent === 0 || !isLookedAt
  }

  /** Rows of it were launched and have not landed. */
  get hasRows(): boolean {
    return this.numChunksSent > 0 || this.sequences.some(({ numAwaited }) => numAwaited > 0)
  }

  /** Rows of it, or states that it has given slots up for or gets them back with, are on their way. */
  get isOnItsWay(): boolean {
    return this.hasRows || this.sequences.some(({ numMoves }) => numMoves > 0)
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
  /** Which choice of the request; also its random stream. */
  readonly index: number
  readonly text: AnswerText
  /** Tokens drawn and looked at; a stopping token counts. */
  readonly drawn: number[] = []
  finish: Finish | null = null
  /** Its last row ran past the end of the answer and was not finite: its state is not to be kept. */
  isSpoilt = false
  /** Its state is being copied: it is not stepped. Nothing of it is on its way. */
  isCopying = false
  /** It gives its slots to others for a while: it is not stepped (fairness/preemption.ts). */
  isAway = false
  /** Its states on their way out of slots for that, or back. */
  numMoves = 0
  /** While it has no slot: its state, as everything fed so far has left it. */
  saved: StateData | null = null
  /** Rows that it has had in its slot. */
  numRows = 0
  /** Draws that are on their way. */
  numAwaited = 0
  /** Flight of the last of them, and which of its draws it is. */
  #awaited = { flight: 0, draw: 0 }
  /** Draws that rows launched so far feed, if they run. */
  #numSent = 0
  /** How many of these came before the last row with guesses. The guesses of such a row count as drawn until it lands. */
  #numBefore = 0
  readonly #tokenBytes: TokenBytes
  /** The same two objects serve every decode step: a step allocates nothing per row. */
  readonly #draw: Mutable<SampleSpec>
  readonly #decodeRow: Mutable<BatchRow>
  #slot: number | null = null
  #place: number | null = null
  /** Slots that count as its tenant's, until it has ended: also one that a session has kept by then. */
  numHeld = 0
  /** Slots of the other states of a mixture, with their weights. */
  #blend: Blend | null = null
  /** Where the answer is in its grammar; null without one, and without a slot. */
  matcher: Matcher | null = null
  /** Rows that wait for their masks before they are launched, since a mask came late. */
  #numToWait = 0

  constructor(owner: LiveRequest, index: number, text: AnswerText, tokenBytes: TokenBytes) {
    this.owner = owner
    this.index = index
    this.text = text
    this.#tokenBytes = tokenBytes
    this.#draw = createDraw(owner, index)
    this.#decodeRow = {
      slot: NO_SLOT,
      tokens: new Int32Array(1),
      samples: [this.#draw],
      stops: owner.stopTokens,
    }
  }

  /** Null before admission and after the end, and while others have it. */
  get slot(): number | null {
    return this.#slot
  }

  set slot(slot: number | null) {
    this.#slot = slot
    this.numRows = 0
    this.#decodeRow.slot = slot ?? NO_SLOT
  }

  /** Where its penalty counts are, from admission to its end. */
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

  /** Decoding, and nothing of its own holds it up. */
  get canGoOn(): boolean {
    return this.isDecoding && !this.isCopying && !this.isAway && !this.owner.isLeaving
  }

  get isDecoding(): boolean {
    return this.numDrawn > 0 && this.finish === null
  }

  /** What may be drawn next is known, and what must come before it was taken. */
  get isSettled(): boolean {
    return this.matcher === null || (this.numAwaited === 0 && this.matcher.hasTaken)
  }

  /** Its next row can go before it is known what may be drawn after it: that draw is made later. */
  get canDrawLater(): boolean {
    return this.numAwaited === 1 && this.#numToWait === 0 && this.blend === null
  }

  /** Tokens came without a draw, after a row was launched that draws the next: that draw is of no use. */
  get isOvertaken(): boolean {
    return this.numAwaited > 0 && this.#numSent < this.numDrawn
  }

  /** Its draw after the last token was not made when it could have been. */
  get isBehind(): boolean {
    return this.numAwaited === 0 && this.#numSent === this.numDrawn
  }

  /** What may be drawn after the last token is not known yet, and is needed. */
  get lacksMask(): boolean {
    const { finish, matcher, owner } = this
    if (matcher === null || finish !== null || owner.isLeaving || this.isOvertaken) return false
    return !matcher.isReady || !matcher.hasTaken
  }

  /** Nothing is awaited of the draw that is left: it is of no use, or its mask has not come. */
  forgoes(): void {
    if (!this.isOvertaken) this.#numToWait = LATE_ROWS
    this.numAwaited--
  }

  /** Ended, and no row of it is on its way that runs: a drawn stop token holds the next row back, a stop string does not. */
  get isOver(): boolean {
    if (this.finish === null) return false
    return this.numAwaited === 0 || (typeof this.finish.matched !== 'string' && !this.isOvertaken)
  }

  /** Drawn tokens that its slot has consumed, once everything on its way has run. */
  get numFed(): number {
    const isHeldBack = typeof this.finish?.matched === 'number'
    return isHeldBack ? Math.min(this.#numSent, this.numDrawn - 1) : this.#numSent
  }

  /** Its next row can go: the token that it feeds is known here, or will be on the device after `lastFlight`. */
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

  /** How the next token is drawn; valid until then. */
  get draw(): SampleSpec {
    return this.#drawAt(this.numDrawn)
  }

  /** Tokens that its next row has beside the one that every row has: they were not drawn. */
  get numExtra(): number {
    return this.numAwaited > 0 || this.isBehind ? 0 : this.numDrawn - 1 - this.#numSent
  }

  /**
   * Feeds the last token, which no state has consumed yet, and draws the next; valid until then. Of several tokens at most
   * `1 + maxExtra` are fed, and nothing is drawn while some are left.
   */
  nextRow(maxExtra: number): BatchRow {
    assert(this.#slot !== null && this.isDecoding, 'a sequence was stepped that has no next token')
    if (this.#numToWait > 0 && this.numAwaited === 0) this.#numToWait--
    this.#decodeRow.drawsLater = this.matcher !== null && this.numAwaited > 0
    if (this.isBehind || this.numExtra > 0)
      return this.#rowOfOther(this.isBehind ? 0 : 1 + Math.min(this.numExtra, maxExtra))
    const position = this.numDrawn + this.numAwaited
    this.#drawAt(position)
    this.#decodeRow.tokens[0] =
      this.numAwaited === 0 ? this.drawn.at(-1)! : fedByDraw(this.#awaited.draw)
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

  /** As nextRow, with guesses of what it draws after all that was drawn. */
  rowWithGuesses(guesses: readonly number[], spare: number): BatchRow {
    assert(this.#slot !== null && this.numAwaited === 0, 'guesses beside a draw on its way')
    const unfed = this.drawn.slice(this.#numSent)
    this.#numBefore = this.#numSent
    this.#numSent = this.numDrawn + guesses.length
    const draw = this.#drawAt(this.numDrawn)
    return {
      ...this.#decodeRow,
      tokens: Int32Array.of(...unfed, ...guesses),
      samples: [...guesses, null].map((_, i) => ({ ...draw, position: draw.position + i })),
      guesses: { count: guesses.length, spare },
    }
  }

  /** Its slot has consumed all tokens but the last, as after any row without guesses. */
  get isLevel(): boolean {
    return this.#numSent === this.numDrawn - 1
  }

  /** Its slot is again as it was before its last row. */
  rewound(): void {
    this.#numSent = this.#numBefore
  }

  #drawAt(position: number): SampleSpec {
    this.#draw.position = position
    this.#draw.mask = this.numAwaited > 0 ? undefined : this.matcher?.mask
    return this.#draw
  }

  /** Takes a drawn token and decides whether the answer ends with it. */
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

  /** Text that was held back may turn out to be a stop string now; that comes before the given reason. */
  end(finish: Finish): void {
    const matched = this.text.end()
    this.finish = matched === null ? finish : { reason: 'stop', matched }
  }
}
