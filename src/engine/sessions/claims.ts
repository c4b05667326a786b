/**
 * Which sessions are this process's to write to, where several share a store. A session that is here has been claimed; one
 * that is not is asked of the store before it is used, and can be given up again. Who uses sessions is session-turns.ts.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { SkeinError } from '../../errors.ts'
import type { KeptState, Session } from '../../state/kept-state.ts'
import { type Saver, taken } from '../../state/saver.ts'
import type { Sessions } from '../../state/sessions.ts'
import { nameKey, type SessionName, type Store, type StoredSession } from '../../state/store/store.ts'

/** How long a request that waits for its session waits for another process to give it up, and how often it asks. */
const HANDOVER_MS = 10_000
const HANDOVER_POLL_MS = 50
/** How old the knowledge of what a tenant has elsewhere may be when its quota is checked. */
const USAGE_AGE_MS = 1000

export class SessionClaims {
  readonly store: Store
  readonly #saver: Saver
  readonly #sessions: Sessions
  readonly #wake: () => void
  readonly #offer: (state: KeptState) => Promise<void>
  /** The last of those that ask for a session of that name; they take turns. */
  readonly #lines = new Map<string, Promise<unknown>>()
  /** The lease's count of lapses when sessions were last checked. */
  #numLapses = 0
  readonly #doubted = new Set<Session>()
  /** The doubted sessions that are being written to find out. */
  readonly #proving = new Set<Session>()
  /** When the usage of a tenant was last asked for. */
  readonly #askedAt = new Map<string, number>()

  constructor(
    store: Store,
    saver: Saver,
    sessions: Sessions,
    offer: (state: KeptState) => Promise<void>,
    wake: () => void,
  ) {
    this.store = store
    this.#saver = saver
    this.#sessions = sessions
    this.#offer = offer
    this.#wake = wake
  }

