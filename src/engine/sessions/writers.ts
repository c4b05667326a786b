/**
 * Makes a request the one writer of its session: it claims the session, waits in line behind other writers, and finds the
 * state that the request begins with. Nothing here waits within a step. turns.ts turns the answer into a turn.
 */
import { SkeinError } from '../../errors.ts'
import type { KeptState, Session, Turn } from '../../state/kept-state.ts'
import type { Sessions } from '../../state/sessions.ts'
import { joinTokens, transcriptOf } from '../../state/snapshot.ts'
import type { StateMover } from '../kept/state-mover.ts'
import type { LiveRequest } from '../sequence.ts'
import { busy, type SessionClaims } from './claims.ts'

/** How a live request uses its session. */
export interface Use {
  readonly namespace: string
  /** The session that it is the writer of; null while it waits in line. */
  session: Session | null
  parent: Turn | null
  /** The state that it will begin with, until it has. */
  pinned: KeptState | null
  /** The time to live that its turn gives the session; undefined: the one it has. */
  ttlMs: number | undefined
  /** Its place in the line of a session's writers. */
  waiting: { readonly line: (() => void)[]; readonly resume: () => void } | null
}

/** How a request learns that it can join the waiting line, or never will. */
export interface Opening {
  ready(): void
  fail(error: SkeinError): void
}

/** The sessions that there are, and what is asked of them. */
export interface SessionShelf {
  readonly sessions: Sessions
  readonly mover: StateMover
  /** Null without a store: then all sessions there are are here. */
  readonly claims: SessionClaims | null
  /** The session of that id, unless its time is over. */
  find(namespace: string, id: string): Session | null
  /** Throws what forbids a new turn with so many tokens. */
  refuseIfFull(namespace: string, numTokens: number | null, storedBytes?: number): void
}

export class SessionWriters {
  readonly #shelf: SessionShelf
  readonly #wake: () => void
  readonly #uses = new Map<LiveRequest, Use>()

  constructor(shelf: SessionShelf, wake: () => void) {
    this.#shelf = shelf
    this.#wake = wake
  }

  /** Makes a request the writer of its session and its prompt the whole conversation, now or later. May throw. */
  open(live: LiveRequest, namespace: string, opening: Opening): void {
    const use: Use = { namespace, session: null, parent: null, pinned: null, ttlMs: undefined, waiting: null }
    this.#uses.set(live, use)
    try {
      this.#claimOrEnter(live, use, opening)
    } catch (error) {
      this.#uses.delete(live)
      throw error
    }
  }

  /** What a request has to do with its session; undefined without a session, or after it has left. */
  useOf(live: LiveRequest): Use | undefined {
    return this.#uses.get(live)
  }

  /** The request has ended, or waits for nothing any more. Its session stays locked if it was. */
  leave(live: LiveRequest): void {
    this.unpin(live)
    const { waiting } = this.#uses.get(live)!
    this.#uses.delete(live)
    if (waiting !== null) waiting.line.splice(waiting.line.indexOf(waiting.resume), 1)
  }

  /** It has begun with its state, or will not. */
  unpin(live: LiveRequest): void {
    const use = this.#uses.get(live)
    const state = use?.pinned
    if (!use || !state) return
    use.pinned = null
    this.#shelf.mover.unuse(state)
  }

  #claimOrEnter(live: LiveRequest, use: Use, opening: Opening): void {
    if (this.#mustClaim(live, use)) void this.#claimThenEnter(live, use, opening)
    else this.#enter(live, use, opening)
  }

