/**
 * The sessions of all tenants: for each a tree of turns with a head, one writer at a time, a version that grows with
 * every change and a time to live. It knows which state is which turn; what a tenant may have is tenants.ts, and the copies
 * of states are others' business: `released` tells of states that no turn holds any more.
 */

import { SkeinError } from '../errors.ts'
import { createKept, type KeptState, type Session, type Turn } from './kept-state.ts'
import { expiresAt, type SessionName, type SessionRecord, type StoredSession } from './store/store.ts'
import { type SessionLimits, Tenants } from './tenants.ts'

interface SessionEvents {
  /** No turn holds this state any more. */
  released(state: KeptState): void
  /** The same, but the state stays in the store. */
  forgotten(state: KeptState): void
  /** A session came to nothing: it never had a turn. */
  vanished(session: Session): void
  /** Its record is to be written, or removed when it is deleted. */
  changed(session: Session): void
}

export class Sessions {
  readonly tenants: Tenants
  readonly #limits: SessionLimits
  readonly #events: SessionEvents
  readonly #now: () => number
  /** The states that turns hold, by key. */
  readonly #states = new Map<string, KeptState>()
  #count = 0

  constructor(limits: SessionLimits, events: SessionEvents, now: () => number) {
    this.#limits = limits
    this.tenants = new Tenants(limits)
    this.#events = events
    this.#now = now
  }

  /** Adds a session as a store has it. Several turns, of several sessions, may refer to one state. */
  restore({ namespace, id, record }: StoredSession): void {
    const { turns, ...facts } = record
    const session = this.#add({ namespace, id, ...facts })
    for (const { turn, parent, createdAt: at, origin, note, ...ofState } of turns) {
      const state = this.#states.get(ofState.key) ?? createKept({ namespace, ...ofState }, 'saved')
      this.#hold(session, { turn, parent, createdAt: at, state, origin, note })
    }
  }

  /** Drops a session here and leaves it in the store. */
  forget(session: Session): void {
    for (const turn of [...session.turns.values()]) if (this.#drop(session, turn)) this.#events.forgotten(turn.state)
    this.#remove(session)
  }

  /** Forgets a session whose unsaved changes are lost. */
  lose(session: Session, reason: SkeinError): void {
    session.lostBy = reason
    if (!session.isDeleted) this.forget(session)
  }

  get count(): number {
    return this.#count
  }

  get numStates(): number {
    return this.#states.size
  }

  /** Null for an unknown one, and for another tenant's. */
  find(namespace: string, id: string): Session | null {
    return this.tenants.get(namespace).sessions.get(id) ?? null
  }

  /** Most recently used first; one that has no turn yet does not show. */
  list(namespace: string): Session[] {
    return [...this.tenants.get(namespace).sessions.values()]
      .filter(({ turns, version }) => turns.size > 0 || version > 0)
      .sort((a, b) => b.updatedAt - a.updatedAt)
  }

  /** An empty session. Throws too_large when the tenant's quota is used up. */
  create(namespace: string, id: string, ttlMs: number | null = this.#limits.ttlMs): Session {
    this.#withoutExpired(() => this.tenants.refuseSession(namespace))
    const now = this.#now()
    return this.#add({ namespace, id, version: 0, head: 0, nextTurn: 1, createdAt: now, updatedAt: now, ttlMs })
  }

  /** As `tenants.refuseBytes`. */
  refuseBytes(namespace: string, nextBytes: number, ownBytes?: number): void {
    this.#withoutExpired(() => this.tenants.refuseBytes(namespace, nextBytes, ownBytes))
  }

  /** Adds a turn after `parent` and makes it the head. Turns beyond the limit stay until `prune`. */
  addTurn(session: Session, parent: number, state: KeptState, made: Pick<Turn, 'origin' | 'note'> = {}): Turn {
    const { origin, note } = made
    const turn = { turn: session.nextTurn, parent, createdAt: this.#now(), state, origin, note }
    session.nextTurn++
    this.#hold(session, turn)
    this.#setHead(session, turn.turn)
    return turn
  }

  /** Removes the last turn as if it had never been: the head is the one before it, or the session is gone. */
  retractTurn(session: Session, turn: Turn, head: number): void {
    if (session.head !== turn.turn || !session.turns.has(turn.turn)) return
    this.#letGo(session, turn)
    if (session.turns.size === 0) this.delete(session)
    else this.#setHead(session, head)
  }

  /**
   * Drops the oldest turns beyond the limit. While the head is not in the store, the turn that the store has as head is
   * kept too: a crash leads back to it.
   */
  prune(session: Session): void {
    const stored = headAmong(session, ({ state }) => state.disk === 'saved')
    let maxTurns = this.#limits.maxTurns
    for (const turn of [...session.turns.values()].sort((a, b) => a.turn - b.turn)) {
      if (session.turns.size <= maxTurns) return
      // Dropping a turn may end the need for others.
      if (turn.turn === session.head || !session.turns.has(turn.turn)) continue
      if (turn.turn === stored) {
        maxTurns++
        continue
      }
      this.#letGo(session, turn)
      this.#events.changed(session)
    }
  }

  /** Throws not_found for a turn that is not kept; turn 0 is null. */
  turnOf({ id, turns }: Session, number: number): Turn | null {
    if (number === 0) return null
    const turn = turns.get(number)
    if (turn !== undefined) return turn
    throw unknownTurn(id, number, turns.keys())
  }

  /** Makes another turn the head; none is lost. */
  rewind(session: Session, number: number): void {
    this.turnOf(session, number)
    this.#setHead(session, number)
  }

  /**
   * A new session with the turns that lead to `number`, which keep their numbers and share their states. Notes are not
   * copied.
   */
  fork(from: Session, newId: string, number: number): Session {
    this.turnOf(from, number)
    this.refuseTaken(from.namespace, newId)
    const session = this.create(from.namespace, newId, from.ttlMs)
    const path: Turn[] = []
    for (let at = from.turns.get(number); at; at = from.turns.get(at.parent)) path.unshift(at)
    for (const turn of path) this.#hold(session, { ...turn, note: undefined })
    session.nextTurn = number + 1
    this.#setHead(session, number)
    return session
  }

  refuseTaken(namespace: string, id: string): void {
    if (this.find(namespace, id) === null) return
    throw new SkeinError('conflict', `session ${id} exists; delete it or choose another id`)
  }

  /** The session is unknown from now on; a request that writes to it will save nothing. */
  delete(session: Session): void {
    if (session.isDeleted) return
    for (const turn of [...session.turns.values()]) this.#letGo(session, turn)
    this.#remove(session)
    this.#events.changed(session)
  }

  /** Removes one turn; a session whose head it was is deleted. */
  dropTurnsOf(state: KeptState): void {
    for (const session of [...state.holders]) {
      const turn = [...session.turns.values()].find((candidate) => candidate.state === state)!
      if (turn.turn === session.head) this.delete(session)
      else {
        this.#letGo(session, turn)
        this.#events.changed(session)
      }
    }
  }

  /** Deletes sessions whose time is over and that nobody is writing to. */
  expire(): void {
    const now = this.#now()
    for (const session of this.tenants.sessions()) {
      const end = expiresAt(session)
      if (end !== null && end <= now && !session.isBusy) this.delete(session)
    }
  }

  /** Takes the place of the writer. */
  lock(session: Session): void {
    session.isBusy = true
    this.tenants.change(session.namespace, { numBusy: 1 })
  }

  /** Lets the next writer in. A session without any turn is forgotten. */
  unlock(session: Session): void {
    session.isBusy = false
    this.tenants.change(session.namespace, { numBusy: -1 })
    if (session.turns.size === 0 && session.version === 0 && !session.isDeleted) {
      this.#remove(session)
      this.#events.vanished(session)
    }
    // Each waiter looks the session up again: it may be gone, or the waiter may have given up.
    while (!session.isBusy && session.waiters.length > 0) session.waiters.shift()!()
  }

  /** Expired sessions are deleted only now and then, and must not fill a quota until then. */
  #withoutExpired(refuse: () => void): void {
    try {
      refuse()
    } catch {
      this.expire()
      refuse()
    }
  }

  #setHead(session: Session, turn: number): void {
    session.head = turn
    session.version++
    session.updatedAt = this.#now()
    this.#events.changed(session)
  }