  /**
   * Claims a session and brings it here, if there is one, and then calls `use` at once; the claim to one that is not here
   * after that is given up. Throws conflict while another process has it, if need be after waiting.
   */
  bring<T>(name: SessionName, mayCreate: boolean, use: () => T, isWaiting: () => boolean = () => false): Promise<T> {
    // From here on: a place in line behind others that wait is waiting, too.
    const deadline = performance.now() + HANDOVER_MS
    return this.#inLine(name, async () => {
      await this.#claim(name, mayCreate, () => isWaiting() && performance.now() <= deadline)
      try {
        return use()
      } finally {
        if (!this.#isHere(name)) this.#saver.unclaim(name)
        this.#wake()
      }
    })
  }

  /**
   * Looks whether claims have come to their end. Then sessions that are written go, with their slots; of the others
   * nobody knows whose they are until the next write, and they are not used before that.
   */
  checkLease(): void {
    const { lease } = this.store
    if (lease === null) return
    const { isOver, numLapses } = lease
    if (isOver || numLapses !== this.#numLapses) {
      for (const session of this.#sessions.tenants.sessions()) this.#doubt(session)
    }
    if (isOver) return
    this.#numLapses = numLapses
    for (const session of this.#doubted) void this.#makeSure(session)
  }

  /** A session that this process has not claimed, as it is stored. */
  async find(name: SessionName): Promise<StoredSession | null> {
    await this.#settled(name)
    return this.store.find(name)
  }

  /** Writes all of a session and lets it go; its next owner may have its state from here. Throws conflict while a request writes to it. */
  release(name: SessionName): Promise<void> {
    return this.#inLine(name, async () => {
      const session = this.#sessions.find(name.namespace, name.id)
      if (session === null) {
        // Its row may name this worker all the same: it forgot the session when its lease was over, or never heard that it got it.
        if (this.store.lease !== null) this.#saver.unclaim(name)
        await this.#settled(name)
        return
      }
      if (session.isBusy) throw busy(name.id)
      this.#sessions.lock(session)
      try {
        const head = session.turns.get(session.head)?.state
        // The one beside the other: whoever asked waits for both. What is not offered is in the store.
        const offered = head === undefined ? null : this.#offer(head).catch(() => {})
        await this.#write(session)
        await offered
        if (!session.isDeleted) this.#sessions.forget(session)
      } finally {
        this.#sessions.unlock(session)
        this.#wake()
      }
    })
  }

  /** Deletes stored sessions whose time is over. Nobody waits for it. */
  expire(): void {
    // What fails is tried again by the next call.
    this.store.expire().catch(() => {})
  }

  /** Asks, now and then, what a tenant has elsewhere; the answer counts from then on. */
  refreshUsage(namespace: string): void {
    const now = performance.now()
    if (now - (this.#askedAt.get(namespace) ?? -Infinity) < USAGE_AGE_MS) return
    this.#askedAt.set(namespace, now)
    this.store.usage(namespace).then(
      (usage) => this.#sessions.tenants.setElsewhere(namespace, usage),
      () => {},
    )
  }

  #doubt(session: Session): void {
    const hasRecord = session.turns.size > 0
    const isUnwritten = session.isBusy || this.#saver.isPending(session)
    if (!hasRecord) this.#sessions.lose(session, taken(session))
    else if (isUnwritten) {
      session.claim = 'doubted'
      this.#doubted.add(session)
    } else this.#sessions.forget(session)
    this.#wake()
  }

  /** Only what is written after the lease went on tells: nobody can take it from then on. */
  async #makeSure(session: Session): Promise<void> {
    if (this.#proving.has(session)) return
    this.#proving.add(session)
    const numLapses = this.#numLapses
    try {
      if (!session.isDeleted) {
        this.#saver.addSession(session)
        const written = this.#saver.barrier(session)
        this.#wake()
        await written
      }
      const { isOver, numLapses: now } = this.store.lease!
      if (isOver || now !== numLapses) return
      if (session.claim === 'doubted') session.claim = 'sure'
    } catch {
      // It is lost, or the next look tries again.
    } finally {
      this.#proving.delete(session)
      if (session.claim !== 'doubted' || session.isDeleted) this.#doubted.delete(session)
    }
  }

  async #write(session: Session): Promise<void> {
    for (const { state } of [...session.turns.values()]) {
      while (state.disk !== 'saved' && !session.isDeleted) {
        this.#saver.prefer(state)
        const written = new Promise<void>((resolve, reject) => {
          this.#saver.whenSaved(state, (error) => (error === null ? resolve() : reject(error)))
        })
        this.#wake()
        await written
      }
    }
    if (session.isDeleted) return
    const released = this.#saver.release(session)
    this.#wake()
    await released
  }

  async #claim(name: SessionName, mayCreate: boolean, isWaiting: () => boolean): Promise<void> {
    for (;;) {
      await this.#settled(name)
      if (this.#isHere(name)) return
      try {
        const { session, others } = await this.store.claim(name, mayCreate)
        this.#askedAt.set(name.namespace, performance.now())
        this.#sessions.tenants.setElsewhere(name.namespace, others)
        if (session !== null) this.#sessions.restore(session)
        return
      } catch (error) {
        const isTaken = error instanceof SkeinError && error.code === 'conflict'
        if (!isTaken || !isWaiting()) throw error
        await delay(HANDOVER_POLL_MS)
      }
    }
  }

  /** A session of that name that has been deleted or let go here is so in the store too. */
  async #settled(name: SessionName): Promise<void> {
    while (this.#saver.isEnding(name)) {
      const written = this.#saver.barrier()
      this.#wake()
      await written
    }
  }

  #isHere({ namespace, id }: SessionName): boolean {
    return this.#sessions.find(namespace, id) !== null
  }

  #inLine<T>(name: SessionName, work: () => Promise<T>): Promise<T> {
    const key = nameKey(name)
    const turn = (this.#lines.get(key) ?? Promise.resolve()).then(work)
    const last = turn
      .catch(() => {})
      .then(() => {
        if (this.#lines.get(key) === last) this.#lines.delete(key)
      })
    this.#lines.set(key, last)
    return turn
  }
}

export function doubted(id: string): SkeinError {
  const message = `whether session ${id} is still this worker's is not known until the cluster's database answers; try again`
  return new SkeinError('state_unavailable', message)
}

export function busy(id: string): SkeinError {
  return new SkeinError('conflict', `session ${id} is being written to by another request`)
}
