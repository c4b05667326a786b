/**
 * The engine of one model: requests in, events out. It owns the live requests and what the results of a step mean for
 * them; scheduler.ts chooses the rows, sequence.ts decides where an answer ends. It knows nothing of loops, processes or
 * HTTP: local-client.ts and worker-loop.ts drive it, by `turn`.
 *
 * Two ways to go on. `step` is the plain one: a step is launched, waited for, and looked at. `turn` does the same on a
 * runner with one flight; on others it launches the next step before it looks at the last (docs/architecture.md).
 */
import { assert, SkeinError } from '../errors.ts'
import { type Drawn, MAX_TOP_LOGPROBS, type RowResult, type Runner } from '../model/runner.ts'
import type { TokenBytes } from './answer-text.ts'
import { CopyBudget } from './copy-budget.ts'
import { Flights } from './flights.ts'
import { logprobsOf, withBytes } from './logprobs.ts'
import type {
  CallHandlers,
  EngineCall,
  EngineCalls,
  EngineEvent,
  EngineInfo,
  EngineStats,
  GenerateRequest,
  SessionPosition,
} from './messages.ts'
import { type PlannedRow, Scheduler, usableSlots } from './scheduler.ts'
import { LiveRequest, type Sequence } from './sequence.ts'
import { SlotPool } from './slots.ts'
import { StartStates } from './start-states.ts'
import { DEFAULT_STATE_OPTIONS, type StateOptions, States } from './states.ts'
import { checkRequest } from './validate.ts'

export interface EngineLimits {
  /** Requests in the waiting line; the next one is refused with queue_full. */
  readonly maxWaiting: number
  readonly maxPromptTokens: number
  /**
   * Prompt tokens of a step while answers are being generated. It bounds the time between their tokens: on a CPU 256
   * prompt tokens cost about as much as a few dozen decode rows.
   */
  readonly prefillChunk: number
  /** Fill freed slots with NaN, so that a use after free fails loudly. For tests and debugging. */
  readonly poisonFreedSlots: boolean
}

export const DEFAULT_LIMITS: EngineLimits = {
  maxWaiting: 1024,
  maxPromptTokens: 131_072,
  prefillChunk: 256,
  poisonFreedSlots: Boolean(process.env.SKEIN_DEBUG),
}

