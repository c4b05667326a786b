/**
 * Answers that give their slots to others for a while. When somebody waits who has less than a fair part, or more priority, a running
 * answer of whoever has most is not stepped any more; when its rows have landed its state is copied to memory, its slot is free,
 * and it joins the line again. With a slot it goes on from the same state: everything else of it stayed where it was, so
 * nobody can tell but by the time. Whose turn it is in the line is waiting-line.ts.
 *
 * An answer has had some rows in its slot before it is moved, and of one tenant's the one that has had most is. A prompt that
 * is being read moves as a whole, with all the choices that wait for it.
 */
import { type Runner, type StateData, stateBytesOf } from '../../model/runner.ts'
import type { GenerateRequest } from '../messages.ts'
import type { LiveRequest, Sequence } from '../sequence.ts'
import type { SlotPool } from '../slots.ts'
import type { Read, StateTransfers } from '../state-transfers.ts'
import { priorityOf, type Queued, type Standing, type WaitingLine } from './waiting-line.ts'

/** Rows that an answer runs before it may be moved: copying its state out and back costs a few. */
const LEAST_ROWS = 8
/** Tokens by which a tenant may be ahead before another one with as few slots gets its turn. */
const SLICE_TOKENS = 64
/** Slots that may be leaving at a time. */
const MOST_ASKED = 8
/** Requests of one tenant for which room is made at once. */
const MOST_OF_EACH = 4

/** Sequences of a request that leave their slots together, and return together. */
export class Preempted implements Queued {
  readonly isReturning = true
  readonly owner: LiveRequest
  readonly sequences: readonly Sequence[]
  /** For each choice, the states to put back when it gets slots again; choices that have not begun have none. */
  readonly states = new Map<Sequence, (StateData | null)[]>()
  readonly reads: Read[] = []
  /** Number of states on their way out. */
  numLeaving = 0

  constructor(owner: LiveRequest, sequences: readonly Sequence[]) {
    this.owner = owner
    this.sequences = sequences
  }

  get request(): GenerateRequest {
    return this.owner.request
  }

  get numSlots(): number {
    return this.sequences.length * this.owner.width
  }

  /** The choices whose slots hold a state; while a prompt is being read, only the first one. */
  get begun(): readonly Sequence[] {
    return this.owner.isPrefilling ? this.sequences.slice(0, 1) : this.sequences
  }

  get numStates(): number {
    return this.begun.length * this.owner.width
  }
}

export class Preemption {
  readonly #runner: Runner
  readonly #slots: SlotPool
  readonly #transfers: StateTransfers
  readonly #line: WaitingLine<LiveRequest | Preempted>
  /** Bytes of memory that states may take. */
  readonly #roomBytes: number
  readonly #stateBytes: number
  /** Units asked to leave that still have rows in flight. */
  readonly #asked = new Set<Preempted>()
  /** Units whose states are in memory, or on their way there or back. */
  readonly #away = new Set<Preempted>()
  readonly counters = { preemptions: 0 }

  constructor(
    runner: Runner,
    slots: SlotPool,
    transfers: StateTransfers,
    line: WaitingLine<LiveRequest | Preempted>,
    roomBytes: number,
  ) {
    this.#runner = runner
    this.#slots = slots
    this.#transfers = transfers
    this.#line = line
    this.#roomBytes = roomBytes
    this.#stateBytes = stateBytesOf(runner.info.stateShape)
  }

