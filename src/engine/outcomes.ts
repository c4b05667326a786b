/**
 * What the results of a step mean for live requests: events, ends, forks and failures. scheduler.ts chose the rows,
 * sequence.ts decides where an answer ends, states.ts what is kept of it, and engine.ts when a step is landed.
 */
import { assert, SkeinError } from '../errors.ts'
import type { BatchRow, Drawn, Guesses, RowResult, Runner } from '../model/runner.ts'
import type { TokenBytes } from './answer/answer-text.ts'
import { leavesSome } from './answer/draw-numbers.ts'
import type { EmbeddingHeads } from './answer/embedding-sum.ts'
import { logprobOf, notFinite, type ScoreRows, withBytes } from './answer/logprobs.ts'
import type { Ranking } from './answer/ranking.ts'
import type { EngineLimits } from './limits.ts'
import type { EngineEvent, SessionPosition } from './messages.ts'
import type { PlannedRow, Scheduler } from './scheduler.ts'
import type { LiveRequest, Sequence } from './sequence.ts'
import type { Speculation } from './speculation/speculation.ts'
import type { States } from './states.ts'

export class Outcomes {
  readonly live = new Map<string, LiveRequest>()
  /** Cancelled requests with rows in flight. */
  readonly leaving = new Set<LiveRequest>()
  readonly counters = { promptTokens: 0, generatedTokens: 0, finishedStop: 0, finishedLength: 0, aborted: 0, failed: 0 }
  readonly #runner: Runner
  readonly #vocabSize: number
  readonly #tokenBytes: TokenBytes
  readonly #scheduler: Scheduler
  /** Null when no states are kept. */
  readonly #states: States | null
  readonly #speculation: Speculation
  readonly #wake: () => void
  /** Events since the last time they were taken. */
  #events: EngineEvent[] = []
  readonly #embeddingHeads: EmbeddingHeads
  readonly #scoreRows: ScoreRows
  /** Null without a reranker. */
  readonly #ranking: Ranking | null

  /** Calls `wake` when something arrived between steps that the next one must handle. */
  constructor(
    runner: Runner,
    tokenBytes: TokenBytes,
    scheduler: Scheduler,
    states: States | null,
    speculation: Speculation,
    wake: () => void,
    { embeddingHeads, scoreRows }: Pick<EngineLimits, 'embeddingHeads' | 'scoreRows'>,
    ranking: Ranking | null,
  ) {
    this.#scoreRows = scoreRows
    this.#ranking = ranking
    this.#embeddingHeads = embeddingHeads
    this.#runner = runner
    this.#vocabSize = runner.info.vocabSize
    this.#tokenBytes = tokenBytes
    this.#scheduler = scheduler
    this.#states = states
    this.#speculation = speculation
    this.#wake = wake
  }

  get numEvents(): number {
    return this.#events.length
  }

  takeEvents(): EngineEvent[] {
    const events = this.#events
    this.#events = []
    return events
  }

  /** Ends a request in any phase; no event of it follows. */
  cancel(live: LiveRequest): void {
    this.#states?.abandon(live, true)
    this.remove(live)
    this.counters.aborted++
    this.dropEvents(live.id)
  }

  /**
   * Cancels a request that keeps its answer so far while it has rows in flight: only landed steps may be kept. It emits
   * nothing more, and ends when those rows have landed.
   */
  cancelLater(live: LiveRequest): void {
    live.isLeaving = true
    this.live.delete(live.id)
    this.leaving.add(live)
    this.dropEvents(live.id)
  }

  /** Ends cancelled requests that have nothing in flight any more. */
  endLeaving(): void {
    for (const live of this.leaving) {
      if (live.isOnItsWay) continue
      this.leaving.delete(live)
      const [sequence] = live.sequences
      const isAnswered = sequence!.finish !== null && sequence!.slot !== null
      if (isAnswered) this.#states?.answerEnds(sequence!, () => {})
      else this.#states?.abandon(live, !sequence!.isSpoilt)
      this.#scheduler.remove(live)
      this.counters.aborted++
      this.#wake()
    }
  }

