/**
 * What the results of a step mean for the live requests: events, ends, forks and failures. Which rows ran is scheduler.ts,
 * where an answer ends sequence.ts, what is kept of it states.ts; when a step is looked at is engine.ts.
 */
import { assert, SkeinError } from '../errors.ts'
import type { BatchRow, Drawn, Guesses, RowResult, Runner } from '../model/runner.ts'
import type { TokenBytes } from './answer/answer-text.ts'
import { leavesSome } from './answer/draw-numbers.ts'
import type { EmbeddingHeads } from './answer/embedding-sum.ts'
import { logprobsOf, withBytes } from './answer/logprobs.ts'
import { notFinite } from './answer/not-finite.ts'
import type { Ranking } from './answer/ranking.ts'
import type { EngineEvent, SessionPosition } from './messages.ts'
import type { PlannedRow, Scheduler } from './scheduler.ts'
import type { LiveRequest, Sequence } from './sequence.ts'
import type { Speculation } from './speculation/speculation.ts'
import type { States } from './states.ts'

export class Outcomes {
  readonly live = new Map<string, LiveRequest>()
  /** Cancelled, with rows on their way. */
  readonly leaving = new Set<LiveRequest>()
  readonly counters = {
    promptTokens: 0,
    generatedTokens: 0,
    finishedStop: 0,
    finishedLength: 0,
    aborted: 0,
    failed: 0,
  }
  readonly #runner: Runner
  readonly #vocabSize: number
  readonly #tokenBytes: TokenBytes
  readonly #scheduler: Scheduler
  /** Null where no states are kept. */
  readonly #states: States | null
  readonly #speculation: Speculation
  readonly #wake: () => void
  /** Events of this step, and those since the last one. */
  #events: EngineEvent[] = []

  readonly #embeddingHeads: EmbeddingHeads
  /** Null where there is no reranker. */
  readonly #ranking: Ranking | null

