/**
 * Brings changes of sessions to the store, one commit at a time and in order. A state that could not be written stays
 * in memory, is counted and tried again: fewer at a time, and every other commit without any, so that what makes room is
 * written and what fits into it is too. It knows what has to be written, not how.
 */
import { SkeinError } from '../errors.ts'
import type { KeptState, Session, Turn } from './kept-state.ts'
import { headAmong } from './sessions.ts'
import type { SessionName, SessionRecord, Store, StoreChange } from './store/store.ts'

/** Pause after a failed write, unless the store says another. */
const RETRY_MS = 2000
/**
 * Bytes of states that one commit writes. There are many small states, and a commit of several costs little more than a
 * commit of one.
 */
const MAX_BATCH_BYTES = 8 * 2 ** 20

/** The content of one commit. */
interface Batch {
  readonly states: readonly KeptState[]
  readonly sessions: readonly Session[]
  readonly deleteKeys: readonly string[]
  readonly releases: readonly Release[]
  readonly barriers: readonly Barrier[]
}

/** Waits for a session with all its states, or for the next commit. */
interface Barrier {
  readonly session: Session | null
  readonly done: (error: SkeinError | null) => void
}

/** The end of a claim. If somebody waits for it and it fails, it is not tried again: the session stays here. */
interface Release {
  readonly name: SessionName
  readonly done: ((error: SkeinError | null) => void) | null
}

const NOTHING: Pick<Batch, 'sessions' | 'releases'> = { sessions: [], releases: [] }

interface SaverEvents {
  /** A commit has ended: there may be more to do. */
  done(): void
  /** Another process has this session: forget it as if it had never been here. */
  lost(session: Session): void
}

export class Saver {
  readonly #store: Store
  readonly #events: SaverEvents
  /** In the order in which they came to be. */
  readonly #unsaved = new Set<KeptState>()
  readonly #changed = new Set<Session>()
  readonly #deletedKeys = new Set<string>()
  #releases: Release[] = []
  /** The commit under way. */
  #batch: Batch | null = null
  readonly #waiting = new Map<KeptState, ((error: SkeinError | null) => void)[]>()
  /** Barriers that wait for the end of the next commit that includes what they wait for. */
  #barriers: Barrier[] = []
  #commit: Promise<void> | null = null
  #retry: NodeJS.Timeout | null = null
  #hasFailed = false
  #batchBytes = MAX_BATCH_BYTES
  /** The last commit to be started was about no states. */
  #wasLight = false
  readonly counters = { saves: 0, failedSaves: 0 }

  constructor(store: Store, events: SaverEvents) {
    this.#store = store
    this.#events = events
  }

  get numUnsaved(): number {
    return this.#unsaved.size
  }

  /** The last write of states, or of all there was to write, failed. */
  get hasFailed(): boolean {
    return this.#hasFailed
  }

  /** A commit could be made now. */
  get isReady(): boolean {
    return this.hasChanges && this.#commit === null && this.#retry === null
  }

  get hasChanges(): boolean {
    return this.#unsaved.size > 0 || this.#hasLightChanges
  }

  /** The next commit takes states up to this many bytes, and at least one. */
  get batchBytes(): number {
    return this.#batchBytes
  }

  /** The next commit has no states, so that changes that still fit do not fail together with states that do not. */
  get isLightNext(): boolean {
    return this.#isCautious && !this.#wasLight && this.#hasLightChanges
  }