  dropEvents(id: string): void {
    this.#events = this.#events.filter((event) => event.id !== id)
  }

  /** Ends every live request; nothing else changes. Those that still wait can be repeated, and their error says so. */
  failAll(error: SkeinError): void {
    const begun = new Set(this.#scheduler.running)
    const retry = new SkeinError('model_not_loaded', 'the model failed before this request had begun; retry')
    for (const [id, live] of this.live) {
      this.counters.failed++
      this.#events.push({ type: 'error', id, error: (begun.has(live) ? error : retry).toShape() })
    }
    this.live.clear()
  }

  /** Handles what a row of a step has drawn. */
  accept(planned: PlannedRow, { drawn, logits, hidden }: RowResult): void {
    const { owner, takers, numPrompt, row } = planned
    if (row.guesses !== undefined) {
      this.#acceptGuessed(takers[0]!, row, row.guesses, drawn)
      return
    }
    if (takers.length > 0) assert(drawn.length === takers.length, `${drawn.length} draws for ${takers.length} takers`)
    if (this.leaving.has(owner)) {
      this.#acceptLeaving(takers, drawn, planned.isMoot === true)
      return
    }
    // The request may have failed in another row of this step, or been cancelled while the step ran.
    if (this.live.get(owner.id) !== owner) return
    if (hidden !== undefined) owner.embedding?.add(hidden, this.#runner.info.stateShape.channels)
    if (numPrompt > 0) this.#acceptPrompt(planned, logits)
    this.#acceptDrawn(owner, takers, drawn)
  }

  /** Takes the tokens that grammars make certain, for answers whose next token can be drawn. */
  settle(): void {
    const held = this.#scheduler.running.filter(({ rules }) => rules !== null)
    for (const { sequences } of held) for (const sequence of sequences) this.#settle(sequence)
  }

  #settle(sequence: Sequence): void {
    const { matcher, owner } = sequence
    if (matcher === null || sequence.finish !== null || owner.isLeaving) return
    // An answer without its slots is left alone, unless a draw must be made before it leaves.
    if (sequence.isAway && sequence.numAwaited === 0) return
    if (matcher.hasTaken || !matcher.isReady) return
    if (matcher.hasFailed) {
      const message = 'the grammar of the answer could not be followed; make it simpler'
      this.fail(owner, new SkeinError('internal', message))
      return
    }
    const { numDrawn } = sequence
    for (const token of this.#speculation.certainOf(sequence)) {
      sequence.accept(token, null)
      this.counters.generatedTokens++
      this.#states?.drew(sequence)
    }
    if (sequence.numDrawn > numDrawn) this.#report(sequence)
    if (sequence.finish !== null || leavesSome(owner.bias, matcher.mask)) return
    const message = 'the bans of the request leave no token that its grammar allows'
    this.fail(owner, new SkeinError('invalid_request', message, { param: 'banned_tokens' }))
  }

  #acceptPrompt(planned: PlannedRow, logits: Float32Array | undefined): void {
    const { owner, numPrompt, fedTo } = planned
    if (logits !== undefined && !this.#score(planned, logits)) return
    this.counters.promptTokens += numPrompt
    if (fedTo < owner.prompt.length) return
    if (owner.request.isRanked === true) {
      this.#rank(owner)
      return
    }
    this.#states?.promptRead(owner)
    const { id, seed, promptLogprobs: logprobs } = owner
    const embedding = owner.embedding?.through(this.#embeddingHeads, owner.request.embeddingTask)
    if (embedding?.every(Number.isFinite) === false) {
      this.fail(owner, notFinite('at the end of the prompt'))
      return
    }
    this.#events.push({
      type: 'prompt',
      id,
      seed,
      logprobs,
      ...(embedding === undefined ? {} : { embedding }),
      ...this.#states?.usageOf(owner),
    })
    this.#fork(owner)
    if (owner.request.maxTokens > 0) return
    for (const sequence of owner.sequences) {
      sequence.endAtLength()
      this.#report(sequence)
    }
  }