  #enter(live: LiveRequest, use: Use, opening: Opening): void {
    const { sessions, mover } = this.#shelf
    const { id, ifMissing, from, ifBusy, ifVersion, ttlSeconds, origin } = live.request.session!
    const found = this.#shelf.find(use.namespace, id)
    if (found?.isBusy) {
      if (ifBusy === 'conflict' && !this.#isBeingLeft(found)) throw busy(id)
      const resume = () => this.#enterLater(live, use, opening)
      use.waiting = { line: found.waiters, resume }
      found.waiters.push(resume)
      return
    }
    if (found === null && (ifMissing === 'error' || from)) throw unknownSession(id)
    refuseVersion(id, found?.version ?? 0, ifVersion)
    const parent = found && sessions.turnOf(found, from ?? headFor(found, origin))
    const numTokens = (parent?.state.numTokens ?? 0) + ownPrompt(live, parent?.state).length
    this.#shelf.refuseIfFull(use.namespace, numTokens, live.request.storedBytes)
    const ttlMs = ttlSeconds === undefined ? undefined : 1000 * ttlSeconds
    const session = found ?? sessions.create(use.namespace, id, ttlMs)
    use.ttlMs = ttlMs
    sessions.lock(session)
    use.session = session
    use.parent = parent
    if (parent === null) {
      this.#proceed(live, null, opening)
      return
    }
    use.pinned = parent.state
    parent.state.users++
    if (mover.tiers.isInMemory(parent.state)) this.#proceed(live, parent.state, opening)
    else void this.#loadThenProceed(live, use, parent.state, opening)
  }

  /** Its writer was cancelled and is about to go. */
  #isBeingLeft(session: Session): boolean {
    return [...this.#uses].some(([live, use]) => use.session === session && live.isLeaving)
  }

  /** The session is not here, and may be in the store or in the hands of another process. */
  #mustClaim({ request }: LiveRequest, { namespace }: Use): boolean {
    return this.#shelf.claims !== null && this.#shelf.find(namespace, request.session!.id) === null
  }

  async #claimThenEnter(live: LiveRequest, use: Use, opening: Opening): Promise<void> {
    const { id, ifMissing, from, ifBusy } = live.request.session!
    const isWaiting = () => ifBusy === 'wait' && this.#uses.get(live) === use
    const mayCreate = ifMissing === 'create' && !from
    try {
      const enter = () => {
        if (this.#uses.get(live) === use) this.#enter(live, use, opening)
      }
      await this.#shelf.claims!.bring({ namespace: use.namespace, id }, mayCreate, enter, isWaiting)
    } catch (error) {
      if (this.#uses.get(live) === use) opening.fail(SkeinError.from(error))
    }
    this.#wake()
  }

  /** The writer before it has gone, and perhaps the session with it. */
  #enterLater(live: LiveRequest, use: Use, opening: Opening): void {
    use.waiting = null
    try {
      this.#claimOrEnter(live, use, opening)
    } catch (error) {
      opening.fail(SkeinError.from(error))
    }
    this.#wake()
  }

  async #loadThenProceed(live: LiveRequest, use: Use, state: KeptState, opening: Opening): Promise<void> {
    try {
      await this.#shelf.mover.tiers.bring(state)
      if (use.pinned === state) this.#proceed(live, state, opening)
    } catch (error) {
      if (use.pinned === state) opening.fail(SkeinError.from(error))
    }
    this.#wake()
  }

  #proceed(live: LiveRequest, state: KeptState | null, opening: Opening): void {
    const prompt = ownPrompt(live, state)
    const numFed = state?.text?.tokens.length ?? 0
    live.prompt = state === null ? prompt : joinTokens(transcriptOf(state.text!), prompt)
    if (live.prompt.length > numFed) {
      opening.ready()
      return
    }
    opening.fail(new SkeinError('invalid_request', 'the prompt is empty and the session has nothing left to read'))
  }
}

/** Where a request goes on that names no turn: not behind its own answer, which it had and nobody saw. */
function headFor({ head, turns }: Session, origin: string | undefined): number {
  const last = turns.get(head)
  return origin !== undefined && last?.origin === origin ? last.parent : head
}

/** What a request itself brings. Only the writer of a session knows whether there is a turn to continue. */
function ownPrompt({ request }: LiveRequest, state: KeptState | null | undefined): Int32Array {
  const { prompt, promptAtBeginning = prompt } = request
  return state ? prompt : promptAtBeginning
}

export function unknownSession(id: string): SkeinError {
  return new SkeinError('not_found', `there is no session ${id}`, { param: 'session' })
}

export function refuseVersion(id: string, version: number, expected: number | undefined): void {
  if (expected === undefined || expected === version) return
  throw new SkeinError('conflict', `session ${id} is at version ${version}, not ${expected}`)
}