  #hold(session: Session, turn: Turn): void {
    if (turn.state.holders.size === 0) {
      this.tenants.change(session.namespace, { bytes: turn.state.bytes })
      this.#states.set(turn.state.key, turn.state)
    }
    turn.state.holders.add(session)
    session.turns.set(turn.turn, turn)
  }

  #letGo(session: Session, turn: Turn): void {
    if (this.#drop(session, turn)) this.#events.released(turn.state)
  }

  /** True when no other turn holds its state. */
  #drop(session: Session, { turn, state }: Turn): boolean {
    session.turns.delete(turn)
    state.holders.delete(session)
    if (state.holders.size > 0) return false
    this.#states.delete(state.key)
    this.tenants.change(session.namespace, { bytes: -state.bytes })
    return true
  }

  #add(facts: SessionName & Omit<SessionRecord, 'turns'>): Session {
    const unused = { isBusy: false, isDeleted: false, claim: 'sure', lostBy: null } as const
    const session: Session = { ...facts, ...unused, waiters: [], turns: new Map() }
    this.tenants.add(session)
    this.#count++
    return session
  }

  #remove(session: Session): void {
    session.isDeleted = true
    this.tenants.remove(session)
    this.#count--
  }
}

export function unknownTurn(id: string, turn: number, others: Iterable<number>): SkeinError {
  const kept = [...others].join(', ') || 'none'
  return new SkeinError('not_found', `session ${id} has no turn ${turn}; kept are: ${kept} (older ones are pruned)`)
}

/** The head, or the nearest turn before it for which `isSuch` holds; 0 when there is none. */
export function headAmong({ head, turns }: Pick<Session, 'head' | 'turns'>, isSuch: (turn: Turn) => boolean): number {
  let at = head
  while (at !== 0) {
    const turn = turns.get(at)
    // The turn was pruned: continue at the latest of the others, not at the beginning.
    if (turn === undefined) return Math.max(0, ...[...turns.values()].filter(isSuch).map((one) => one.turn))
    if (isSuch(turn)) return at
    at = turn.parent
  }
  return 0
}

/** Some session goes on from this state next. */
export function isHead(state: KeptState): boolean {
  return [...state.holders].some(({ turns, head }) => turns.get(head)?.state === state)
}
