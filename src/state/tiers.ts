/**
 * Where the states of sessions are: slots of the device, then memory, then the store. Used states move up, the least
 * recently used ones down, a piece of a copy at a time so that a step is not held up. A state leaves a tier only when a
 * copy is whole in a lower one. It knows neither requests nor how the store works.
 */
import { assert, SkeinError } from '../errors.ts'
import {
  createKept,
  type KeptState,
  newKey,
  type SnapshotText,
  type StateFacts,
} from './kept-state.ts'
import { type Capacity, Lru } from './lru.ts'
import { isHead } from './sessions.ts'
import type { Snapshot, StateArrays } from './snapshot.ts'

/** A copy of a state on its way out of a slot, which holds it until the copy is whole. */
export interface PartialCopy {
  /** What its next piece is: memory for it, or a part of the state. */
  readonly next: 'begin' | 'read'
  /** Reads the next piece. The copy, once it is whole. */
  readSome(): StateArrays | null
}

/** Slots that hold kept states, as their owner works them. */
export interface KeptSlots {
  /** Begins a copy of the state in a slot. */
  copyOf(slot: number): PartialCopy
  /** Gives a slot back to those that are free. */
  free(slot: number): void
  /** Nobody begins to read a state from these any more. */
  drop(arrays: StateArrays): void
}

export interface TierSizes {
  /** States kept in slots. */
  readonly slots: number
  /** States in memory. */
  readonly memory: Capacity
}

export class Tiers {
  readonly #slots: KeptSlots
  readonly #device: Lru<KeptState>
  readonly #memory: Lru<KeptState>
  readonly #bytesPerState: number
  /** Copies out of slots that are not whole yet. Nobody but their readers sees them. */
  readonly #copies = new Map<KeptState, PartialCopy>()
  /** Reads of the store under way. */
  readonly #loads = new Map<KeptState, Promise<void>>()
  readonly #load: (kept: KeptState) => Promise<Snapshot>
  numLoads = 0
  /** States in a slot and in memory. */
  #numInBoth = 0

  constructor(
    slots: KeptSlots,
    sizes: TierSizes,
    bytesPerState: number,
    load: (kept: KeptState) => Promise<Snapshot>,
  ) {
    this.#slots = slots
    this.#device = new Lru({ count: sizes.slots, bytes: Number.POSITIVE_INFINITY })
    this.#memory = new Lru(sizes.memory)
    this.#bytesPerState = bytesPerState
    this.#load = load
  }

  get numInSlots(): number {
    return this.#device.count
  }

  /** States in memory that are in no slot. */
  get numInMemoryOnly(): number {
    return this.#memory.count - this.#numInBoth
  }