  /** The request leaves the scheduler at once; its events come with the score. */
  #rank(owner: LiveRequest): void {
    const { id, seed, sequences } = owner
    const [sequence] = sequences
    assert(this.#ranking !== null && sequence !== undefined, 'a score without a reranker')
    sequence.endAtLength()
    const isWanted = () => this.live.get(id) === owner
    this.#ranking.rank(sequence, isWanted, (score) => {
      if (Number.isFinite(score)) {
        this.#events.push({ type: 'prompt', id, seed, logprobs: null, score })
        this.#finish(sequence, null)
      } else this.fail(owner, notFinite('of the reranker'))
      this.#wake()
    })
    this.#scheduler.remove(owner)
  }

  /** The first choice's slot has read the prompt. Copies must be made before that slot is stepped or freed. */
  #fork({ sequences }: LiveRequest): void {
    const from = sequences[0]!.slot
    for (const { slot } of sequences.slice(1)) {
      assert(from !== null && slot !== null, 'a fork without slots')
      this.#runner.copySlot(from, slot)
    }
  }

  /** Adds the log-probabilities of the tokens that follow the ones just fed. False: the request has failed. */
  #score({ owner, numPrompt, fedTo }: PlannedRow, logits: Float32Array): boolean {
    const { promptLogprobs: k } = owner.request
    assert(k !== null, 'prompt logits came and were not asked')
    const began = performance.now()
    const tokens = owner.prompt.subarray(fedTo - numPrompt + 1, fedTo + 1)
    const scores = this.#scoreRows(logits, this.#vocabSize, tokens, k)
    for (const [row, token] of tokens.entries()) {
      const logprob = logprobOf(scores, row, token)
      if (logprob === null) {
        this.fail(owner, notFinite('in the prompt'))
        return false
      }
      owner.promptLogprobs!.push(withBytes(logprob, this.#tokenBytes))
    }
    this.#scheduler.prefill.learnScoring(performance.now() - began, numPrompt)
    return true
  }

  #acceptDrawn(owner: LiveRequest, takers: readonly Sequence[], drawn: readonly Drawn[]): void {
    for (const [i, sequence] of takers.entries()) {
      const { token, logprob } = drawn[i]!
      if (sequence.finish !== null) {
        this.#overran(sequence, token)
        continue
      }
      if (token < 0) {
        this.fail(owner, notFinite(`after ${sequence.numDrawn} tokens`))
        return
      }
      sequence.accept(token, logprob)
      if (sequence.finish === null && sequence.matcher !== null) owner.rules!.advance(sequence.matcher, token)
      this.counters.generatedTokens++
      this.#states?.drew(sequence)
      this.#report(sequence)
    }
  }

  /** The draws that count: up to the first that differs from its guess or ends the answer. */
  #acceptGuessed(sequence: Sequence, { tokens }: BatchRow, row: Guesses, drawn: readonly Drawn[]): void {
    const { owner } = sequence
    const { count, spares, every } = row
    const isLeaving = this.leaving.has(owner)
    if (isLeaving || this.live.get(owner.id) === owner) {
      const guesses = tokens.subarray(tokens.length - count)
      const before = { numDrawn: sequence.numDrawn, wasHolding: sequence.text.isHolding }
      const broken = this.#takeGuessed(sequence, guesses, drawn)
      const numTaken = sequence.numDrawn - before.numDrawn
      this.#scheduler.waiting.charge(owner, numTaken - 1)
      this.counters.generatedTokens += numTaken
      // The copy must be of a state that has not consumed the beginning of the stop string.
      const isBeforeStop = owner.request.session !== undefined && sequence.text.isHolding && !before.wasHolding
      if (!sequence.isLevel || isBeforeStop) {
        const place = every > 0 && !isBeforeStop ? Math.floor(Math.max(0, numTaken - 1) / every) : 0
        this.#runner.rewindSlot(sequence.slot!, spares[place]!)
        sequence.rewound(place * every)
      }
      this.#states?.drew(sequence)
      if (broken) this.#breakOff(sequence, isLeaving)
      else if (!isLeaving) this.#report(sequence)
    }
    this.#speculation.release(sequence, row)
  }

  /** Takes draws while they match the guesses, and the one after; true when one of these was not finite. */
  #takeGuessed(sequence: Sequence, guesses: Int32Array, drawn: readonly Drawn[]): boolean {
    let right = 0
    for (const { token, logprob } of drawn) {
      if (token < 0) return true
      sequence.accept(token, logprob)
      const isRight = token === guesses[right]
      if (isRight) right++
      if (!isRight || sequence.finish !== null) break
    }
    this.#speculation.learn(sequence, guesses.length, right)
    return false
  }

  #breakOff(sequence: Sequence, isLeaving: boolean): void {
    const { owner, numDrawn } = sequence
    if (isLeaving) {
      sequence.isSpoilt = true
      this.#states?.distrust(owner)
      return
    }
    this.#report(sequence)
    this.fail(owner, notFinite(`after ${numDrawn} tokens`))
  }

  /** Handles draws of an answer that was cancelled and is kept. */
  #acceptLeaving(takers: readonly Sequence[], drawn: readonly Drawn[], isMoot: boolean): void {
    for (const [i, sequence] of takers.entries()) {
      const { token, logprob } = drawn[i]!
      if (sequence.finish !== null || sequence.isSpoilt || (isMoot && token >= 0)) {
        sequence.isSpoilt ||= token < 0
      } else if (token < 0) {
        sequence.isSpoilt = true
        this.#states?.distrust(sequence.owner)
      } else {
        sequence.accept(token, logprob)
        this.counters.generatedTokens++
        this.#states?.drew(sequence)
      }
    }
  }

  /** A row launched before the end of its answer was known. After a stop token the device did not run it. */
  #overran(sequence: Sequence, token: number): void {
    if (sequence.slot === null) return
    sequence.isSpoilt = token < 0
    this.#end(sequence)
  }

  /** Emits what became of a sequence in this step, and releases it if it has ended. */
  #report(sequence: Sequence): void {
    const { owner, index } = sequence
    const released = sequence.isTold ? sequence.text.take() : null
    if (released !== null) this.#events.push({ type: 'text', id: owner.id, index, ...released })
    if (sequence.isOver) this.#end(sequence)
  }

  #end(sequence: Sequence): void {
    const { owner } = sequence
    if (this.#states === null) this.#finish(sequence, null)
    else {
      this.#states.answerEnds(sequence, (session, error) => {
        if (this.live.get(owner.id) !== owner) return
        if (error === null) this.#finish(sequence, session)
        else this.fail(owner, error)
        this.#wake()
      })
    }
    this.#scheduler.releaseSlot(sequence)
    if (owner.isDone) this.#scheduler.remove(owner)
  }

  #finish(sequence: Sequence, session: SessionPosition | null): void {
    const { owner, index, finish, numDrawn } = sequence
    const { id } = owner
    assert(finish !== null, 'an answer was reported before its end')
    const more = { ...this.#speculation.countsOf(sequence), ...(session === null ? {} : { session }) }
    this.#events.push({ type: 'finish', id, index, ...finish, completionTokens: numDrawn, ...more })
    if (finish.reason === 'stop') this.counters.finishedStop++
    else this.counters.finishedLength++
    if (owner.isDone) this.live.delete(id)
  }

  /** Removes a request in any phase. */
  remove(live: LiveRequest): void {
    this.live.delete(live.id)
    this.#scheduler.remove(live)
  }

  fail(live: LiveRequest, error: SkeinError): void {
    if (error.code === 'kernel_failed') this.#states?.distrust(live)
    this.#states?.abandon(live, false)
    this.remove(live)
    this.counters.failed++
    this.#events.push({ type: 'error', id: live.id, error: error.toShape() })
  }
}
