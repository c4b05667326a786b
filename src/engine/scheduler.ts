/**
 * Which tokens run next: the waiting line, admission to slots, and the rows of a step. It knows counts and nothing of
 * texts; what a step's results mean is engine.ts.
 *
 * Rules:
 * - Admission is first come first served within a tenant, and by what each has been served between tenants (fairness/waiting-line.ts).
 *   A request needs a slot per choice; the one whose turn it is is never overtaken, so a request for many choices is not
 *   starved by small ones. Where slots are missing to one with less than its part, others give theirs up for a while (fairness/preemption.ts).
 * - Every decoding sequence that can go on is in every step, but for a newcomer's first tokens on a CPU (fairness/turns.ts). `usableSlots` keeps at least a quarter of the step's tokens free of them.
 * - The rest goes to prompts; while answers are being generated no more than prefill-budget.ts allows, which bounds their
 *   time between tokens, and what the device would pad the step with. Half of it goes to the prompt admitted first, so every prompt moves and ends; the other half
 *   to the prompt with least left, so a short one is not held up by a long one.
 */
import { assert } from '../errors.ts'
import type { BatchRow, Blend, Runner } from '../model/runner.ts'
import { Preempted, Preemption } from './fairness/preemption.ts'
import { RowTurns } from './fairness/turns.ts'
import { type Queued, WaitingLine } from './fairness/waiting-line.ts'
import type { Mixture, Start } from './kept/start.ts'
import type { GenerateRequest, SamplingParams } from './messages.ts'
import { answerShare, type PrefillBudget, promptShare } from './prefill-budget.ts'
import type { LiveRequest, Sequence } from './sequence.ts'
import { Places, type SlotPool } from './slots.ts'
import type { Speculation } from './speculation/speculation.ts'
import type { StateTransfers } from './state-transfers.ts'
import type { States } from './states.ts'

/** Tokens that are certain beside a row's first, for each row of the step; and those of one row that is long by itself. */
const LEAST_CERTAIN = 1 / 8
const LONG_CERTAIN = 8

/** A row of a step, and the request or sequences that its results belong to. */
export interface PlannedRow {
  readonly row: BatchRow
  readonly owner: LiveRequest
  /** Sequences that take the row's draws, in order; none when nobody needs them. */
  readonly takers: readonly Sequence[]
  /** The draw was made with no mask and does not count. */
  readonly isMoot?: boolean
  /** Prompt tokens in the row; 0 for a decode row. */
  readonly numPrompt: number
  /** Prompt tokens that the slot has consumed after the row. */
  readonly fedTo: number
}

/** Tokens of answers and of prompts; a mixture counts once per slot. */
export function tokensOf(plan: readonly PlannedRow[]): readonly [answers: number, prompts: number] {
  let [answers, prompts] = [0, 0]
  for (const { owner, row, numPrompt } of plan) {
    if (numPrompt === 0) answers += row.tokens.length * owner.width
    else prompts += numPrompt * owner.width
  }
  return [answers, prompts]
}

/** Rows of logits that answers take. */
function logitsOf(plan: readonly PlannedRow[]): number {
  return plan.reduce((sum, { owner, row }) => sum + row.samples.length * owner.width, 0)
}

/** How many slots can decode in one step that still has room for prompts. */
export function usableSlots(runner: Runner): number {
  const byTokens = Math.max(1, Math.floor(runner.maxTokens * 0.75))
  return Math.min(runner.numSlots, runner.maxSamples, runner.maxLogits, byTokens)
}

export class Scheduler {
  readonly waiting: WaitingLine<LiveRequest | Preempted>
  readonly preemption: Preemption
  readonly turns = new RowTurns()
  /** Admitted requests that have not ended, in order of admission, including those without their slots for a while. */
  readonly running: LiveRequest[] = []
  /** Nothing was planned because guesses for the next step need the draws of the last one. */
  isWaiting = false
  /** So many large results wait to be told that requests which make more of them are not stepped. */
  holdsWide = false
  /** Nothing was planned, because of that alone. */
  isHeld = false
  readonly #runner: Runner
  readonly #slots: SlotPool
  readonly #transfers: StateTransfers
  readonly prefill: PrefillBudget
  readonly #states: States | null
  readonly #speculation: Speculation
  readonly #places: Places

