/**
 * The background work for states of sessions: down from slots to memory, from memory to the store, a little in every
 * step. It owns the tiers and what is still to be written. Which states there are is session-turns.ts.
 */
import { assert, SkeinError } from '../errors.ts'
import type { ModelInfo, StateData } from '../model/runner.ts'
import type { KeptState } from '../state/kept-state.ts'
import { Saver } from '../state/saver.ts'
import type { Sessions } from '../state/sessions.ts'
import { stateBytesOf } from '../state/snapshot.ts'
import type { Store } from '../state/store/store.ts'
import { type TierSizes, Tiers } from '../state/tiers.ts'
import type { SlotPool } from './slots.ts'
import type { StateCopies } from './state-copies.ts'

export interface ChoreOptions {
  readonly sizes: TierSizes
  /** Null: sessions live as long as the process. */
  readonly store: Store | null
}

export class StateChores {
  readonly tiers: Tiers
  /** Null without a store. */
  readonly saver: Saver | null
  readonly #store: Store | null
  readonly #copies: StateCopies
  readonly #wake: () => void
  /** Null until attached: sessions are made with a way to release states, which is this. */
  #sessions: Sessions | null = null

  constructor(
    info: ModelInfo,
    slots: SlotPool,
    { sizes, store }: ChoreOptions,
    copies: StateCopies,
    wake: () => void,
  ) {
    this.#store = store
    this.#copies = copies
    this.#wake = wake
    const kept = {
      copyOf: (slot: number) => copies.copyOf(slot),
      free: (slot: number) => slots.release(slot),
      drop: (arrays: StateData) => copies.memory.drop(arrays),
    }
    const bytesPerState = stateBytesOf(info.stateShape)
    this.tiers = new Tiers(kept, sizes, bytesPerState, ({ key, namespace }) => {
      assert(store !== null, 'a state is in no tier')
      return store.load(key, namespace)
    })
    this.saver = store === null ? null : new Saver(store, () => this.#saverDone())
  }

  /** The sessions whose states these are. */
  attach(sessions: Sessions): void {
    this.#sessions = sessions
  }

  /** Memory is full of what is to be written: turns come faster than the store takes them. */
  get isBehind(): boolean {
    return this.saver !== null && this.saver.numUnsaved > 0 && this.tiers.isMemoryFull
  }

  /** The step has something to do for kept states. */
  get hasChores(): boolean {
    const isCopying = this.#copies.isNextDue || this.tiers.copying !== null
    return isCopying || this.tiers.nextToLeaveSlot !== null || this.saver?.isReady === true
  }

  /** Slots that hold kept states, or spare copies: they can be had back. */
  get numKeptSlots(): number {
    return this.tiers.numInSlots + this.#copies.numTaken
  }

  /** Frees one of those; false when that takes copies that this step has no time for, and the next go on with. */
  reclaimSlot(): boolean {
    const state = this.tiers.oldestInSlot
    const isCopied = state !== null && state.arrays !== null
    if (!isCopied && this.#copies.numTaken > 0) return this.#copies.readNext()
    assert(state !== null, 'no slot can be had back')
    return (isCopied || this.#endCopy()) && this.#demote(state)
  }

  /** What can be done between two steps: states move down and to the store. */
  tidy(): void {
    this.#copies.budget.beginBackground()
    while (this.#copies.isNextDue && this.#copies.readNext());
    for (let next = this.tiers.nextToLeaveSlot; next !== null; next = this.tiers.nextToLeaveSlot) {
      if (!(this.#endCopy() && this.#demote(next))) break
    }
    this.#endCopy()
    this.#shrinkMemory()
    this.#save()
  }

  /** Writes what is not written. Slots are read only if the device can be trusted. Throws when something is lost. */
  async close(isSound: boolean): Promise<void> {
    const { saver } = this
    if (saver === null) return
    await saver.settled()
    saver.retryNow()
    // What makes room goes by itself: it is written though states may not fit.
    if (saver.hasChanges) saver.start([])
    await saver.settled()
    while (saver.hasChanges) {
      const [next] = saver.unsaved
      if (next !== undefined && next.arrays === null && !isSound) {
        saver.giveUp(next)
        continue
      }
      if (next !== undefined) this.tiers.copyOut(next)
      saver.start(next === undefined ? [] : [next])
      await saver.settled()
      if (saver.hasFailed) break
    }
    await this.#store?.close()
    if (!saver.hasFailed) return
    const count = saver.numUnsaved
    throw new SkeinError('state_unavailable', `${count} states of sessions could not be saved`)
  }

  /** Whoever raised `users` of a state is done with it. */
  unuse(state: KeptState): void {
    state.users--
    if (state.users === 0 && state.holders.size === 0) this.tiers.drop(state)
    this.#shrinkMemory()
  }

  /** No turn holds the state any more. */
  release(state: KeptState): void {
    this.saver?.removeState(state)
    this.forget(state)
  }

  /** Likewise, but its copy in the store stays. */
  forget(state: KeptState): void {
    if (state.users === 0) this.tiers.drop(state)
  }

  /** Starts a commit of what is not written, if there is time for the copies it needs. */
  #save(): void {
    const { saver } = this
    const { budget } = this.#copies
    if (!saver?.isReady || !budget.allows('save')) return
    const states: KeptState[] = []
    let bytes = 0
    for (const state of saver.isLightNext ? [] : saver.unsaved) {
      if (bytes >= saver.batchBytes || !this.#copyOut(state)) break
      states.push(state)
      bytes += state.bytes
    }
    const isCopying = states.length === 0 && saver.numUnsaved > 0 && !saver.isLightNext
    if (!isCopying) budget.spend('save', () => saver.start(states))
  }

  #demote(state: KeptState): boolean {
    if (!this.#copyOut(state)) return false
    this.tiers.demote(state)
    return true
  }

  /** Goes on with a copy that was begun, so that one at a time is on its way. True when none is. */
  #endCopy(): boolean {
    const { copying } = this.tiers
    return copying === null || this.#copyOut(copying)
  }

  /** As much of a copy as this step has time for; true when it is whole. */
  #copyOut(state: KeptState): boolean {
    const { budget } = this.#copies
    while (state.arrays === null) {
      const { next } = this.tiers.copyOf(state)
      if (!budget.allows(next)) return false
      budget.spend(next, () => this.tiers.copySome(state))
    }
    return true
  }

  /** Without a store what no longer fits into memory is forgotten, old turns first. */
  #shrinkMemory(): void {
    const [next] = this.saver?.unsaved ?? []
    while (this.tiers.shrinkMemory(next ?? null));
    while (this.saver === null && this.tiers.isMemoryFull) {
      const state = this.tiers.oldestInMemory
      if (state === null) return
      this.#sessions?.dropTurnsOf(state)
    }
  }

  #saverDone(): void {
    this.#shrinkMemory()
    this.#wake()
  }
}
