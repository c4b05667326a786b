/**
 * Brings changes of sessions to the store, one commit at a time and in order. A state that could not be written stays
 * in memory, is counted and tried again: fewer at a time, and every other commit without any, so that what makes room is
 * written and what fits into it is too. A session that the store refuses for what is in it is not tried again: it is forgotten
 * here, and is as the store has it. It knows what has to be written, not how.
 */
import { SkeinError } from '../errors.ts'
import { type Barrier, type Commit, changeOf, commitOf, joined, partsOf, type Release } from './commit.ts'
import type { KeptState, Session } from './kept-state.ts'
import { tell, warn } from './store/failures.ts'
import { nameKey, type SessionName, type Store } from './store/store.ts'

/** Pause after a failed write, unless the store says another. */
const RETRY_MS = 2000
/**
 * Bytes of states that one commit writes. There are many small states, and a commit of several costs little more than a
 * commit of one.
 */
const MAX_BATCH_BYTES = 8 * 2 ** 20

interface SaverEvents {
  /** A commit has ended: there may be more to do. */
  done(): void
  /** What is unwritten of this session never will be: forget it as if it had never been here. */
  lost(session: Session, reason: SkeinError): void
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
  #commit: Commit | null = null
  readonly #waiting = new Map<KeptState, ((error: SkeinError | null) => void)[]>()
  /** Barriers that wait for the end of the next commit that includes what they wait for. */
  #barriers: Barrier[] = []
  #run: Promise<void> | null = null
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
    return this.hasChanges && this.#run === null && this.#retry === null
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
      this.#releases.push({ name: session, done: settling(session, resolve, reject) })
    })
  }

  /** Something of it is to be written, or is being. */
  isPending(session: Session): boolean {
    return this.#changed.has(session) || this.#commit?.sessions.has(session) === true || missingOf(session).length > 0
  }

  /** The claim to a session of that name is about to end: the store must not be asked for it before that. */
  isEnding(ending: SessionName): boolean {
    const key = nameKey(ending)
    const isIt = (name: SessionName) => nameKey(name) === key
    const sessions = [...this.#changed, ...(this.#commit?.sessions.keys() ?? [])]
    const releases = [...this.#releases, ...(this.#commit?.releases ?? [])]
    return sessions.some((session) => session.isDeleted && isIt(session)) || releases.some(({ name }) => isIt(name))
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
      this.#barriers.push({ session, done: settling(session, resolve, reject) })
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
    const commit = commitOf({ states, sessions, deleteKeys, ...this.#takeWaiting(states) })
    this.#wasLight = states.length === 0
    this.#commit = commit
    this.#run = this.#write(commit).finally(() => {
      this.#run = null
      this.#commit = null
      this.#events.done()
    })
  }

  /**
   * The releases and barriers that a commit with these states answers. What needs none of the states must not fail with
   * them.
   */
  #takeWaiting(states: readonly KeptState[]): Pick<Commit, 'releases' | 'barriers'> {
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

  async settled(): Promise<void> {
    await this.#run
  }

  /** Makes the next attempt due now. */
  retryNow(): void {
    if (this.#retry !== null) clearTimeout(this.#retry)
    this.#retry = null
  }

  async #write(commit: Commit): Promise<void> {
    const left = [commit]
    for (let next = left.shift(); next !== undefined; next = left.shift()) {
      try {
        const names = await this.#store.commit(changeOf(next))
        this.#succeeded(next, this.#lose(next, names), left)
      } catch (error) {
        const failure = SkeinError.from(error)
        const isRefused = failure.code === 'state_refused'
        const parts = isRefused ? partsOf(next) : []
        const [one] = next.sessions
        if (parts.length > 0) left.unshift(...parts)
        else if (isRefused && one?.[1]) this.#refused(next, one[0], failure)
        else return this.#failed(joined([next, ...left]), failure)
      }
    }
  }

  #succeeded({ puts, releases, barriers }: Commit, lost: readonly Session[], left: readonly Commit[]): void {
    const states = [...puts.keys()]
    if (states.length > 0) this.#batchBytes = Math.min(MAX_BATCH_BYTES, 2 * Math.max(this.#batchBytes, bytesOf(states)))
    for (const state of states) if (this.#unsaved.has(state)) this.#saved(state)
    // Of sessions that share a state all are waited for.
    for (const state of states)
      if (state.disk === 'saved' && left.every((part) => !part.puts.has(state))) this.#settle(state, null)
    if (states.length > 0 || this.#unsaved.size === 0) {
      if (this.#hasFailed) tell('states can be written again')
      this.#hasFailed = false
    }
    for (const { done } of releases) done?.(null)
    for (const { session, done } of barriers) done(session === null && lost[0] ? taken(lost[0]) : null)
  }

  /** Removes sessions of a commit that other processes turned out to have. */
  #lose({ sessions }: Commit, names: readonly SessionName[]): Session[] {
    const keys = new Set(names.map(nameKey))
    const lost = [...sessions.keys()].filter((session) => keys.has(nameKey(session)))
    this.#forget(lost, taken)
    return lost
  }

  /** Another try would be refused too, and hold up what others write. */
  #refused({ puts, barriers }: Commit, session: Session, { message }: SkeinError): void {
    warn('a session was not kept', message)
    this.counters.failedSaves++
    const reason = new SkeinError(
      'state_refused',
      `session ${session.id} was not kept, for what is in it (${message}); it is as its last kept turn left it`,
    )
    this.#forget([session], () => reason)
    for (const state of puts.keys()) {
      if (state.disk === 'saved') this.#settle(state, null)
      else state.disk = 'failed'
    }
    this.unclaim(session)
    for (const { done } of barriers) done(reason)
  }

  /** States that only these sessions hold are never written. */
  #forget(sessions: readonly Session[], reasonOf: (session: Session) => SkeinError): void {
    const states = new Set(sessions.flatMap(({ turns }) => [...turns.values()].map(({ state }) => state)))
    for (const session of sessions) {
      this.#changed.delete(session)
      this.#events.lost(session, reasonOf(session))
    }
    for (const state of states) {
      if (state.holders.size > 0 || !this.#unsaved.delete(state)) continue
      // What was brought to the store for it goes.
      this.#deletedKeys.add(state.key)
      state.disk = 'failed'
      this.#settle(state, reasonOf(sessions[0]!))
    }
  }

  #saved(state: KeptState): void {
    this.counters.saves++
    state.disk = 'saved'
    this.#unsaved.delete(state)
    if (state.holders.size === 0) this.#deletedKeys.add(state.key)
  }

  #failed({ puts, sessions, deleteKeys, releases, barriers }: Commit, error: SkeinError): void {
    const states = [...puts.keys()].filter(({ disk }) => disk !== 'saved')
    // Stop waiting for the disk to take states again.
    const lacking = this.#takeLacking(() => true)
    this.#releases.push(...releases.filter(({ done }) => done === null))
    this.counters.failedSaves++
    if (!this.#hasFailed) warn('states cannot be written, and are kept in memory until they can', error.message)
    this.#hasFailed = true
    // Never 0: one state is always tried.
    if (states.length > 0) this.#batchBytes = Math.max(1, Math.min(this.#batchBytes, bytesOf(states)) / 2)
    for (const key of deleteKeys) this.#deletedKeys.add(key)
    // Keep the old order: of two sessions with one id the later one counts.
    const later = [...this.#changed]
    this.#changed.clear()
    for (const session of [...sessions.keys(), ...later]) this.#changed.add(session)
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

/** Also where a session was lost before what is waited for. */
function settling(session: Session | null, resolve: () => void, reject: (error: SkeinError) => void) {
  return (error: SkeinError | null) => {
    const failure = session?.lostBy ?? error
    if (failure === null) resolve()
    else reject(failure)
  }
}

export function taken({ id }: SessionName): SkeinError {
  const message = `session ${id} was taken over by another worker before this was written; ask again`
  return new SkeinError('state_unavailable', message)
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