export class Engine {
  readonly info: EngineInfo
  readonly startStates = new StartStates()
  readonly #runner: Runner
  readonly #tokenBytes: TokenBytes
  readonly #scheduler: Scheduler
  readonly #flights: Flights
  readonly #copyBudget: CopyBudget
  /** Null where no states are kept. */
  readonly #states: States | null
  readonly #live = new Map<string, LiveRequest>()
  #failure: SkeinError | null = null
  /** Of this step, and of what came since the last one. */
  #events: EngineEvent[] = []
  /** Since when a step has been on its way. */
  #busySince = 0
  /** Told when something came between steps that the next one has to deal with. */
  onWake: () => void = () => {}
  readonly #counters = {
    steps: 0,
    promptTokens: 0,
    generatedTokens: 0,
    finishedStop: 0,
    finishedLength: 0,
    aborted: 0,
    failed: 0,
    lastBatchTokens: 0,
    busySeconds: 0,
  }

  /** The runner belongs to the engine from here on. States are kept, and prefixes shared, only with `states`. */
  constructor(
    runner: Runner,
    tokenBytes: TokenBytes,
    limits: Partial<EngineLimits> = {},
    states: StateOptions | null = null,
  ) {
    const { maxWaiting, maxPromptTokens, prefillChunk, poisonFreedSlots } = {
      ...DEFAULT_LIMITS,
      ...limits,
    }
    this.#runner = runner
    this.#flights = new Flights(runner)
    this.#tokenBytes = tokenBytes
    const slots = new SlotPool(runner, usableSlots(runner), poisonFreedSlots)
    this.#copyBudget = new CopyBudget((states ?? DEFAULT_STATE_OPTIONS).copyBudgetMs)
    const wake = () => this.onWake()
    this.#states =
      states === null ? null : new States(runner, slots, this.#copyBudget, tokenBytes, states, wake)
    const chunk = Math.max(1, prefillChunk)
    this.#scheduler = new Scheduler(runner, slots, this.#copyBudget, chunk, this.#states)
    const { numSlots } = this.#scheduler
    const startStates = this.startStates.names
    this.info = { model: runner.info, numSlots, maxWaiting, maxPromptTokens, startStates }
  }

  /** Puts a request at the end of the line. Throws invalid_request, too_large or queue_full, changing nothing. */
  submit(request: GenerateRequest): void {
    if (this.#failure !== null) throw this.#failure
    const { numSlots, maxPromptTokens, maxWaiting, model } = this.info
    const { vocabSize } = model
    const maxTopLogprobs = Math.min(MAX_TOP_LOGPROBS, vocabSize)
    const hasSessions = this.#states !== null && this.#tokenBytes.encode !== undefined
    checkRequest(request, { vocabSize, numSlots, maxPromptTokens, maxTopLogprobs, hasSessions })
    if (this.#live.has(request.id)) {
      throw new SkeinError('invalid_request', `id ${request.id} is in use by a live request`)
    }
    const live = new LiveRequest(request, this.#tokenBytes)
    this.startStates.begin(live, this.#runner)
    const { waiting, running } = this.#scheduler
    const numOpening = this.#live.size - waiting.length - running.length
    const isFull = this.#scheduler.numWaitingWith(live.numSlots) + numOpening > maxWaiting
    if (isFull && !waiting.isUnderPart(request, maxWaiting)) {
      throw new SkeinError(
        'queue_full',
        `${maxWaiting} requests are waiting, which is the limit; retry later or raise maxWaiting`,
      )
    }
    this.#live.set(request.id, live)
    if (request.session === undefined) waiting.push(live)
    else this.#openSession(live)
  }

  /** Ends a request in any phase; its slots are free at once and no further event of it follows. Unknown ids are fine. */
  cancel(id: string): void {
    const live = this.#live.get(id)
    if (live === undefined) return
    // What is kept of it must be of a step that was looked at.
    if (live.request.session?.onCancel === 'keep') this.#guard(() => this.#landAll())
    if (this.#live.get(id) === live) {
      this.#states?.abandon(live, true)
      this.#remove(live)
      this.#counters.aborted++
    }
    this.#events = this.#events.filter((event) => event.id !== id)
  }

  /** A step would do something. Requests that wait for the store, or for a session's writer, are no work. */
  get hasWork(): boolean {
    const { waiting, running } = this.#scheduler
    const isBusy = waiting.length + running.length + this.#events.length + this.#flights.count > 0
    return this.#failure === null && (isBusy || this.#states?.hasChores === true)
  }

  /** Every request has been answered. */
  get isIdle(): boolean {
    return this.#live.size === 0 && this.#events.length === 0
  }

  get liveIds(): readonly string[] {
    return [...this.#live.keys()]
  }

  /** Why this engine can no longer be used; its process should end. */
  get failure(): SkeinError | null {
    return this.#failure
  }

  /** One forward pass, waited for. If it fails, every live request gets an error event and `failure` is set. */
  step(): EngineEvent[] {
    this.#guard(() => {
      this.#launch()
      this.#landAll()
    })
    return this.#takeEvents()
  }

  /**
   * As much as can be done without waiting for the device: the next step is launched, then the oldest is looked at if it
   * is over. Null when it is not; ask again soon. On a runner with one flight this is step().
   */
  turn(): EngineEvent[] | null {
    if (this.#runner.maxFlights === 1) return this.step()
    let hasLanded = false
    this.#guard(() => {
      // Copies of states wait for the device, so nothing is sent ahead of them.
      const isHeld = this.#flights.count > 0 && this.#states?.hasChores === true
      if (this.#flights.hasRoom && !isHeld) this.#launch()
      hasLanded = this.#flights.count === 0 || this.#flights.isOldestDone
      if (this.#flights.count === 0) this.#rest()
      else if (hasLanded) this.#land()
    })
    return hasLanded || this.#events.length > 0 ? this.#takeEvents() : null
  }

  /** After a turn that gave null: milliseconds for which another one would, going by the last few steps. */
  get restMs(): number {
    return this.#flights.restMs
  }

  get stats(): EngineStats {
    const { waiting, running, numSlots, numFree } = this.#scheduler
    const now = { waiting: waiting.length, running: running.length, numSlots, freeSlots: numFree }
    if (this.#states === null) return { ...now, ...this.#counters }
    return { ...now, ...this.#counters, states: this.#states.stats }
  }

  /** See EngineCalls. */
  async call<M extends EngineCall>(
    method: M,
    params: EngineCalls[M]['params'],
  ): Promise<EngineCalls[M]['result']> {
    if (this.#failure !== null) throw this.#failure
    const handlers: Partial<CallHandlers> = { ...this.startStates.calls, ...this.#states?.calls }
    const handler = handlers[method]
    if (handler === undefined) {
      throw new SkeinError('state_unavailable', `${method}: this engine keeps no sessions`)
    }
    const result = handler(params)
    // Changes are written by steps.
    this.onWake()
    return result
  }

  /** Drops what is live, saves the states of sessions, and lets go of the runner. Throws when a state is lost. */
  async close(): Promise<void> {
    const isSound = this.#failure === null
    this.#failure ??= closed()
    this.#live.clear()
    try {
      await this.#states?.close(isSound)
    } finally {
      // A broken runner is not called again, not even to free what the end of the process frees anyway.
      if (isSound) this.#runner.dispose()
    }
  }

  /** Drops what is live, without events, and the runner. */
  dispose(): void {
    this.#failure ??= closed()
    this.#live.clear()
    this.#states?.dispose()
    this.#runner.dispose()
  }

  #takeEvents(): EngineEvent[] {
    const events = this.#events
    this.#events = []
    return events
  }

  #openSession(live: LiveRequest): void {
    try {
      this.#states!.open(live, {
        ready: () => this.#scheduler.waiting.push(live),
        fail: (error) => this.#fail(live, error),
      })
    } catch (error) {
      this.#live.delete(live.id)
      throw error
    }
  }

  /** A failure of the runner, or of our own, is the end of the engine. */
  #guard(work: () => void): void {
    if (this.#failure !== null) return
    try {
      work()
    } catch (error) {
      this.#die(SkeinError.from(error))
    }
  }

  #launch(): void {
    this.#copyBudget.beginStep()
    const { isAnyRunning, isFilling } = this.#scheduler
    this.#states?.beginStep({ isAlone: !isAnyRunning, isFilling })
    const plan = this.#scheduler.schedule(this.#flights.last)
    if (plan.length === 0) return
    if (this.#flights.count === 0) this.#busySince = performance.now()
    this.#flights.launch(plan)
    this.#counters.steps++
    this.#counters.lastBatchTokens = plan.reduce((sum, { row }) => sum + row.tokens.length, 0)
  }

  #landAll(): void {
    while (this.#flights.count > 0) this.#land()
    this.#rest()
  }

  #land(): void {
    for (const [planned, result] of this.#flights.land()) this.#postprocess(planned, result)
    const now = performance.now()
    this.#counters.busySeconds += (now - this.#busySince) / 1000
    this.#busySince = now
    if (this.#flights.count === 0) this.#rest()
  }

  /** Nothing is on its way. */
  #rest(): void {
    this.#states?.endStep()
    this.#scheduler.checkIdle()
  }

  #postprocess(planned: PlannedRow, { drawn, logits }: RowResult): void {
    const { owner, takers, numPrompt } = planned
    assert(drawn.length === takers.length, `${drawn.length} draws for ${takers.length} takers`)
    // It may have failed in another row of this very step, or have been cancelled while the step was on its way.
    if (this.#live.get(owner.id) !== owner) return
    if (numPrompt > 0) this.#acceptPrompt(planned, logits)
    this.#acceptDrawn(owner, takers, drawn)
  }

  #acceptPrompt(planned: PlannedRow, logits: Float32Array | undefined): void {
    const { owner, numPrompt, fedTo } = planned
    if (logits !== undefined && !this.#score(planned, logits)) return
    this.#counters.promptTokens += numPrompt
    // Else more of it is on its way; at a point nothing is.
    if (fedTo === owner.numFed) this.#states?.atPoint(owner)
    if (fedTo < owner.prompt.length) return
    const { id, seed, promptLogprobs: logprobs } = owner
    this.#events.push({ type: 'prompt', id, seed, logprobs, ...this.#states?.usageOf(owner) })
    this.#fork(owner)
    if (owner.request.maxTokens > 0) return
    for (const sequence of owner.sequences) {
      sequence.endAtLength()
      this.#report(sequence)
    }
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
      const logprob = logprobsOf(logits, row, this.info.model.vocabSize, token, k)
      if (logprob === null) {
        this.#fail(owner, notFinite('in the prompt'))
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
        this.#fail(owner, notFinite(`after ${sequence.numDrawn} tokens`))
        return
      }
      sequence.accept(token, logprob)
      this.#counters.generatedTokens++
      this.#states?.drew(sequence)
      this.#report(sequence)
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
        if (this.#live.get(owner.id) !== owner) return
        if (error === null) this.#finish(sequence, session)
        else this.#fail(owner, error)
        this.onWake()
      })
    }
    this.#scheduler.releaseSlot(sequence)
    if (owner.isDone) this.#scheduler.remove(owner)
  }

  #finish({ owner, index, finish, numDrawn }: Sequence, session: SessionPosition | null): void {
    const { id } = owner
    assert(finish !== null, 'an answer was reported before its end')
    const turn = session === null ? {} : { session }
    this.#events.push({ type: 'finish', id, index, ...finish, completionTokens: numDrawn, ...turn })
    if (finish.reason === 'stop') this.#counters.finishedStop++
    else this.#counters.finishedLength++
    if (owner.isDone) this.#live.delete(id)
  }

  #remove(live: LiveRequest): void {
    this.#live.delete(live.id)
    this.#scheduler.remove(live)
  }

  #fail(live: LiveRequest, error: SkeinError): void {
    if (error.code === 'kernel_failed') this.#states?.distrust(live)
    this.#states?.abandon(live, false)
    this.#remove(live)
    this.#counters.failed++
    this.#events.push({ type: 'error', id: live.id, error: error.toShape() })
  }

  /** A broken step leaves every state in doubt, so nothing of this engine is used again, its slots included. */
  #die(error: SkeinError): void {
    this.#failure = error
    for (const id of this.#live.keys()) {
      this.#counters.failed++
      this.#events.push({ type: 'error', id, error: error.toShape() })
    }
    this.#live.clear()
  }
}

function closed(): SkeinError {
  return new SkeinError('model_not_loaded', 'the engine was closed')
}

function notFinite(where: string): SkeinError {
  return new SkeinError(
    'kernel_failed',
    `the model's output was not finite ${where}; the answer was dropped. Other requests are not affected`,
  )
}
