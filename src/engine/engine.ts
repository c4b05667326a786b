/**
 * The engine of one model: requests in, events out. It owns the parts and the order in which they work in a step:
 * scheduler.ts chooses the rows, outcomes.ts says what their results mean. It knows nothing of loops, processes or HTTP:
 * local-client.ts and worker-loop.ts drive it, by `turn`.
 *
 * There are two ways to run it. `step` launches a step, waits for it and handles its results. `turn` does the same on a
 * runner with one flight; on other runners it launches the next step before it handles the last (docs/architecture.md).
 */
import { setImmediate } from 'node:timers/promises'
import { SkeinError } from '../errors.ts'
import type { Constraint } from '../grammar/constraint.ts'
import { Matchers, type StartThread } from '../grammar/matchers.ts'
import type { Runner } from '../model/runner.ts'
import { grammarTokens, type TokenBytes } from './answer/answer-text.ts'
import { Ranking } from './answer/ranking.ts'
import { Flights } from './flights.ts'
import { StartStates } from './kept/start-states.ts'
import { DEFAULT_LIMITS, type EngineLimits, lineFull, lineLength } from './limits.ts'
import type { CallHandlers, EngineCall, EngineCalls, EngineEvent, EngineInfo, GenerateRequest } from './messages.ts'
import { Outcomes } from './outcomes.ts'
import { itlTargetOf, PrefillBudget } from './prefill-budget.ts'
import { mayForce, type PlannedRow, Scheduler, tokensOf, usableSlots } from './scheduler.ts'
import { LiveRequest } from './sequence.ts'
import { SlotPool } from './slots.ts'
import { Speculation } from './speculation/speculation.ts'
import { StateTransfers } from './state-transfers.ts'
import { type StateOptions, States } from './states.ts'
import type { EngineStats } from './stats.ts'
import { checkRequest } from './validate.ts'

/** How long a step waits for masks when no other step is under way. After that, rows that need no mask run. */
const MASK_WAIT_MS = 2

export class Engine {
  readonly info: EngineInfo
  readonly startStates = new StartStates()
  readonly #runner: Runner
  readonly #tokenBytes: TokenBytes
  readonly #scheduler: Scheduler
  readonly #flights: Flights
  readonly #transfers: StateTransfers
  /** Null when no states are kept. */
  readonly #states: States | null
  readonly #outcomes: Outcomes
  readonly #speculation: Speculation
  readonly #matchers: Matchers
  #failure: SkeinError | null = null
  /** When the oldest step under way was launched, or the last one landed. Milliseconds of `performance.now()`. */
  #busySince = 0
  /** Called when something arrived between steps that the next step must handle. */
  onWake: () => void = () => {}
  readonly #counters = { steps: 0, lastBatchTokens: 0, busySeconds: 0 }