  constructor(
    runner: Runner,
    slots: SlotPool,
    transfers: StateTransfers,
    prefill: PrefillBudget,
    states: States | null,
    speculation: Speculation,
    /** Bytes of memory for states that have left their slots. */
    preemptBytes: number,
  ) {
    this.#runner = runner
    this.#slots = slots
    this.#transfers = transfers
    this.prefill = prefill
    this.#states = states
    this.#speculation = speculation
    this.waiting = new WaitingLine(slots.numSlots)
    this.#places = new Places(runner.numPlaces)
    this.preemption = new Preemption(runner, slots, transfers, this.waiting, preemptBytes)
  }

  get numSlots(): number {
    return this.#slots.numSlots
  }

  /** Free slots. Slots with kept states or with a transfer under way count as free: they can be had at once, or soon. */
  get numFree(): number {
    return this.#slots.numFree + this.#transfers.numLeaving + (this.#states?.numKeptSlots ?? 0)
  }

  /** Some answer is held to a grammar. */
  get hasRules(): boolean {
    return this.running.some(({ rules }) => rules !== null)
  }

  /** How many requests would still be in line after the next admission if a request of n slots joined now. */
  numWaitingWith(n: number): number {
    const line: Pick<Queued, 'numSlots' | 'isReturning'>[] = [...this.waiting, { numSlots: n }]
    let free = this.numFree
    const firstStuck = line.findIndex(({ numSlots }) => {
      free -= numSlots
      return free < 0
    })
    if (firstStuck === -1) return 0
    return line.slice(firstStuck).filter(({ isReturning }) => isReturning !== true).length
  }

  /** The rows of the step after `lastFlight`; empty when nothing can run before another step lands. */
  schedule(lastFlight: number): PlannedRow[] {
    this.#admit()
    this.preemption.makeRoom(this.running, () => this.numFree)
    this.#admit()
    const plan: PlannedRow[] = []
    const { feedsDraws, drawsLater } = this.#runner
    const mayGo = (one: Sequence) => one.isSettled || (drawsLater && one.canDrawLater)
    const runs = this.holdsWide ? this.running.filter(({ request }) => !isWide(request)) : this.running
    const decoding: Sequence[] = []
    for (const { sequences } of runs) for (const one of sequences) if (one.canGoOn && mayGo(one)) decoding.push(one)
    this.isWaiting = feedsDraws && this.#speculation.waitsFor(decoding, this.numSlots)
    if (this.isWaiting) return plan
    this.#planDecode(plan, decoding, lastFlight)
    this.#planPrefill(plan, runs)
    this.isHeld = plan.length === 0 && runs.length < this.running.length && !runs.some((live) => mayRun(live))
    for (const { owner, numPrompt } of plan) if (numPrompt === 0) this.waiting.charge(owner, 1)
    return plan
  }

  /** Whether anything could run or begin without these sequences. */
  hasOthers(late: ReadonlySet<Sequence>): boolean {
    return this.waiting.length > 0 || this.running.some((live) => mayRun(live, late))
  }

  releaseSlot(sequence: Sequence): void {
    this.preemption.drop(sequence)
    this.#speculation.close(sequence)
    const { slot, blend, place } = sequence
    sequence.slot = null
    sequence.blend = null
    sequence.place = null
    if (place !== null) this.#places.release(place)
    if (sequence.matcher !== null) sequence.owner.rules!.close(sequence.matcher)
    sequence.matcher = null
    if (slot !== null) this.#transfers.free(slot)
    for (const other of blend?.others ?? []) this.#transfers.free(other.slot)
    for (; sequence.numHeld > 0; sequence.numHeld--) this.waiting.release(sequence.owner)
  }

  remove(live: LiveRequest): void {
    for (const sequence of live.sequences) this.releaseSlot(sequence)
    this.waiting.remove(live)
    const at = this.running.indexOf(live)
    if (at !== -1) this.running.splice(at, 1)
  }

  /** With nothing running every slot must be free; a leak ends the worker rather than starve it slowly. */
  checkIdle(): void {
    if (this.running.length > 0) return
    assert(this.numFree === this.numSlots, `nothing runs, yet only ${this.numFree} of ${this.numSlots} slots are free`)
    const { numFree } = this.#places
    assert(numFree === this.#runner.numPlaces, `nothing runs, yet only ${numFree} places are free`)
  }

  get #isAnswering(): boolean {
    return this.running.some(({ sequences }) => sequences.some((one) => one.canGoOn))
  }