  /** A new state that stays in the slot it was computed in; the slot belongs to it from here on. */
  keepSlot(slot: number, text: SnapshotText, namespace: string, isForeign: boolean): KeptState {
    const kept = createKept(this.#factsOf(text, namespace, isForeign), 'none')
    kept.text = text
    kept.slot = slot
    this.#device.touch(kept, 0)
    return kept
  }

  /** A new state from a copy. */
  keepCopy({ state, ...text }: Snapshot, namespace: string, isForeign: boolean): KeptState {
    const kept = createKept(this.#factsOf(text, namespace, isForeign), 'none')
    kept.text = text
    this.#setArrays(kept, state)
    return kept
  }

  /** Makes it the last to move down. */
  touch(kept: KeptState): void {
    if (kept.slot !== null) this.#device.touch(kept, 0)
    if (kept.arrays !== null) this.#memory.touch(kept, kept.bytes)
  }

  isInMemory(kept: KeptState): boolean {
    return kept.slot !== null || kept.arrays !== null
  }

  /** Reads a state back from the store; several callers share one read. */
  bring(kept: KeptState): Promise<void> {
    const underWay = this.#loads.get(kept)
    if (underWay !== undefined) return underWay
    const load = this.#read(kept).finally(() => this.#loads.delete(kept))
    this.#loads.set(kept, load)
    return load
  }

  /** The state whose copy out of its slot was begun first and is not whole yet. */
  get copying(): KeptState | null {
    const [kept = null] = this.#copies.keys()
    return kept
  }

  /** The copy of a state out of its slot that is on its way, or begins now. */
  copyOf(kept: KeptState): PartialCopy {
    assert(kept.slot !== null, 'a state without a copy in memory or in a slot')
    const copy = this.#copies.get(kept) ?? this.#slots.copyOf(kept.slot)
    this.#copies.set(kept, copy)
    return copy
  }

  /** Reads the next piece of a state's copy out of its slot, which still holds it. True when the copy is whole. */
  copySome(kept: KeptState): boolean {
    if (kept.arrays !== null) return true
    const arrays = this.copyOf(kept).readSome()
    if (arrays !== null) this.#setArrays(kept, arrays)
    return arrays !== null
  }

  /** Copies a state out of its slot at once. */
  copyOut(kept: KeptState): void {
    while (!this.copySome(kept));
  }

  /** A state that has to leave its slot: no session will go on from it next, or more than allowed are in slots. */
  get nextToLeaveSlot(): KeptState | null {
    const idle = this.#device.oldest((kept) => !isHead(kept))
    return idle ?? (this.#device.isOver ? this.#device.oldest() : null)
  }

  /** The state whose slot can be had most cheaply. */
  get oldestInSlot(): KeptState | null {
    return this.#device.oldest()
  }

  /** Ends a state's stay in its slot; a copy is in memory after that. */
  demote(kept: KeptState): void {
    this.copyOut(kept)
    this.#leaveSlot(kept)
  }

  /** A state that is in a slot too, copied to be written, has its place there and takes none here; its bytes count. */
  get isMemoryFull(): boolean {
    return this.numInMemoryOnly > this.#memory.capacity.count || this.#isOverBytes
  }

  /**
   * Drops a copy from memory that is more than it may hold, is not the only one, and was used least recently. False when
   * there is none. `wanted` is about to be written from memory and stays.
   */
  shrinkMemory(wanted: KeptState | null): boolean {
    const isFree = (kept: KeptState) => kept.users === 0 && kept !== wanted
    // Second copies spare another when a state leaves its slot, but not any number of them.
    const haveManySeconds = this.#numInBoth > this.#memory.capacity.count || this.#isOverBytes
    const isSecond = (kept: KeptState) => kept.slot !== null && isFree(kept)
    const isSaved = (kept: KeptState) => kept.slot === null && kept.disk === 'saved' && isFree(kept)
    const oldest =
      (haveManySeconds ? this.#memory.oldest(isSecond) : null) ??
      (this.isMemoryFull ? this.#oldest(isSaved) : null)
    if (oldest === null) return false
    this.#dropArrays(oldest)
    return true
  }

  /** The state in memory alone that was used least recently and that no request needs or is about to replace. */
  get oldestInMemory(): KeptState | null {
    return this.#oldest(
      (kept) =>
        kept.slot === null &&
        kept.users === 0 &&
        [...kept.holders].every((session) => !session.isBusy),
    )
  }

  /** Every copy above the store. */
  drop(kept: KeptState): void {
    if (kept.slot !== null) this.#leaveSlot(kept)
    this.#dropArrays(kept)
  }

  get #isOverBytes(): boolean {
    return this.#memory.bytes > this.#memory.capacity.bytes
  }

  /** Old turns go before any session's head does. */
  #oldest(mayGo: (kept: KeptState) => boolean): KeptState | null {
    return this.#memory.oldest((kept) => mayGo(kept) && !isHead(kept)) ?? this.#memory.oldest(mayGo)
  }

  #factsOf({ tokens, tail }: SnapshotText, namespace: string, isForeign: boolean): StateFacts {
    const numTokens = tokens.length + tail.length
    return {
      key: newKey(),
      namespace,
      isForeign,
      numTokens,
      bytes: this.#bytesPerState + 4 * numTokens,
    }
  }

  async #read(kept: KeptState): Promise<void> {
    const { state, ...text } = await this.#load(kept)
    if (text.tokens.length + text.tail.length !== kept.numTokens) {
      throw new SkeinError('state_unavailable', 'a stored state is not the one that was asked for')
    }
    this.numLoads++
    // Its last turn and the last request for it may have gone meanwhile, and nobody would drop it any more.
    if (kept.users === 0 && kept.holders.size === 0) return
    kept.text = text
    this.#setArrays(kept, state)
  }

  #setArrays(kept: KeptState, arrays: StateArrays): void {
    if (kept.arrays === null && kept.slot !== null) this.#numInBoth++
    kept.arrays = arrays
    this.#copies.delete(kept)
    this.#memory.touch(kept, kept.bytes)
  }

  #leaveSlot(kept: KeptState): void {
    const slot = kept.slot!
    if (kept.arrays !== null) this.#numInBoth--
    kept.slot = null
    this.#copies.delete(kept)
    this.#device.delete(kept)
    this.#slots.free(slot)
    this.#forgetText(kept)
  }

  #dropArrays(kept: KeptState): void {
    if (kept.arrays !== null && kept.slot !== null) this.#numInBoth--
    // While it is being written the store's thread has not had all of it.
    if (kept.arrays !== null && kept.disk !== 'writing') this.#slots.drop(kept.arrays)
    kept.arrays = null
    this.#memory.delete(kept)
    this.#forgetText(kept)
  }

  #forgetText(kept: KeptState): void {
    if (!this.isInMemory(kept)) kept.text = null
  }
}
