/**
 * States on their way between slots and memory, beside the steps: asked for in order, begun as the runner has room for them,
 * and looked at in every turn of the engine. It also knows which slots they still need, and frees those later. Knows
 * neither requests nor what a copy is for.
 */
import {
  createState,
  type Flight,
  type Runner,
  type StateData,
  type StateShape,
  stateBytesOf,
} from '../model/runner.ts'
import { bytesOf } from '../state/snapshot.ts'
import type { SlotPool } from './slots.ts'

/**
 * Bytes of states that are begun in a turn, at least one state. A GPU copies beside its steps; a CPU copies at once, 64 MB
 * in some 10 to 50 ms, and the steps of a model whose states are that large take longer.
 */
const BYTES_A_TURN = 64 * 2 ** 20

/** What becomes of a read. Any may be called before `read` returns. */
export interface ReadEvents {
  /** The copy has been taken: what is asked of the slot from here on does not change it. */
  taken?(): void
  /** The copy is whole, and the receiver's. */
  whole(state: StateData): void
  /** Its slot was freed before the copy was taken: there is none. */
  dropped?(): void
}

export interface Read {
  /** Nobody wants the copy any more. */
  cancel(): void
}

interface Transfer {
  /** What is written. */
  readonly state: StateData | null
  readonly slot: number
  readonly kind: 'read' | 'write'
  /** The slot is free once this does not need it any more. */
  freesSlot: boolean
  isCancelled: boolean
  flight: Flight<unknown> | null
  begin(): Flight<unknown>
  /** It has been begun. */
  begun(): void
  landed(result: unknown): void
  dropped(): void
}

export class StateTransfers {
  readonly #runner: Runner
  readonly #slots: SlotPool
  /** Asked for and not begun, in order. */
  #waiting: Transfer[] = []
  readonly #flying = new Set<Transfer>()
  readonly #memory: StateMemory
  #bytesBegun = 0

  /** `memoryBytes`: of states that will be kept, for which `prepare` makes memory. */
  constructor(runner: Runner, slots: SlotPool, memoryBytes = 0) {
    this.#runner = runner
    this.#slots = slots
    this.#memory = new StateMemory(memoryBytes)
  }

  /** Makes the memory of one state that will be read; false: there is enough of it. */
  prepare(): boolean {
    return this.#memory.make(this.#runner.info.stateShape)
  }

  /** What is asked for now is begun now. */
  get canBegin(): boolean {
    return this.#waiting.length === 0 && this.#runner.canMove && !this.#isTurnFull
  }

  /** As `canBegin`, of a copy that nobody waits for and that begins now: its memory counts. */
  mayKeep(): boolean {
    return this.canBegin && this.#memory.mayKeep(this.#runner.info.stateBytes)
  }

