/**
 * Where states of sessions go when nobody uses them: from slots to memory, from memory to the store. It owns the tiers and
 * what is still to be written. Which states there are is sessions/turns.ts; how they are copied is state-transfers.ts.
 */
import { setImmediate } from 'node:timers/promises'
import { assert, SkeinError } from '../../errors.ts'
import { type ModelInfo, type StateData, stateBytesOf } from '../../model/runner.ts'
import type { KeptState, Session } from '../../state/kept-state.ts'
import { Saver } from '../../state/saver.ts'
import type { Sessions } from '../../state/sessions.ts'
import type { Store } from '../../state/store/store.ts'
import { type TierSizes, Tiers } from '../../state/tiers.ts'
import type { StateTransfers } from '../state-transfers.ts'
import type { Checkpoints } from './checkpoints.ts'

export interface MoverOptions {
  readonly sizes: TierSizes
  /** Null: sessions live as long as the process. */
  readonly store: Store | null
}

export class StateMover {
  readonly tiers: Tiers
  /** Null without a store. */
  readonly saver: Saver | null
  readonly #store: Store | null
  readonly #transfers: StateTransfers
  readonly #checkpoints: Checkpoints
  readonly #wake: () => void
  /** Null until attached: sessions are made with a way to release states, which is this. */
  #sessions: Sessions | null = null

  constructor(
    info: ModelInfo,
    { sizes, store }: MoverOptions,
    transfers: StateTransfers,
    checkpoints: Checkpoints,
    wake: () => void,
  ) {
    this.#store = store
    this.#transfers = transfers
    this.#checkpoints = checkpoints
    this.#wake = wake
    const kept = {
      read: (slot: number, whole: (state: StateData) => void) => transfers.read(slot, { whole }),
      free: (slot: number) => transfers.free(slot),
      giveBack: (state: StateData) => transfers.giveBack(state),
    }
    const bytesPerState = stateBytesOf(info.stateShape)
    this.tiers = new Tiers(kept, sizes, bytesPerState, ({ key, namespace }) => {
      assert(store !== null, 'a state is in no tier')
      return store.load(key, namespace)
    })
    const events = {
      done: () => this.#saverDone(),
      lost: (session: Session, reason: SkeinError) => this.#sessions?.lose(session, reason),
    }
    this.saver = store === null ? null : new Saver(store, events)
  }

  /** The sessions whose states these are. */
  attach(sessions: Sessions): void {
    this.#sessions = sessions
  }

  /** Memory is full of what is to be written: turns come faster than the store takes them. */
  get isBehind(): boolean {
    return this.saver !== null && this.saver.numUnsaved > 0 && this.tiers.isMemoryFull
  }

  /** There is something to do that waits for nothing. */
  get hasWork(): boolean {
    return this.tiers.nextToLeaveSlot !== null || this.saver?.isReady === true
  }

  /** Slots that hold kept states, or spare copies: they can be had back. */
  get numKeptSlots(): number {
    return this.tiers.numInSlots + this.#checkpoints.numSlots
  }

  /** Has so many of those freed, now or when their states are in memory; those that are leaving anyway count. */
  giveUpSlots(count: number): void {
    const more = count - this.#checkpoints.numLeaving - this.tiers.numLeaving
    const numSpare = Math.min(more, this.#checkpoints.numSlots - this.#checkpoints.numLeaving)
    this.#checkpoints.giveUpSlots(numSpare)
    this.tiers.giveUpSlots(more - Math.max(0, numSpare))
  }

  /** States move down and to the store. */
  tidy(): void {
    for (let next = this.tiers.nextToLeaveSlot; next !== null; next = this.tiers.nextToLeaveSlot)
      this.tiers.demote(next)
    this.#shrinkMemory()
    this.#save()
  }

  /** Resolves when the state is in memory; it must be there or in a slot. Whoever asks has raised its `users`. */
  async copiedOut(state: KeptState): Promise<void> {
    this.tiers.copyOut(state)
    while (state.arrays === null) {
      await setImmediate()
      this.#transfers.turn()
    }
  }

  /** Gives a state that is in memory or in a slot to who gets its session; one that is only in the store is there. */
  async offer(state: KeptState): Promise<void> {
    const store = this.#store
    if (store?.offer === undefined || !this.tiers.isInMemory(state)) return
    state.users++
    try {
      await this.copiedOut(state)
      const { key, text, arrays, namespace, isForeign } = state
      await store.offer({ key, ...text!, floats: arrays!, namespace, isForeign })
    } finally {
      this.unuse(state)
    }
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
      if (next !== undefined) await this.copiedOut(next)
      saver.start(next === undefined ? [] : [next])
      await saver.settled()
      if (saver.hasFailed) break
    }
    await this.#store?.close()
    if (!saver.hasFailed) return
    const count = saver.numUnsaved
    throw new SkeinError('state_unavailable', `${count} states of sessions could not be saved`)
  }

  /** Gives back one use of a state, as counted in `users`. */
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

  /** The same, but its copy in the store stays. */
  forget(state: KeptState): void {
    if (state.users === 0) this.tiers.drop(state)
  }

  /** Starts a commit of what is not written, with those states that are in memory; the next of the others are copied. */
  #save(): void {
    const { saver } = this
    if (!saver?.isReady) return
    const states: KeptState[] = []
    let bytes = 0
    for (const state of saver.isLightNext ? [] : saver.unsaved) {
      if (bytes >= saver.batchBytes) break
      this.tiers.copyOut(state)
      if (state.arrays === null) break
      states.push(state)
      bytes += state.bytes
    }
    const isCopying = states.length === 0 && saver.numUnsaved > 0 && !saver.isLightNext
    if (!isCopying) saver.start(states)
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
