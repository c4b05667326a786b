/**
 * Where the states of sessions are: slots of the device, then memory, then the store. Used states move up, the least
 * recently used ones down. A state leaves a tier only when a copy is whole in a lower one. It knows neither requests nor how the store works.
 */
import type { StateData } from '../backend/state-shape.ts'
import { assert, SkeinError } from '../errors.ts'
import { createKept, type KeptState, newKey, type SnapshotText, type StateFacts } from './kept-state.ts'
import { type Capacity, Lru } from './lru.ts'
import { isHead } from './sessions.ts'
import type { Snapshot } from './snapshot.ts'

/** A copy of a slot's state that is under way. */
interface SlotRead {
  cancel(): void
}

/** Slots that hold kept states, as their owner works them. */
interface KeptSlots {
  /** Copies the state of a slot; `whole` is told when the copy is, perhaps before this returns. */
  read(slot: number, whole: (state: StateData) => void): SlotRead
  /** Gives a slot back to those that are free. */
  free(slot: number): void
  /** A copy in memory that nobody has any more. */
  giveBack(state: StateData): void
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
  readonly #reads = new Map<KeptState, SlotRead>()
  /** States that leave their slots when their copies are whole. */
  readonly #leaving = new Set<KeptState>()
  /** Reads of the store under way. */
  readonly #loads = new Map<KeptState, Promise<void>>()
  readonly #load: (kept: KeptState) => Promise<Snapshot>
  numLoads = 0
  /** States in a slot and in memory. */
  #numInBoth = 0

  constructor(slots: KeptSlots, sizes: TierSizes, bytesPerState: number, load: (kept: KeptState) => Promise<Snapshot>) {
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

  /** Begins to copy a state out of its slot, which still holds it; `arrays` is the copy when it is whole, perhaps now. */
  copyOut(kept: KeptState): void {
    if (kept.arrays !== null || this.#reads.has(kept)) return
    assert(kept.slot !== null, 'a state without a copy in memory or in a slot')
    let isWhole = false
    const read = this.#slots.read(kept.slot, (state) => {
      isWhole = true
      this.#setArrays(kept, state)
    })
    if (!isWhole) this.#reads.set(kept, read)
  }

  /** Slots that will be free. */
  get numLeaving(): number {
    return this.#leaving.size
  }

  /** A state that has to leave its slot: no session will go on from it next, or more than allowed are in slots. */
  get nextToLeaveSlot(): KeptState | null {
    const isStaying = (kept: KeptState) => !this.#leaving.has(kept)
    const idle = this.#device.oldest((kept) => isStaying(kept) && !isHead(kept))
    if (idle !== null) return idle
    const isOver = this.numInSlots - this.numLeaving > this.#device.capacity.count
    return isOver ? this.#device.oldest(isStaying) : null
  }

  /** Has the states leave their slots that were used least recently and are not leaving yet. */
  giveUpSlots(count: number): void {
    for (let left = count; left > 0; left--) {
      const oldest = this.#device.oldest((kept) => !this.#leaving.has(kept))
      if (oldest === null) return
      this.demote(oldest)
    }
  }

  /** Ends a state's stay in its slot, now or when its copy in memory is whole. */
  demote(kept: KeptState): void {
    this.#leaving.add(kept)
    if (kept.arrays !== null) this.#leaveSlot(kept)
    else this.copyOut(kept)
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
      (haveManySeconds ? this.#memory.oldest(isSecond) : null) ?? (this.isMemoryFull ? this.#oldest(isSaved) : null)
    if (oldest === null) return false
    this.#dropArrays(oldest)
    return true
  }

  /** The state in memory alone that was used least recently and that no request needs or is about to replace. */
  get oldestInMemory(): KeptState | null {
    return this.#oldest(
      (kept) => kept.slot === null && kept.users === 0 && [...kept.holders].every((session) => !session.isBusy),
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
    return { key: newKey(), namespace, isForeign, numTokens, bytes: this.#bytesPerState + 4 * numTokens }
  }

  async #read(kept: KeptState): Promise<void> {
    const { state, ...text } = await this.#load(kept)
    if (text.tokens.length + text.tail.length !== kept.numTokens)
      throw new SkeinError('state_unavailable', 'a stored state is not the one that was asked for')
    this.numLoads++
    // Its last turn and the last request for it may have gone meanwhile, and nobody would drop it any more.
    if (kept.users === 0 && kept.holders.size === 0) return
    kept.text = text
    this.#setArrays(kept, state)
  }

  #setArrays(kept: KeptState, arrays: StateData): void {
    if (kept.arrays === null && kept.slot !== null) this.#numInBoth++
    kept.arrays = arrays
    this.#reads.delete(kept)
    this.#memory.touch(kept, kept.bytes)
    if (this.#leaving.has(kept)) this.#leaveSlot(kept)
  }

  #leaveSlot(kept: KeptState): void {
    const slot = kept.slot!
    if (kept.arrays !== null) this.#numInBoth--
    kept.slot = null
    this.#reads.get(kept)?.cancel()
    this.#reads.delete(kept)
    this.#leaving.delete(kept)
    this.#device.delete(kept)
    this.#slots.free(slot)
    this.#forgetText(kept)
  }

  #dropArrays(kept: KeptState): void {
    const { arrays } = kept
    if (arrays !== null && kept.slot !== null) this.#numInBoth--
    kept.arrays = null
    // A commit reads what it writes in parts, whoever still holds the state.
    if (arrays !== null && kept.users === 0 && kept.disk !== 'writing') this.#slots.giveBack(arrays)
    this.#memory.delete(kept)
    this.#forgetText(kept)
  }

  #forgetText(kept: KeptState): void {
    if (!this.isInMemory(kept)) kept.text = null
  }
}
