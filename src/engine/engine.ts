/**
 * The engine of one model: requests in, events out. It owns the parts and the order in which they work in a step:
 * scheduler.ts chooses the rows, outcomes.ts says what their results mean. It knows nothing of loops, processes or HTTP:
 * local-client.ts and worker-loop.ts drive it, by `turn`.
 *
 * Two ways to go on. `step` is the plain one: a step is launched, waited for, and looked at. `turn` does the same on a
 * runner with one flight; on others it launches the next step before it looks at the last (docs/architecture.md).
 */
import { SkeinError } from '../errors.ts'
import { MAX_TOP_LOGPROBS, type Runner } from '../model/runner.ts'
import type { TokenBytes } from './answer-text.ts'
import { CopyBudget } from './copy-budget.ts'
import { Flights } from './flights.ts'
import type {
  CallHandlers,
  EngineCall,
  EngineCalls,
  EngineEvent,
  EngineInfo,
  EngineStats,
  GenerateRequest,
} from './messages.ts'
import { Outcomes } from './outcomes.ts'
import { Scheduler, usableSlots } from './scheduler.ts'
import { LiveRequest } from './sequence.ts'
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

const DEFAULT_LIMITS: EngineLimits = {
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
  readonly #outcomes: Outcomes
  #failure: SkeinError | null = null
  /** Since when a step has been on its way. */
  #busySince = 0
  /** Told when something came between steps that the next one has to deal with. */
  onWake: () => void = () => {}
  readonly #counters = { steps: 0, lastBatchTokens: 0, busySeconds: 0 }

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
    this.#outcomes = new Outcomes(runner, tokenBytes, this.#scheduler, this.#states, wake)
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
    if (this.#outcomes.live.has(request.id)) {
      throw new SkeinError('invalid_request', `id ${request.id} is in use by a live request`)
    }
    const live = new LiveRequest(request, this.#tokenBytes)
    this.startStates.begin(live, this.#runner)
    const { waiting, running } = this.#scheduler
    const numOpening = this.#outcomes.live.size - waiting.length - running.length
    const isFull = this.#scheduler.numWaitingWith(live.numSlots) + numOpening > maxWaiting
    // Mostly there are none, and a full line is asked often.
    const opening = isFull && numOpening > 0 ? this.#opening() : []
    if (isFull && !waiting.isUnderPart(request, maxWaiting, opening)) {
      throw new SkeinError(
        'queue_full',
        `${maxWaiting} requests are waiting, which is the limit; retry later, or raise it (--max-waiting)`,
      )
    }
    this.#outcomes.live.set(request.id, live)
    if (request.session === undefined) waiting.push(live)
    else this.#openSession(live)
  }

  /** Requests that wait for a session: for its writer, or for its state. */
  #opening(): LiveRequest[] {
    const { waiting, running } = this.#scheduler
    const others = new Set([...waiting, ...running])
    return [...this.#outcomes.live.values()].filter((live) => !others.has(live))
  }

  /** Ends a request in any phase; its slots are free at once and no further event of it follows. Unknown ids are fine. */
  cancel(id: string): void {
    const live = this.#outcomes.live.get(id)
    if (live === undefined) return
    // What is kept of it must be of a step that was looked at.
    if (live.request.session?.onCancel === 'keep') this.#guard(() => this.#landAll())
    if (this.#outcomes.live.get(id) === live) this.#outcomes.cancel(live)
    else this.#outcomes.dropEvents(id)
  }

  /** A step would do something. Requests that wait for the store, or for a session's writer, are no work. */
  get hasWork(): boolean {
    const { waiting, running } = this.#scheduler
    const isBusy =
      waiting.length + running.length + this.#outcomes.numEvents + this.#flights.count > 0
    return this.#failure === null && (isBusy || this.#states?.hasChores === true)
  }

  /** Every request has been answered. */
  get isIdle(): boolean {
    return this.#outcomes.live.size === 0 && this.#outcomes.numEvents === 0
  }

  get liveIds(): readonly string[] {
    return [...this.#outcomes.live.keys()]
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
    return this.#outcomes.takeEvents()
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
    return hasLanded || this.#outcomes.numEvents > 0 ? this.#outcomes.takeEvents() : null
  }

  /** After a turn that gave null: milliseconds for which another one would, going by the last few steps. */
  get restMs(): number {
    return this.#flights.restMs
  }

  get stats(): EngineStats {
    const { waiting, running, numSlots, numFree } = this.#scheduler
    const prefilling = running.filter(({ isPrefilling }) => isPrefilling).length
    const lines = { waiting: waiting.length, running: running.length, prefilling }
    const now = { ...lines, numSlots, freeSlots: numFree }
    const stats = { ...now, ...this.#outcomes.counters, ...this.#counters }
    return this.#states === null ? stats : { ...stats, states: this.#states.stats }
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
    this.#outcomes.live.clear()
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
    this.#outcomes.live.clear()
    this.#states?.dispose()
    this.#runner.dispose()
  }

  #openSession(live: LiveRequest): void {
    try {
      this.#states!.open(live, {
        ready: () => this.#scheduler.waiting.push(live),
        fail: (error) => this.#outcomes.fail(live, error),
      })
    } catch (error) {
      this.#outcomes.live.delete(live.id)
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
    for (const [planned, result] of this.#flights.land()) this.#outcomes.accept(planned, result)
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

  /** A broken step leaves every state in doubt, so nothing of this engine is used again, its slots included. */
  #die(error: SkeinError): void {
    this.#failure = error
    this.#outcomes.failAll(error)
  }
}

function closed(): SkeinError {
  return new SkeinError('model_not_loaded', 'the engine was closed')
}
