/**
 * Which worker of a model holds each session, and how a session moves: the old worker saves it to the store and forgets
 * it, and the new one reads it on demand. Two workers must never hold the same session, so a session does not move
 * while it is in use, and requests wait while it moves. There is one per model, shared by all its routers.
 */
import { setTimeout as delay } from 'node:timers/promises'
import type { SessionRef } from '../../engine/messages.ts'
import { SkeinError } from '../../errors.ts'
import { leave, type Replica, take } from './replicas.ts'

const MAX_SESSIONS = 100_000
const BUSY_POLL_MS = 50
/** How long the next request of a session waits while the session is busy on a worker that is ending. */
const MAX_BUSY_MS = 60_000

interface Home {
  readonly ref: SessionRef
  worker: Replica | null
  /** Requests that use it now. */
  numUsers: number
  moving: Promise<void> | null
}

export class SessionAffinity {
  readonly #homes = new Map<string, Home>()

  get size(): number {
    return this.#homes.size
  }

  /** The home of a session. An unknown session is in no worker; it may be in the store. */
  of(ref: SessionRef): Home {
    const key = `${ref.tenant}\0${ref.id}`
    const home = this.#homes.get(key) ?? { ref, worker: null, numUsers: 0, moving: null }
    this.#homes.delete(key)
    this.#homes.set(key, home)
    if (this.#homes.size > MAX_SESSIONS) this.#forgetOldest()
    return home
  }

  /**
   * Moves a session to the worker that `choose` returns, given its current one, if it can move. Returns the worker that
   * holds it, and counts a user of the session and a request of the worker until `leave`.
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

  /** Resolves with null when it has moved, else with the reason why it cannot: it is busy, or there is no store. */
  #move(home: Home, from: Replica, to: Replica): Promise<SkeinError | null> {
    const moved = () => {
      home.worker = to
      return null
    }
    const call = from.engine!.call('sessions.release', home.ref).then(moved, (thrown) => {
      const error = SkeinError.from(thrown)
      // The process ended during the call; what it had saved is in the store.
      return error.code === 'model_not_loaded' ? moved() : error
    })
    // Requests that are placed meanwhile see that one is on its way.
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
      // Its worker will not be known any more, so the session must be in the store.
      home.worker?.engine?.call('sessions.release', home.ref).catch(() => {})
      return
    }
  }
}