  #admit(): void {
    for (;;) {
      const live = this.waiting.next(this.numFree)
      if (live === null || !this.#makeRoom(live.numSlots)) return
      this.waiting.admit(live)
      if (live instanceof Preempted) {
        this.preemption.bringBack(live)
        continue
      }
      this.running.push(live)
      const start = this.#states?.startOf(live, this.#isAnswering) ?? live.start
      for (const sequence of live.sequences) {
        // Only the first choice reads the prompt; then the others get a copy of its slot.
        this.#acquireSlot(sequence, sequence.index === 0 ? start : null)
        if (live.mixture !== null) sequence.blend = this.#acquireOthers(live, live.mixture)
        sequence.numHeld = live.width
        sequence.matcher = live.rules?.open() ?? null
      }
      live.numFed = start?.numTokens ?? 0
      this.waiting.charge(live, live.promptLeft)
    }
  }

  #makeRoom(n: number): boolean {
    if (n > this.numFree) return false
    const missing = n - this.#slots.numFree - this.#transfers.numLeaving
    if (missing > 0) this.#states?.giveUpSlots(missing)
    return this.#slots.numFree >= n
  }

  #acquireSlot(sequence: Sequence, start: Start | null): void {
    const { owner } = sequence
    const { request, prompt } = owner
    const slot = this.#slots.acquire()
    sequence.slot = slot
    sequence.place = this.#places.acquire()
    // Penalties are the only reason to look at the prompt.
    const isPenalised = hasPenalties(request.sampling)
    this.#runner.resetPenalties(sequence.place, isPenalised ? prompt : NO_TOKENS)
    this.#fill(owner, slot, start)
  }

  /** Their penalty counts are unused: draws belong to the sequence's own slot. */
  #acquireOthers(live: LiveRequest, { weight, others }: Mixture): Blend {
    return {
      weight,
      others: others.map(({ start, weight }) => {
        const slot = this.#slots.acquire()
        this.#fill(live, slot, start)
        return { slot, weight }
      }),
    }
  }

  /** Puts the state that a request begins with into a slot; the request is stepped when the state is there. */
  #fill(live: LiveRequest, slot: number, start: Start | null): void {
    const from = start?.take() ?? null
    if (from !== null && typeof from !== 'number') {
      live.numTransfers++
      this.#transfers.write(slot, from, () => {
        live.numTransfers--
      })
    } else if (from === null) this.#runner.clearSlot(slot)
    else this.#runner.copySlot(from, slot)
    start?.taken?.()
  }

  #planDecode(plan: PlannedRow[], decoding: readonly Sequence[], lastFlight: number): void {
    const canRun = this.#runner.feedsDraws
      ? decoding.filter((one) => one.canStep(lastFlight))
      : // Each flight has its part of them, and every part waits for its own.
        decoding.filter(({ numAwaited }) => numAwaited === 0).slice(0, answerShare(this.#runner, decoding.length))
    const isHost = this.#runner.maxFlights === 1
    const ready = isHost ? this.turns.among(canRun, this.running, this.waiting.fullness(), lastFlight + 1) : canRun
    const numRows = ready.reduce((sum, { owner }) => sum + owner.width, 0)
    let spare = this.#runner.maxTokens - numRows
    this.#speculation.plan(ready, numRows, this.numSlots)
    const feedsCertain = isHost || isWorthARow(ready)
    for (const sequence of ready) {
      const { owner } = sequence
      sequence.numRows++
      const extra = feedsCertain || sequence.matcher === null ? Math.floor(spare / owner.width) : 0
      const row = this.#speculation.rowOf(sequence, spare) ?? sequence.nextRow(extra)
      spare -= (row.tokens.length - 1) * owner.width
      const takers = row.samples.length > 0 ? [sequence] : []
      plan.push({ row, owner, takers, numPrompt: 0, fedTo: owner.numFed })
    }
  }

  #planPrefill(plan: PlannedRow[], runs: readonly LiveRequest[]): void {
    const waiting = runs.filter((live) => live.canSendChunk)
    if (waiting.length === 0) return
    const [numDecode] = tokensOf(plan)
    const free = this.#runner.maxTokens - numDecode
    const isAnswering = this.#isAnswering
    const beside = isAnswering ? this.prefill.tokensBeside(numDecode, !this.turns.isShort) : free
    const [prefilling, most] = this.turns.prompts(waiting, beside)
    if (prefilling.length === 0) return
    const room = Math.min(free, most)
    const left = prefilling.reduce((sum, { promptLeft }) => sum + promptLeft, 0)
    const share = promptShare(this.#runner, left, room)
    const budget = Math.min(free, this.#runner.stepSize(numDecode + share) - numDecode)
    const numOwn = prefilling.reduce((sum, { width }) => sum + width, 0)
    const spareLogits = this.#runner.maxLogits - logitsOf(plan) - numOwn
    const scored = isAnswering ? this.prefill.scoredBeside : Number.POSITIVE_INFINITY
    const shares = sharePrefill(prefilling, budget, spareLogits, scored)
    for (const live of prefilling) {
      const numPrompt = shares.get(live) ?? 0
      if (numPrompt === 0) continue
      live.sequences[0]!.numRows++
      plan.push(prefillStep(live, numPrompt))
    }
  }
}

/**
 * Whether the text that grammars make certain is fed several tokens a row, on a device, where a step with such rows takes
 * longer than one whose rows have one token each: 14.1 ms instead of 12.6 with 320 rows of a 7.2B on an H200. A long text always
 * is; of short ones there must be some.
 */
function isWorthARow(rows: readonly Sequence[]): boolean {
  let sum = 0
  for (const row of rows) {
    if (row.matcher === null) continue
    if (row.numExtra >= LONG_CERTAIN) return true
    sum += row.numExtra
  }
  return sum >= LEAST_CERTAIN * rows.length
}

/**
 * How many prompt tokens each request feeds. Every row may take one row of logits; prompts of which each token is looked at take one per
 * token, the rest of them from `spareLogits`.
 */
function sharePrefill(prefilling: readonly LiveRequest[], budget: number, spareLogits: number, scored: number) {
  const shares = new Map<LiveRequest, number>()
  const left = { tokens: budget, logits: spareLogits, scored }
  const grant = (live: LiveRequest, fraction: number) => {
    const had = shares.get(live) ?? 0
    const ownLogits = had === 0 ? 1 : 0
    const tokens = Math.floor(left.tokens / live.width)
    const rows = live.isScoring ? Math.min(left.logits, left.scored) : left.logits
    const room = live.readsEach ? Math.min(tokens, rows + ownLogits) : tokens
    const count = Math.min(Math.ceil(room * fraction), live.maxChunk - had)
    shares.set(live, had + count)
    left.tokens -= count * live.width
    if (live.readsEach) left.logits -= Math.max(0, count - ownLogits)
    if (live.isScoring) left.scored -= Math.max(0, count - ownLogits)
  }
  grant(prefilling[0]!, 0.5)
  const shortestFirst = prefilling.toSorted((a, b) => a.promptLeft - b.promptLeft)
  for (const live of shortestFirst) grant(live, 1)
  return shares
}

/** The next `numPrompt` tokens of a prompt. The last chunk draws the first token of every choice. */
function prefillStep(owner: LiveRequest, numPrompt: number): PlannedRow {
  const { prompt } = owner
  const { maxTokens } = owner.request
  const first = owner.sequences[0]!
  assert(first.slot !== null, 'a prompt is read before its request has a slot')
  const takers = numPrompt === owner.promptLeft && maxTokens > 0 ? owner.sequences : []
  const row: BatchRow = {
    slot: first.slot,
    tokens: prompt.subarray(owner.numFed, owner.numFed + numPrompt),
    samples: takers.map((sequence) => sequence.draw),
    allLogits: owner.isScoring,
    hidden: hiddenOf(owner, numPrompt),
    ...(first.blend === null ? {} : { blend: first.blend }),
  }
  return { row, owner, takers, numPrompt, fedTo: owner.numFed + numPrompt }
}

function hiddenOf({ request, promptLeft }: LiveRequest, numPrompt: number): BatchRow['hidden'] {
  if (request.embedding === 'mean') return 'all'
  return request.embedding === 'last' && numPrompt === promptLeft ? 'last' : undefined
}

/** It has something to run, now or when its masks are there; without sequences that are `late`. */
function mayRun(live: LiveRequest, late?: ReadonlySet<Sequence>): boolean {
  return live.canSendChunk || live.sequences.some((one) => one.canGoOn && late?.has(one) !== true)
}

/** Its results have more bytes than text has. */
function isWide({ logprobs, promptLogprobs, embedding }: GenerateRequest): boolean {
  return logprobs !== null || promptLogprobs !== null || embedding !== undefined
}

const NO_TOKENS = new Int32Array(0)

function hasPenalties(sampling: SamplingParams): boolean {
  const { presencePenalty, frequencyPenalty, repetitionPenalty } = sampling
  return presencePenalty !== 0 || frequencyPenalty !== 0 || repetitionPenalty !== 1
}

/** Forced tokens have no log-probabilities and count for no penalty. */
export function mayForce({ logprobs, sampling }: GenerateRequest): boolean {
  return logprobs === null && !hasPenalties(sampling)
}