  /** `wake` is called when something came between steps that the next one has to deal with. */
  constructor(
    runner: Runner,
    tokenBytes: TokenBytes,
    scheduler: Scheduler,
    states: States | null,
    speculation: Speculation,
    wake: () => void,
    embeddingHeads: EmbeddingHeads = new Map(),
    ranking: Ranking | null = null,
  ) {
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

  /** A request ends in any phase, and no further event of it follows. */
  cancel(live: LiveRequest): void {
    this.#states?.abandon(live, true)
    this.remove(live)
    this.counters.aborted++
    this.dropEvents(live.id)
  }

  /**
   * As cancel, of a request that keeps its answer so far and has rows on their way: what is kept must be of a step that
   * was looked at. From here on it shows no more; it ends when they have landed.
   */
  cancelLater(live: LiveRequest): void {
    live.isLeaving = true
    this.live.delete(live.id)
    this.leaving.add(live)
    this.dropEvents(live.id)
  }

  /** Ends those cancelled of which nothing is on its way any more. */
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

  /** Every live request ends with this error; nothing else is touched. */
  failAll(error: SkeinError): void {
    for (const id of this.live.keys()) {
      this.counters.failed++
      this.#events.push({ type: 'error', id, error: error.toShape() })
    }
    this.live.clear()
  }

  /** What a row of a step has drawn. */
  accept(planned: PlannedRow, { drawn, logits, hidden }: RowResult): void {
    const { owner, takers, numPrompt, row } = planned
    if (row.guesses !== undefined) {
      this.#acceptGuessed(takers[0]!, row, row.guesses, drawn)
      return
    }
    if (takers.length > 0)
      assert(drawn.length === takers.length, `${drawn.length} draws for ${takers.length} takers`)
    if (this.leaving.has(owner)) {
      this.#acceptLeaving(takers, drawn, planned.isMoot === true)
      return
    }
    // It may have failed in another row of this very step, or have been cancelled while the step was on its way.
    if (this.live.get(owner.id) !== owner) return
    if (hidden !== undefined) owner.embedding?.add(hidden, this.#runner.info.stateShape.channels)
    if (numPrompt > 0) this.#acceptPrompt(planned, logits)
    this.#acceptDrawn(owner, takers, drawn)
  }

  /** Takes what grammars say must come, of answers whose next token can be drawn. */
  settle(): void {
    const held = this.#scheduler.running.filter(({ rules }) => rules !== null)
    for (const { sequences } of held) for (const sequence of sequences) this.#settle(sequence)
  }

  #settle(sequence: Sequence): void {
    const { matcher, owner } = sequence
    if (matcher === null || sequence.finish !== null || owner.isLeaving) return
    // One that is away is left alone, unless it has a draw to be made before it goes.
    if (sequence.isAway && sequence.numAwaited === 0) return
    if (matcher.hasTaken || !matcher.isReady) return
    if (matcher.hasFailed) {
      const message = 'the grammar of the answer could not be followed; make it simpler'
      this.fail(owner, new SkeinError('internal', message))
      return
    }
    const forced = matcher.takeForced()
    for (const token of forced) {
      if (sequence.finish !== null) break
      sequence.accept(token, null)
      this.counters.generatedTokens++
      this.#states?.drew(sequence)
    }
    if (forced.length > 0) this.#report(sequence)
    if (sequence.finish !== null || leavesSome(owner.bias, matcher.mask)) return
    const message = 'the bans of the request leave no token that its grammar allows'
    this.fail(owner, new SkeinError('invalid_request', message, { param: 'banned_tokens' }))
  }

  #acceptPrompt(planned: PlannedRow, logits: Float32Array | undefined): void {
    const { owner, numPrompt, fedTo } = planned
    if (logits !== undefined && !this.#score(planned, logits)) return
    this.counters.promptTokens += numPrompt
    // Else more of it is on its way; at a point nothing is.
    if (fedTo === owner.numFed) this.#states?.atPoint(owner)
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

  /** It leaves the scheduler at once; its events come with the score. */
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

  /** The prompt was read once, into the first choice's slot. This runs before that slot is stepped or freed. */
  #fork({ sequences }: LiveRequest): void {
    const from = sequences[0]!.slot
    for (const { slot } of sequences.slice(1)) {
      assert(from !== null && slot !== null, 'a fork without slots')
      this.#runner.copySlot(from, slot)
    }
  }

  /** Adds the log-probabilities of the tokens that follow the ones just fed. False: the request has failed. */
  #score({ owner, numPrompt, fedTo }: PlannedRow, logits: Float32Array): boolean {
    const { prompt } = owner
    const { promptLogprobs: k } = owner.request
    assert(k !== null, 'prompt logits came and were not asked')
    for (let row = 0; row < numPrompt; row++) {
      const token = prompt[fedTo - numPrompt + row + 1]!
      const logprob = logprobsOf(logits, row, this.#vocabSize, token, k)
      if (logprob === null) {
        this.fail(owner, notFinite('in the prompt'))
        return false
      }
      owner.promptLogprobs!.push(withBytes(logprob, this.#tokenBytes))
    }
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
      if (sequence.finish === null && sequence.matcher !== null)
        owner.rules!.advance(sequence.matcher, token)
      this.counters.generatedTokens++
      this.#states?.drew(sequence)
      this.#report(sequence)
    }
  }

  /** The draws that count: up to the first that differs from its guess, or ends the answer. */
  #acceptGuessed(
    sequence: Sequence,
    { tokens }: BatchRow,
    { count, spare }: Guesses,
    drawn: readonly Drawn[],
  ): void {
    const { owner } = sequence
    const isLeaving = this.leaving.has(owner)
    if (isLeaving || this.live.get(owner.id) === owner) {
      const guesses = tokens.subarray(tokens.length - count)
      const before = { numDrawn: sequence.numDrawn, wasHolding: sequence.text.isHolding }
      const broken = this.#takeGuessed(sequence, guesses, drawn)
      const numTaken = sequence.numDrawn - before.numDrawn
      this.#scheduler.waiting.charge(owner, numTaken - 1)
      this.counters.generatedTokens += numTaken
      // A copy from before a stop string is taken of a state that has not consumed where it begins.
      const isBeforeStop = sequence.text.isHolding && !before.wasHolding
      if (!sequence.isLevel || (isBeforeStop && owner.request.session !== undefined)) {
        this.#runner.rewindSlot(sequence.slot!, spare)
        sequence.rewound()
      }
      this.#states?.drew(sequence)
      if (broken) this.#breakOff(sequence, isLeaving)
      else if (!isLeaving) this.#report(sequence)
    }
    this.#speculation.release(sequence, spare)
  }

  /** Takes draws for as long as they are what was guessed, and the one after; true when one of these was not finite. */
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

  /** What a session keeps of an answer that nobody hears any more. */
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

  /** A row that was launched before the end of its answer was known. After a stop token it did not run. */
  #overran(sequence: Sequence, token: number): void {
    if (sequence.slot === null) return
    sequence.isSpoilt = token < 0
    this.#end(sequence)
  }

  /** Collects what became of a sequence in this step, and lets go of what has ended. */
  #report(sequence: Sequence): void {
    const { owner, index } = sequence
    const released = sequence.text.take()
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
    const more = {
      ...this.#speculation.countsOf(sequence),
      ...(session === null ? {} : { session }),
    }
    this.#events.push({ type: 'finish', id, index, ...finish, completionTokens: numDrawn, ...more })
    if (finish.reason === 'stop') this.counters.finishedStop++
    else this.counters.finishedLength++
    if (owner.isDone) this.live.delete(id)
  }

  /** Takes a request out, in whatever phase it is. */
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