  /** The engine owns the runner from here on. It keeps states and shares prefixes only with `states`. */
  constructor(
    runner: Runner,
    tokenBytes: TokenBytes,
    limits: Partial<EngineLimits> = {},
    states: StateOptions | null = null,
    startGrammars?: StartThread,
  ) {
    const given = { ...DEFAULT_LIMITS, ...limits }
    const { maxWaiting, maxPromptTokens } = given
    const { poisonFreedSlots, embeddings, embeddingHeads, reranker } = given
    const { vocabSize } = runner.info
    this.#runner = runner
    this.#tokenBytes = tokenBytes
    const slots = new SlotPool(runner, usableSlots(runner), poisonFreedSlots)
    this.#transfers = new StateTransfers(runner, slots, states?.prefixBytes)
    const wake = () => this.onWake()
    this.#states = states === null ? null : new States(runner, slots, this.#transfers, tokenBytes, states, wake)
    const prefill = new PrefillBudget(given, itlTargetOf(runner), runner.maxTokens, vocabSize)
    const speculation = new Speculation(runner, given.proposers, given.now)
    this.#speculation = speculation
    const { preemptBytes } = given
    this.#scheduler = new Scheduler(runner, slots, this.#transfers, prefill, this.#states, speculation, preemptBytes)
    const learn = (plan: readonly PlannedRow[], ms: number, gapMs: number, number: number) => {
      const [answers, prompts] = tokensOf(plan)
      const wasShort = this.#scheduler.turns.learn(number, ms + gapMs, answers, prompts)
      // On a pipeline every step passes through all devices.
      if (!wasShort) prefill.learn(runner.feedsDraws ? ms : ms * runner.maxFlights, answers, prompts)
      if (prompts > 0) return
      const numRows = plan.reduce((sum, { owner }) => sum + owner.width, 0)
      const hasGuesses = plan.some(({ row }) => row.guesses !== undefined)
      speculation.learnStep(numRows, answers, hasGuesses, ms, gapMs)
    }
    this.#flights = new Flights(runner, learn, given.now)
    this.#outcomes = new Outcomes(
      runner,
      tokenBytes,
      this.#scheduler,
      this.#states,
      this.#speculation,
      wake,
      given,
      reranker === null ? null : new Ranking(this.#transfers, reranker),
    )
    const { numSlots } = this.#scheduler
    this.#matchers = new Matchers({
      tokens: () => grammarTokens(tokenBytes, vocabSize),
      vocabSize,
      numRows: runner.numPlaces,
      ...(startGrammars === undefined ? {} : { start: startGrammars }),
    })
    this.info = {
      model: runner.info,
      numSlots,
      maxWaiting: lineLength(maxWaiting, numSlots),
      maxPromptTokens,
      startStates: this.startStates.names,
      ...(embeddings === null ? {} : { embeddings }),
      ...(embeddingHeads.size === 0 ? {} : { embeddingTasks: [...embeddingHeads.keys()] }),
      ...(reranker === null ? {} : { ranks: true as const }),
      toolTemplate: given.toolTemplate,
    }
  }

  /**
   * Puts a request at the end of the waiting line. Throws invalid_request, too_large or queue_full, and then changes
   * nothing.
   */
  submit(request: GenerateRequest): void {
    if (this.#failure !== null) throw this.#failure
    checkRequest(request, this.info, this.#states !== null && this.#tokenBytes.encode !== undefined)
    if (this.#outcomes.live.has(request.id))
      throw new SkeinError('invalid_request', `id ${request.id} is in use by a live request`)
    const live = new LiveRequest(request, this.#tokenBytes)
    this.startStates.begin(live)
    const { maxWaiting } = this.info
    const { waiting, running } = this.#scheduler
    const numOpening = this.#outcomes.live.size - waiting.numNew - running.length
    const isFull = this.#scheduler.numWaitingWith(live.numSlots) + numOpening > maxWaiting
    // `#opening` is expensive: it is called only when the line is full and some request is opening.
    const opening = isFull && numOpening > 0 ? this.#opening() : []
    if (isFull && !waiting.isUnderPart(request, maxWaiting, opening)) throw lineFull(maxWaiting)
    this.#outcomes.live.set(request.id, live)
    if (request.constraint !== undefined) {
      void this.#openGrammar(live, request.constraint)
      return
    }
    try {
      this.#open(live)
    } catch (error) {
      this.#outcomes.live.delete(live.id)
      throw error
    }
  }

  /** Puts the request into the waiting line once its grammar is compiled. */
  async #openGrammar(live: LiveRequest, constraint: Constraint): Promise<void> {
    const matchers = this.#matchers
    // It may be cancelled meanwhile.
    const isWanted = () => this.#outcomes.live.get(live.id) === live
    try {
      const grammar = await matchers.compile(constraint, { tenant: live.request.tenant ?? '', isWanted })
      if (!isWanted()) return
      live.rules = matchers.rules(grammar, mayForce(live.request))
      this.#open(live)
    } catch (error) {
      if (isWanted() && this.#failure === null) this.#outcomes.fail(live, SkeinError.from(error))
    }
    this.onWake()
  }

  #joinLine(live: LiveRequest): void {
    const join = () => {
      if (this.#outcomes.live.get(live.id) === live) this.#scheduler.waiting.push(live)
    }
    if (this.#states === null) join()
    else this.#states.afterPrefix(live, join)
  }

  /** Requests that wait for a grammar, for a prefix, or for a session: for its writer, or for its state. */
  #opening(): LiveRequest[] {
    const { waiting, running } = this.#scheduler
    const others = new Set<unknown>([...waiting, ...running])
    return [...this.#outcomes.live.values()].filter((live) => !others.has(live))
  }

  /** Ends a request in any phase; its slots are free at once and no further event of it follows. Unknown ids are fine. */
  cancel(id: string): void {
    const live = this.#outcomes.live.get(id)
    if (live === undefined) return
    const isKept = live.request.session?.onCancel === 'keep'
    if (isKept && live.isOnItsWay) this.#outcomes.cancelLater(live)
    else this.#outcomes.cancel(live)
  }

  /** Whether a step would do something. Requests that wait for the store or for a session's writer do not count. */
  get hasWork(): boolean {
    const { waiting, running } = this.#scheduler
    const isBusy = waiting.length + running.length + this.#outcomes.numEvents + this.#flights.count > 0
    // This getter runs in every turn and looks through many states, so they are checked last.
    const isMoving = () => this.#transfers.isBusy || this.#states?.hasWork === true
    return this.#failure === null && (isBusy || isMoving())
  }

  /** Large results wait to be told: requests that make more of them pause, and all others go on. */
  set holdsWide(holds: boolean) {
    this.#scheduler.holdsWide = holds
  }

  /** Nothing can be done before `holdsWide` ends. */
  get isHeld(): boolean {
    return this.#scheduler.isHeld && this.#flights.count === 0 && !this.#transfers.isBusy
  }

  /** Every request has been answered. */
  get isIdle(): boolean {
    const { live, leaving, numEvents } = this.#outcomes
    return live.size + leaving.size + numEvents === 0
  }

  get liveIds(): readonly string[] {
    return [...this.#outcomes.live.keys()]
  }

  /** Why this engine can no longer be used; its process should end. */
  get failure(): SkeinError | null {
    return this.#failure
  }

  /** One forward pass; if it `overlaps`, the next has begun when its results are handled. On failure every request ends. */
  step(overlaps = false): EngineEvent[] {
    this.#guard(() => {
      this.#transfers.turn()
      if (overlaps && this.#flights.count === 0) this.#launch()
      this.#launch()
      const numLeft = overlaps ? this.#flights.count - 1 : 0
      while (this.#flights.count > Math.max(0, numLeft)) this.#land()
      this.#rest()
    })
    return this.#outcomes.takeEvents()
  }

  /**
   * Does as much as it can without waiting for the device: launches the next step, then lands the oldest one if it is
   * done. Returns null when it is not done; call again soon. On a runner with one flight this is step().
   */
  turn(): EngineEvent[] | null {
    // With overlaps, rows that wait for masks would be in every second step only.
    if (this.#runner.maxFlights === 1) return this.step(this.#flights.mayOverlap && !this.#scheduler.hasRules)
    let hasLanded = false
    this.#guard(() => {
      this.#transfers.turn()
      // What holds the next step back is the one on its way: to ask again before it lands would only delay its landing.
      const isHeld = this.#scheduler.isWaiting && this.#flights.count > 0
      if (isHeld) this.#takeMasks()
      else if (this.#flights.hasRoom) this.#launch()
      const isStepping = this.#flights.count > 0
      hasLanded = isStepping ? this.#flights.isOldestDone : !this.#transfers.isBusy
      if (!isStepping) this.#rest()
      else if (hasLanded) this.#land()
      // Where the next step had to wait for this one, launch it before anything else.
      if (hasLanded && this.#scheduler.isWaiting) this.#launch()
    })
    return hasLanded || this.#outcomes.numEvents > 0 ? this.#outcomes.takeEvents() : null
  }

  /** After a turn that returned null: milliseconds until the next one need be, judging by the last few steps. */
  get restMs(): number {
    return this.#flights.restMs
  }

  /** For while there is nothing to do: one thing that later steps would take time for. False: all is done. */
  prepare(): boolean {
    return this.#transfers.prepare()
  }

  get stats(): EngineStats {
    const { waiting, running, numSlots, numFree, preemption } = this.#scheduler
    const prefilling = running.filter(({ isPrefilling }) => isPrefilling).length
    const lines = { waiting: waiting.numNew, running: running.length, prefilling }
    const now = { ...lines, numSlots, freeSlots: numFree, deviceBytes: this.#runner.heldBytes?.() ?? 0 }
    const fairness = { preempted: preemption.numAway, ...preemption.counters }
    const counts = { ...this.#outcomes.counters, ...this.#counters, ...this.#speculation.counters }
    const stats = { ...now, ...fairness, ...counts }
    return this.#states === null ? stats : { ...stats, states: this.#states.stats }
  }

  /** See EngineCalls. */
  async call<M extends EngineCall>(method: M, params: EngineCalls[M]['params']): Promise<EngineCalls[M]['result']> {
    // A cancelled request may still be saving its session: wait for that first.
    if (this.#outcomes.leaving.size > 0) await this.#allLeft()
    if (this.#failure !== null) throw this.#failure
    const handlers: Partial<CallHandlers> = { ...this.startStates.calls, ...this.#states?.calls }
    const handler = handlers[method]
    if (handler === undefined) throw new SkeinError('state_unavailable', `${method}: this engine keeps no sessions`)
    const result = handler(params)
    // Steps write the changes.
    this.onWake()
    return result
  }

  /** Drops live requests, saves the states of sessions, and releases the runner. Throws when a state is lost. */
  async close(): Promise<void> {
    await this.#allLeft()
    const isSound = this.#failure === null
    this.#failure ??= closed()
    this.#outcomes.live.clear()
    this.#matchers.dispose()
    try {
      await this.#states?.close(isSound)
    } finally {
      // A broken runner is not called again, not even to free what the end of the process frees anyway.
      if (isSound) this.#runner.dispose()
    }
  }

  /** Resolves when cancelled requests whose answers are kept have ended. */
  async #allLeft(): Promise<void> {
    while (this.#outcomes.leaving.size > 0 && this.#failure === null) {
      this.#guard(() => {
        this.#transfers.turn()
        if (this.#flights.isOldestDone) this.#land()
        else if (this.#flights.count === 0) this.#rest()
        else this.#takeMasks()
      })
      if (this.#outcomes.leaving.size > 0) await setImmediate()
    }
  }

  /** Drops live requests, without events, and disposes of the runner. */
  dispose(): void {
    this.#failure ??= closed()
    this.#outcomes.live.clear()
    this.#matchers.dispose()
    this.#states?.dispose()
    this.#runner.dispose()
  }

  #open(live: LiveRequest): void {
    const opening = { ready: () => this.#joinLine(live), fail: (error: SkeinError) => this.#outcomes.fail(live, error) }
    if (live.request.session === undefined) opening.ready()
    else this.#states!.open(live, opening)
  }

  /** Any failure in here ends the engine. */
  #guard(work: () => void): void {
    if (this.#failure !== null) return
    try {
      work()
    } catch (error) {
      this.#die(SkeinError.from(error))
    }
  }

  /**
   * Takes the masks that are ready and makes the draws that the last step left. It waits only when no step is under
   * way. False: some masks are still missing.
   */
  #takeMasks(): boolean {
    this.#matchers.flush()
    if (this.#flights.count === 0) this.#matchers.wait(MASK_WAIT_MS)
    this.#outcomes.settle()
    return this.#flights.drawLater((late) => this.#scheduler.hasOthers(late))
  }

  #launch(): void {
    this.#scheduler.isHeld = false
    if (!this.#takeMasks()) return
    const plan = this.#scheduler.schedule(this.#flights.last)
    if (plan.length === 0) return
    if (this.#flights.count === 0) this.#busySince = performance.now()
    this.#flights.launch(plan)
    for (const { owner, numPrompt } of plan) if (numPrompt > 0) this.#states?.atPoint(owner)
    this.#counters.steps++
    this.#counters.lastBatchTokens = plan.reduce((sum, { row }) => sum + row.tokens.length, 0)
  }

  #land(): void {
    for (const [planned, result] of this.#flights.land()) this.#outcomes.accept(planned, result)
    this.#matchers.flush()
    const now = performance.now()
    this.#counters.busySeconds += (now - this.#busySince) / 1000
    this.#busySince = now
    this.#rest()
  }

  /** Background work, after what requests need. */
  #rest(): void {
    this.#outcomes.endLeaving()
    this.#states?.tidy()
    this.#scheduler.checkIdle()
  }

  /** After a broken step any state may be wrong, so nothing of this engine is used again, not even its slots. */
  #die(error: SkeinError): void {
    this.#failure = error
    this.#outcomes.failAll(error)
  }
}

function closed(): SkeinError {
  return new SkeinError('model_not_loaded', 'the engine was closed')
}