  /** True after a failed commit, until the usual number of states was written at once again. */
  get #isCautious(): boolean {
    return this.#batchBytes < MAX_BATCH_BYTES
  }

  get #hasLightChanges(): boolean {
    const waiting = this.#barriers.length + this.#releases.length
    return this.#changed.size + this.#deletedKeys.size + waiting > 0
  }

  /** Unsaved states in the order in which they will be written. */
  get unsaved(): Iterable<KeptState> {
    return this.#unsaved
  }

  addState(state: KeptState): void {
    this.#unsaved.add(state)
  }

  addSession(session: Session): void {
    this.#changed.add(session)
  }

  /** Makes it the next one to be written. */
  prefer(state: KeptState): void {
    if (!this.#unsaved.delete(state)) return
    const others = [...this.#unsaved]
    this.#unsaved.clear()
    for (const each of [state, ...others]) this.#unsaved.add(each)
  }

  /** Gives up the claim to a session that came to nothing. */
  unclaim(name: SessionName): void {
    this.#releases.push({ name, done: null })
  }

  /** Writes a session whose states are on disk, and gives up the claim to it. Rejects when it cannot. */
  release(session: Session): Promise<void> {
    this.#changed.add(session)
    return new Promise((resolve, reject) => {
      const done = (error: SkeinError | null) => (error === null ? resolve() : reject(error))
      this.#releases.push({ name: session, done })
    })
  }

  /** Something of it is to be written, or is being. */
  isPending(session: Session): boolean {
    return (
      this.#changed.has(session) || this.#batch?.sessions.includes(session) === true || missingOf(session).length > 0
    )
  }

  /** The claim to a session of that name is about to end: the store must not be asked for it before that. */
  isEnding({ namespace, id }: SessionName): boolean {
    const isIt = (name: SessionName) => isSame(name, { namespace, id })
    const { sessions, releases } = this.#batch ?? NOTHING
    return (
      [...this.#changed, ...sessions].some((session) => session.isDeleted && isIt(session)) ||
      [...this.#releases, ...releases].some(({ name }) => isIt(name))
    )
  }

  /** Nobody holds the state any more. */
  removeState(state: KeptState): void {
    this.#unsaved.delete(state)
    if (state.disk !== 'none') this.#deletedKeys.add(state.key)
    this.#settle(state, null)
  }

  /** Calls back once the state and the sessions that hold it are on disk, or could not be written. */
  whenSaved(state: KeptState, callback: (error: SkeinError | null) => void): void {
    this.#waiting.set(state, [...(this.#waiting.get(state) ?? []), callback])
  }

  /**
   * Resolves when all changes of sessions so far are on disk, with the states of `session`; rejects when they cannot be
   * written.
   */
  barrier(session: Session | null = null): Promise<void> {
    return new Promise((resolve, reject) => {
      // No commit will bring what was given up.
      if (missingOf(session).some((state) => !this.#unsaved.has(state))) return reject(lost())
      const done = (error: SkeinError | null) => (error === null ? resolve() : reject(error))
      this.#barriers.push({ session, done })
    })
  }

  /** The only copy of it was in a slot that can no longer be read. */
  giveUp(state: KeptState): void {
    this.#unsaved.delete(state)
    for (const { done } of this.#takeLacking((missing) => missing === state)) done(lost())
  }

  /** Starts the next commit, with these unsaved states, which are in memory. */
  start(states: readonly KeptState[]): void {
    for (const state of states) {
      for (const session of state.holders) this.#changed.add(session)
    }
    const sessions = [...this.#changed]
    this.#changed.clear()
    const deleteKeys = [...this.#deletedKeys]
    this.#deletedKeys.clear()
    for (const state of states) state.disk = 'writing'
    const batch = { states, sessions, deleteKeys, ...this.#takeWaiting(states) }
    this.#wasLight = states.length === 0
    this.#batch = batch
    this.#commit = this.#run(batch, changeOf(batch)).finally(() => {
      this.#commit = null
      this.#batch = null
      this.#events.done()
    })
  }

  /**
   * The releases and barriers that a commit with these states answers. What needs none of the states must not fail with
   * them.
   */
  #takeWaiting(states: readonly KeptState[]): Pick<Batch, 'releases' | 'barriers'> {
    const isRisky = this.#isCautious && states.length > 0
    const coming = new Set(states)
    const isTaken = ({ session }: Barrier) => {
      const missing = missingOf(session)
      return (missing.length > 0 || !isRisky) && missing.every((state) => coming.has(state))
    }
    const barriers = this.#barriers.filter(isTaken)
    const releases = isRisky ? [] : this.#releases
    this.#barriers = this.#barriers.filter((barrier) => !barriers.includes(barrier))
    this.#releases = isRisky ? this.#releases : []
    return { releases, barriers }
  }

  /** Barriers that wait for such a state. */
  #takeLacking(isSuch: (state: KeptState) => boolean): Barrier[] {
    const taken = this.#barriers.filter(({ session }) => missingOf(session).some(isSuch))
    this.#barriers = this.#barriers.filter((barrier) => !taken.includes(barrier))
    return taken
  }

  /** Waits for the commit under way. */
  async settled(): Promise<void> {
    await this.#commit
  }

  /** Makes the next attempt due now. */
  retryNow(): void {
    if (this.#retry !== null) clearTimeout(this.#retry)
    this.#retry = null
  }

  async #run(batch: Batch, change: StoreChange): Promise<void> {
    try {
      this.#succeeded(batch, this.#lose(batch, await this.#store.commit(change)))
    } catch (error) {
      this.#failed(batch, SkeinError.from(error))
    }
  }

  #succeeded({ states, releases, barriers }: Batch, lost: readonly Session[]): void {
    if (states.length > 0) {
      this.#batchBytes = Math.min(MAX_BATCH_BYTES, 2 * Math.max(this.#batchBytes, bytesOf(states)))
    }
    for (const state of states) if (this.#unsaved.has(state)) this.#saved(state)
    if (states.length > 0 || this.#unsaved.size === 0) this.#hasFailed = false
    const isLost = (name: SessionName) => lost.some((session) => isSame(session, name))
    for (const { name, done } of releases) done?.(isLost(name) ? taken(name) : null)
    for (const { session, done } of barriers) {
      const first = lost.find((each) => session === null || each === session)
      done(first === undefined ? null : taken(first))
    }
  }

  /**
   * Removes sessions of a commit that other processes turned out to have. States that only these sessions hold are
   * never written.
   */
  #lose({ sessions }: Batch, names: readonly SessionName[]): Session[] {
    const lost = sessions.filter((session) => names.some((name) => isSame(session, name)))
    const states = new Set(lost.flatMap(({ turns }) => [...turns.values()].map(({ state }) => state)))
    for (const session of lost) {
      this.#changed.delete(session)
      this.#events.lost(session)
    }
    for (const state of states) {
      if (state.holders.size > 0 || !this.#unsaved.delete(state)) continue
      state.disk = 'failed'
      this.#settle(state, taken(lost[0]!))
    }
    return lost
  }

  #saved(state: KeptState): void {
    this.counters.saves++
    state.disk = 'saved'
    this.#unsaved.delete(state)
    if (state.holders.size === 0) this.#deletedKeys.add(state.key)
    this.#settle(state, null)
  }

  #failed({ states, sessions, deleteKeys, releases, barriers }: Batch, error: SkeinError): void {
    // Stop waiting for the disk to take states again.
    const lacking = this.#takeLacking(() => true)
    this.#releases.push(...releases.filter(({ done }) => done === null))
    this.counters.failedSaves++
    this.#hasFailed = true
    // Never 0: one state is always tried.
    if (states.length > 0) this.#batchBytes = Math.max(1, Math.min(this.#batchBytes, bytesOf(states)) / 2)
    for (const key of deleteKeys) this.#deletedKeys.add(key)
    // Keep the old order: of two sessions with one id the later one counts.
    const later = [...this.#changed]
    this.#changed.clear()
    for (const session of [...sessions, ...later]) this.#changed.add(session)
    for (const state of states) state.disk = 'failed'
    for (const state of [...this.#waiting.keys()]) this.#settle(state, error)
    for (const { done } of releases) done?.(error)
    for (const { done } of [...barriers, ...lacking]) done(error)
    this.#retry = setTimeout(() => {
      this.#retry = null
      this.#events.done()
    }, this.#store.retryMs ?? RETRY_MS).unref()
  }

  #settle(state: KeptState, error: SkeinError | null): void {
    const callbacks = this.#waiting.get(state) ?? []
    this.#waiting.delete(state)
    for (const callback of callbacks) callback(error)
  }
}

function isSame(a: SessionName, b: SessionName): boolean {
  return a.namespace === b.namespace && a.id === b.id
}

export function taken({ id }: SessionName): SkeinError {
  return new SkeinError(
    'state_unavailable',
    `session ${id} was taken over by another worker before this was written; ask again`,
  )
}

function lost(): SkeinError {
  return new SkeinError('state_unavailable', 'a state was lost before it was written')
}

function bytesOf(states: readonly KeptState[]): number {
  return states.reduce((sum, { bytes }) => sum + bytes, 0)
}

/** Its states that are not in the store. */
function missingOf(session: Session | null): KeptState[] {
  const states = [...(session?.turns.values() ?? [])].map(({ state }) => state)
  return states.filter(({ disk }) => disk !== 'saved')
}

function changeOf({ states, sessions, deleteKeys, releases }: Batch): StoreChange {
  const puts = states.map(({ key, text, arrays, namespace, isForeign }) => {
    return { key, ...text!, floats: arrays!, namespace, isForeign }
  })
  const coming = new Set(states)
  const records = sessions.map((session) => {
    const { namespace, id, isDeleted } = session
    return { namespace, id, isDeleted, record: isDeleted ? null : recordOf(session, coming) }
  })
  const written = records.filter(({ isDeleted, record }) => isDeleted || record !== null)
  return { puts, sessions: written, deleteKeys, releases: releases.map(({ name }) => nameOf(name)) }
}

/** Without what a session has besides. */
function nameOf({ namespace, id }: SessionName): SessionName {
  return { namespace, id }
}

/**
 * The record of a session, restricted to states that are in the store, `coming` included; null when none is. So a
 * record never refers to a missing state, and after a crash the session is as it was at an earlier moment.
 */
function recordOf(session: Session, coming: ReadonlySet<KeptState>): SessionRecord | null {
  const { version, nextTurn, createdAt, updatedAt, ttlMs } = session
  const isSaved = ({ state }: Turn) => coming.has(state) || state.disk === 'saved'
  const saved = [...session.turns.values()].filter(isSaved)
  if (saved.length === 0) return null
  const head = headAmong(session, isSaved)
  const turns = saved.map(({ turn, parent, createdAt: at, state, origin, note }) => {
    const { key, numTokens, bytes, isForeign } = state
    const made = {
      ...(origin === undefined ? {} : { origin }),
      ...(note === undefined ? {} : { note }),
    }
    return { turn, parent, createdAt: at, key, numTokens, bytes, isForeign, ...made }
  })
  return { version, head, nextTurn, createdAt, updatedAt, ttlMs, turns }
}