  /** Answers that have no slots at the moment. */
  get numAway(): number {
    return countOf(this.#away, ({ sequences }) => sequences.length)
  }

  get bytes(): number {
    return this.#stateBytes * countOf(this.#away, ({ numStates }) => numStates)
  }

  /** Asks running answers to give up as many slots as the requests first in line may have and are not free. */
  makeRoom(running: readonly LiveRequest[], numFree: () => number): void {
    if (this.#line.length === 0) {
      for (const unit of this.#asked) this.#stay(unit)
      return
    }
    for (const unit of this.#asked) this.#leaveIfSettled(unit)
    if (running.length === 0) return
    let room = numFree() + countOf(this.#asked, ({ numSlots }) => numSlots)
    const lowest = Math.min(...running.map(priorityOf))
    const claims = new Map<string | undefined, number>()
    for (const item of this.#line.firstOfEach(MOST_OF_EACH)) {
      const claimed = claims.get(item.request.tenant) ?? 0
      const wants = { item, claimed, own: this.#line.standingOf(item) }
      if (!isUnderPart(wants) && priorityOf(item) <= lowest) continue
      const given = this.#unitsFor(wants, item.numSlots - room, running)
      if (given === null) continue
      for (const unit of given) this.#ask(unit)
      room += countOf(given, ({ numSlots }) => numSlots) - item.numSlots
      claims.set(item.request.tenant, claimed + item.numSlots)
    }
  }

  /** The unit was admitted again: puts its states into slots; then it is stepped. */
  bringBack(unit: Preempted): void {
    const { owner } = unit
    // All that are to come are counted before the first may have come.
    for (const [sequence, states] of unit.states) sequence.numMoves += states.length
    for (const sequence of unit.sequences) {
      const slots = Array.from({ length: owner.width }, () => this.#slots.acquire())
      const [own, ...others] = slots
      sequence.slot = own!
      if (owner.mixture !== null) {
        const { weight, others: mixed } = owner.mixture
        sequence.blend = { weight, others: mixed.map((one, i) => ({ slot: others[i]!, weight: one.weight })) }
      }
      sequence.numHeld = owner.width
      const states = unit.states.get(sequence) ?? []
      for (const [i, slot] of slots.entries()) this.#fill(unit, sequence, slot, states[i] ?? null)
    }
    this.#endIfBack(unit)
  }

  /** The sequence or its request has ended: what it was to give up is not asked for any more. */
  drop(sequence: Sequence): void {
    if (!sequence.isAway) return
    sequence.isAway = false
    sequence.saved = null
    sequence.numMoves = 0
    for (const unit of [...this.#asked, ...this.#away]) {
      if (!unit.sequences.includes(sequence)) continue
      this.#asked.delete(unit)
      this.#away.delete(unit)
      for (const other of unit.sequences) if (other.slot !== null) other.isAway = false
      this.#line.remove(unit)
      for (const read of unit.reads) read.cancel()
    }
  }

  /** Running units whose slots the waiting request may take; null when there are not enough. */
  #unitsFor(wants: Wants, missing: number, running: readonly LiveRequest[]): Preempted[] | null {
    const given: Preempted[] = []
    const taken = new Map<string | undefined, number>()
    for (let left = missing; left > 0; ) {
      const mayGo = (unit: Preempted) => this.#hasRoomFor([...given, unit], wants.item)
      let best: Candidate | null = null
      for (const unit of running.flatMap((owner) => movable(owner))) {
        if (given.some(({ sequences }) => sequences[0] === unit.sequences[0])) continue
        const { tenant } = unit.request
        const standing = this.#line.standingOf(unit)
        const numHeld = standing.numHeld - this.#askedOf(tenant) - (taken.get(tenant) ?? 0)
        const candidate = { unit, standing: { ...standing, numHeld } }
        if (!mayTake(wants, candidate) || (best !== null && !goesSooner(candidate, best))) continue
        if (mayGo(unit)) best = candidate
      }
      if (best === null) return null
      given.push(best.unit)
      const { tenant } = best.unit.request
      taken.set(tenant, (taken.get(tenant) ?? 0) + best.unit.numSlots)
      left -= best.unit.numSlots
    }
    return given
  }

  #askedOf(tenant: string | undefined): number {
    const own = [...this.#asked].filter(({ request }) => request.tenant === tenant)
    return countOf(own, ({ numSlots }) => numSlots)
  }

  /** Keeps room for one state for those that return: with all of it taken, nobody could return. */
  #hasRoomFor(units: readonly Preempted[], { isReturning }: Queued): boolean {
    const numKept = isReturning === true ? 0 : 1
    const all = [...this.#asked, ...this.#away, ...units]
    const numStates = countOf(all, (unit) => unit.numStates)
    const numSequences = countOf(all, ({ sequences }) => sequences.length)
    const numSlots = countOf([...this.#asked, ...units], (unit) => unit.numSlots)
    const hasPlaces = numSequences + numKept <= this.#runner.numPlaces - this.#slots.numSlots
    const isFew = numSlots <= MOST_ASKED || this.#asked.size === 0
    return hasPlaces && isFew && (numStates + numKept) * this.#stateBytes <= this.#roomBytes
  }

  #ask(unit: Preempted): void {
    for (const sequence of unit.sequences) sequence.isAway = true
    this.#asked.add(unit)
    this.#leaveIfSettled(unit)
  }

  #leaveIfSettled(unit: Preempted): void {
    const { owner, sequences } = unit
    if (owner.numChunksSent > 0 || sequences.some(({ numAwaited }) => numAwaited > 0)) return
    // The prompt has been read meanwhile: its choices have begun, and each may leave alone.
    if (sequences.length > 1 && !owner.isPrefilling) this.#stay(unit)
    else this.#leave(unit)
  }

  #stay(unit: Preempted): void {
    this.#asked.delete(unit)
    for (const sequence of unit.sequences) sequence.isAway = false
  }

  #leave(unit: Preempted): void {
    this.counters.preemptions += unit.sequences.length
    this.#asked.delete(unit)
    this.#away.add(unit)
    const begun = new Set(unit.begun)
    for (const sequence of unit.sequences) {
      const slots = [sequence.slot!, ...(sequence.blend?.others ?? []).map(({ slot }) => slot)]
      sequence.slot = null
      sequence.blend = null
      for (; sequence.numHeld > 0; sequence.numHeld--) this.#line.release(unit)
      if (begun.has(sequence)) this.#copyOut(unit, sequence, slots)
      else for (const slot of slots) this.#transfers.free(slot)
    }
  }

  #copyOut(unit: Preempted, sequence: Sequence, slots: readonly number[]): void {
    const states: (StateData | null)[] = slots.map(() => null)
    unit.states.set(sequence, states)
    unit.numLeaving += slots.length
    sequence.numMoves += slots.length
    for (const [i, slot] of slots.entries()) {
      const whole = (state: StateData) => {
        states[i] = state
        if (i === 0) sequence.saved = state
        sequence.numMoves--
        unit.numLeaving--
        if (unit.numLeaving === 0 && this.#away.has(unit)) this.#line.push(unit)
      }
      unit.reads.push(this.#transfers.readAndFree(slot, { whole }))
    }
  }

  #fill(unit: Preempted, sequence: Sequence, slot: number, state: StateData | null): void {
    if (state === null) {
      this.#runner.clearSlot(slot)
      return
    }
    this.#transfers.write(slot, state, () => {
      sequence.numMoves--
      this.#endIfBack(unit)
      this.#transfers.giveBack(state)
    })
  }

  #endIfBack(unit: Preempted): void {
    if (unit.sequences.some(({ numMoves }) => numMoves > 0)) return
    this.#away.delete(unit)
    for (const sequence of unit.sequences) {
      sequence.isAway = false
      sequence.saved = null
    }
  }
}

interface Wants {
  readonly item: Queued
  readonly own: Standing
  /** Slots that requests of the same tenant ahead in the line get. */
  readonly claimed: number
}

interface Candidate {
  readonly unit: Preempted
  readonly standing: Standing
}

/** With these slots the tenant has no more than its part. */
function isUnderPart({ item, own, claimed }: Wants): boolean {
  return own.numHeld + claimed + item.numSlots <= own.part
}

/**
 * A higher priority may take from a lower one. At equal priority, a tenant under its part may take from one over it;
 * where both have as few slots, from the one that has been served more.
 */
function mayTake(wants: Wants, { unit, standing }: Candidate): boolean {
  const { item, own, claimed } = wants
  const more = priorityOf(item) - priorityOf(unit)
  if (more !== 0) return more > 0
  if (item.request.tenant === unit.request.tenant || !isUnderPart(wants)) return false
  if (standing.numHeld > standing.part) return true
  const numHeld = own.numHeld + claimed + item.numSlots
  const isNoMore = numHeld / own.share <= standing.numHeld / standing.share
  return isNoMore && standing.served - own.served >= SLICE_TOKENS
}

/** Lowest priority first, then the tenant with the most slots, then the answer that has been in its slot longest. */
function goesSooner(a: Candidate, b: Candidate): boolean {
  const keys = ({ unit, standing }: Candidate) => [
    -priorityOf(unit),
    standing.numHeld / standing.share,
    unit.sequences[0]!.numRows,
  ]
  const [ofA, ofB] = [keys(a), keys(b)]
  const at = ofA.findIndex((key, i) => key !== ofB[i])
  return at !== -1 && ofA[at]! > ofB[at]!
}

/** The parts of a running request that can leave by themselves. */
function movable(owner: LiveRequest): Preempted[] {
  if (owner.isLeaving || owner.numTransfers > 0) return []
  const { sequences } = owner
  const canMove = ({ slot, isAway, numRows }: Sequence) => slot !== null && !isAway && numRows >= LEAST_ROWS
  if (owner.isPrefilling)
    return sequences.every(({ isAway }) => !isAway) && canMove(sequences[0]!) ? [new Preempted(owner, sequences)] : []
  return sequences.filter((one) => one.canGoOn && canMove(one)).map((one) => new Preempted(owner, [one]))
}

function countOf<T>(items: Iterable<T>, count: (item: T) => number): number {
  let sum = 0
  for (const item of items) sum += count(item)
  return sum
}