  get #isTurnFull(): boolean {
    const bytes = this.#bytesBegun + this.#runner.info.stateBytes
    return this.#bytesBegun > 0 && bytes > BYTES_A_TURN
  }

  get isBusy(): boolean {
    return this.#waiting.length + this.#flying.size > 0
  }

  /** Slots that nobody has any more, and that are free as soon as no transfer needs them. */
  get numLeaving(): number {
    const own = [...this.#waiting, ...this.#flying]
    return own.filter(({ freesSlot }) => freesSlot).length
  }

  /** Copies the state of a slot, which must stay as it is until the copy is taken. */
  read(slot: number, events: ReadEvents): Read {
    return this.#read(slot, events, false)
  }

  /** As read; the slot is given up, and free when the copy is taken. */
  readAndFree(slot: number, events: ReadEvents): Read {
    return this.#read(slot, events, true)
  }

  /** Puts a state into a slot, which must not be used before `done`. */
  write(slot: number, state: StateData, done: () => void): void {
    this.#add({ ...NEW, slot, kind: 'write', state, begin: () => this.#runner.writeState(slot, state), landed: done })
  }

  /** Nobody has this state any more: its memory is that of a later copy, unless it is just being written to a slot. */
  giveBack(state: StateData): void {
    const isWanted = [...this.#waiting, ...this.#flying].some((one) => one.state === state)
    if (!isWanted) this.#memory.giveBack(state)
  }

  /** Gives a slot back to those that are free: now, or when the write into it is over. */
  free(slot: number): void {
    for (const transfer of this.#waiting.filter((one) => one.slot === slot)) this.#drop(transfer)
    for (const transfer of this.#flying) {
      if (transfer.slot !== slot || transfer.kind === 'read') continue
      transfer.isCancelled = true
      transfer.freesSlot = true
      return
    }
    this.#slots.release(slot)
  }

  /** Looks at what is on its way, and begins what waits. Waits for nothing. */
  turn(): void {
    this.#bytesBegun = 0
    for (const transfer of this.#flying) this.#land(transfer)
    this.#begin()
  }

  #read(slot: number, events: ReadEvents, freesSlot: boolean): Read {
    const transfer: Transfer = {
      ...NEW,
      slot,
      kind: 'read',
      freesSlot,
      begin: () => this.#runner.readState(slot, this.#memory.take()),
      begun: () => events.taken?.(),
      // Of a read, a state.
      landed: (result) => events.whole(result as StateData),
      dropped: () => events.dropped?.(),
    }
    this.#add(transfer)
    return { cancel: () => this.#cancel(transfer) }
  }

  #add(transfer: Transfer): void {
    this.#waiting.push(transfer)
    this.#begin()
  }

  #begin(): void {
    for (;;) {
      const [next] = this.#waiting
      if (next === undefined || this.#isTurnFull || !this.#runner.canMove) return
      this.#waiting.shift()
      this.#bytesBegun += this.#runner.info.stateBytes
      next.flight = next.begin()
      this.#flying.add(next)
      if (next.kind === 'read') {
        if (next.freesSlot) this.#slots.release(next.slot)
        next.freesSlot = false
        next.begun()
      }
      this.#land(next)
    }
  }

  #land(transfer: Transfer): void {
    const { flight, slot } = transfer
    if (flight?.isDone !== true || !this.#flying.delete(transfer)) return
    const result = flight.result()
    if (transfer.freesSlot) this.#slots.release(slot)
    if (!transfer.isCancelled) transfer.landed(result)
    // Of a read, a state that nobody was given.
    else if (transfer.kind === 'read') this.#memory.giveBack(result as StateData)
  }

  #cancel(transfer: Transfer): void {
    transfer.isCancelled = true
    if (this.#waiting.includes(transfer)) this.#drop(transfer)
  }

  #drop(transfer: Transfer): void {
    this.#waiting = this.#waiting.filter((one) => one !== transfer)
    if (transfer.freesSlot) this.#slots.release(transfer.slot)
    if (!transfer.isCancelled) transfer.dropped()
  }
}

const NEW = { state: null, freesSlot: false, isCancelled: false, flight: null, begun: () => {}, dropped: () => {} }

/** Smaller states, those of models for tests, cost the collector little: their memory is not counted. */
const LEAST_COUNTED = 2 ** 18
/** Memory of smaller states is not made ahead: it would take room before it is written. */
const LEAST_MADE = 2 ** 20

/**
 * New memory for copies that nobody waits for: bytes a second, but four states, and at once. For every 64 MB V8 marks all
 * objects, which takes other threads' cores for 20 ms: beside a list of 512 short prompts that was twice a second.
 */
const NEW_BYTES_A_SECOND = 2 ** 24
const NEW_STATES_A_SECOND = 4
const NEW_BYTES_AT_ONCE = 2 ** 26

/** States and bytes that are kept for later copies. What is given back beyond is left to the collector. */
const MAX_STATES = 32
const MAX_BYTES = 2 ** 28

/**
 * The memory of states that nobody reads any more, for the next copies. A state of a large model is tens of megabytes, and
 * many are copied a second: with new memory for each, the collector of garbage takes a quarter of the time
 * (docs/dev/states.md). Whoever still has a state that was given back finds arrays of length 0, never another's numbers.
 */
export class StateMemory {
  /** Given back. */
  readonly #free: StateData[] = []
  #bytes = 0
  /** Made ahead, and never written: it takes no room, so it does not count as free. */
  readonly #made: StateData[] = []
  /** What may still be made ahead. */
  #bytesToMake: number
  #newBytes = NEW_BYTES_AT_ONCE
  #newBytesAt = 0

  constructor(bytesToMake = 0) {
    this.#bytesToMake = bytesToMake
  }

  /** Whether a copy of a state that nobody waits for may be taken: there is memory for it, or has not been made new for a while. What may is counted. */
  mayKeep(bytes: number, now = performance.now()): boolean {
    if (bytes < LEAST_COUNTED || this.#free.length + this.#made.length > 0) return true
    const since = (now - this.#newBytesAt) / 1000
    this.#newBytes = Math.min(
      NEW_BYTES_AT_ONCE,
      this.#newBytes + since * Math.max(NEW_BYTES_A_SECOND, NEW_STATES_A_SECOND * bytes),
    )
    this.#newBytesAt = now
    if (this.#newBytes <= 0) return false
    this.#newBytes -= bytes
    return true
  }

  /**
   * Makes the memory of one state ahead of its use. It takes no room until it is written, but for every 64 MB of new
   * memory V8 collects all garbage, which other work should not have to wait for. False: there is enough.
   */
  make(shape: StateShape): boolean {
    const bytes = stateBytesOf(shape)
    if (bytes < LEAST_MADE || bytes > this.#bytesToMake) return false
    try {
      this.#made.push(createState(shape))
    } catch {
      // Room that the system refuses now is asked for again when a state needs it.
      this.#bytesToMake = 0
      return false
    }
    this.#bytesToMake -= bytes
    return true
  }

  /** Memory of a state, with old numbers in it; undefined when there is none. What has been written before goes first. */
  take(): StateData | undefined {
    const state = this.#free.pop()
    if (state === undefined) return this.#made.pop()
    this.#bytes -= bytesOf(state)
    return state
  }

  /** A state that nobody reads any more. One whose arrays are parts of something larger is left alone. */
  giveBack(state: StateData): void {
    const bytes = bytesOf(state)
    const isFull = this.#free.length >= MAX_STATES || this.#bytes + bytes > MAX_BYTES
    if (bytes === 0 || isFull || !state.every(isWhole)) return
    const transfer = state.map(({ buffer }) => buffer as ArrayBuffer) // isWhole has looked
    this.#free.push(structuredClone(state, { transfer }))
    this.#bytes += bytes
  }
}

function isWhole({ buffer, byteLength }: Float32Array): boolean {
  return buffer instanceof ArrayBuffer && buffer.byteLength === byteLength
}
