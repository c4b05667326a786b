/**
 * Which worker of a model holds each session, and how a session moves to another: the old worker brings it to the store
 * and forgets it, the new one reads it when it is asked. At no time may two workers hold the same session, so while it
 * moves, and while a request is using it, it stays where it is for everybody. One per model, however it is reached.
 */
import { setTimeout as delay } from 'node:timers/promises'
import type { SessionRef } from '../../engine/messages.ts'
import { SkeinError } from '../../errors.ts'
import { leave, type Replica, take } from './replicas.ts'

const MAX_SESSIONS = 100_000
const BUSY_POLL_MS = 50
/** How long a session on a worker that is ending may stay busy before its next request is given up. */
const MAX_BUSY_MS = 60_000

export interface Home {
  readonly ref: SessionRef
  worker: Replica | null
  /** Requests that use it now. */
  numUsers: number
  moving: Promise<void> | null
}

export class SessionHomes {
  readonly #homes = new Map<string, Home>()

  get size(): number {
    return this.#homes.size
  }

  /** Where a session is; one that is not known yet is nowhere, or in the store. */
  of(ref: SessionRef): Home {
    const key = `${ref.tenant}\0${ref.id}`
    const home = this.#homes.get(key) ?? { ref, worker: null, numUsers: 0, moving: null }
    this.#homes.delete(key)
    this.#homes.set(key, home)
    if (this.#homes.size > MAX_SESSIONS) this.#forgetOldest()
    return home
  }

  /**
   * The worker that a session is on, after it has been brought to the one that `choose` names, given where it is. Counts
   * a user of it and a request of the worker, which `leave` ends.
   */
  async enter(home: Home, choose: (worker: Replica | null) => Replica): Promise<Replica> {
    const begun = performance.now()
    for (;;) {
      while (home.moving !== null) await home.moving
      const target = choose(home.worker)
      const holder = home.worker?.engine == null ? target : home.worker!
      const mustStay = home.numUsers > 0 && holder.client !== null
      const refusal = holder === target || mustStay ? null : await this.#move(home, holder, target)
      if (holder !== target && !mustStay && refusal === null) continue
      if (refusal === null || holder.client !== null) {
        home.worker = holder
        home.numUsers++
        take(holder)
        return holder
      }
      const isLate = performance.now() - begun > MAX_BUSY_MS
      if (refusal.code !== 'conflict' || isLate) throw refusal
      await delay(BUSY_POLL_MS)
    }
  }

  leave(home: Home, worker: Replica): void {
    home.numUsers--
    leave(worker)
  }

  /** Why it cannot leave: busy, or there is no store to go through. Null when it has moved. */
  #move(home: Home, from: Replica, to: Replica): Promise<SkeinError | null> {
    const moved = () => {
      home.worker = to
      return null
    }
    const call = from.engine!.call('sessions.release', home.ref).then(moved, (thrown) => {
      const error = SkeinError.from(thrown)
      // The process has ended under the call; what it had saved is in the store.
      return error.code === 'model_not_loaded' ? moved() : error
    })
    // Who is placed meanwhile sees what is on its way.
    to.numInFlight++
    home.moving = call.then(() => {
      home.moving = null
      leave(to)
    })
    return call
  }

  #forgetOldest(): void {
    for (const [key, home] of this.#homes) {
      if (home.numUsers > 0 || home.moving !== null) continue
      this.#homes.delete(key)
      // Nobody will know where it is, so it must be in the store.
      home.worker?.engine?.call('sessions.release', home.ref).catch(() => {})
      return
    }
  }
}
