/**
 * Requests that continue a session, from the moment they are sent to the turn that they become. It owns the sessions.
 * Nothing in it waits: what comes from the store comes between steps. Where states are is state-chores.ts.
 */
import { assert, SkeinError } from '../errors.ts'
import type { Runner } from '../model/runner.ts'
import type { KeptState } from '../state/kept-state.ts'
import {
  expiresAt,
  type Session,
  type SessionLimits,
  Sessions,
  type Turn,
} from '../state/sessions.ts'
import { joinTokens, stateBytesOf, transcriptOf } from '../state/snapshot.ts'
import type { TokenBytes } from './answer-text.ts'
import { answerTokens } from './answer-tokens.ts'
import { Checkpoints } from './checkpoints.ts'
import type { SessionPosition } from './messages.ts'
import type { LiveRequest, Sequence, Start } from './sequence.ts'
import { busy, SessionClaims } from './session-claims.ts'
import { copying, type Fill, followedBy, writing } from './slot-fills.ts'
import type { SlotPool } from './slots.ts'
import { type ChoreOptions, StateChores } from './state-chores.ts'
import type { StateCopies } from './state-copies.ts'

export interface SessionOptions extends ChoreOptions {
  readonly limits: SessionLimits
  /** A turn is reported only when it is on disk. */
  readonly isDurable: boolean
  readonly now: () => number
}

/** What a live request has to do with its session. */
interface Use {
  readonly namespace: string
  /** The session that it is the writer of; null while it waits in line. */
  session: Session | null
  parent: Turn | null
  /** The state that it will begin with, until it has. */
  pinned: KeptState | null
  /** Its place in the line of a session's writers. */
  waiting: { readonly line: (() => void)[]; readonly resume: () => void } | null
}

/** How a request learns that it can join the waiting line, or never will. */
export interface Opening {
  ready(): void
  fail(error: SkeinError): void
}

/** How often sessions whose time is over are looked for. */
const EXPIRY_MS = 60_000

export class SessionTurns {
  readonly sessions: Sessions
  readonly chores: StateChores
  /** Null without a store: then all sessions there are are here. */
  readonly claims: SessionClaims | null
  readonly #runner: Runner
  readonly #tokenBytes: TokenBytes
  readonly #options: SessionOptions
  readonly #copies: StateCopies
  readonly #wake: () => void
  readonly #checkpoints: Checkpoints
  readonly #uses = new Map<LiveRequest, Use>()
  readonly #expiry: NodeJS.Timeout

  constructor(
    runner: Runner,
    slots: SlotPool,
    tokenBytes: TokenBytes,
    options: SessionOptions,
    copies: StateCopies,
    wake: () => void,
  ) {
    const { limits, store, now } = options
    this.#runner = runner
    this.#tokenBytes = tokenBytes
    this.#options = options
    this.#copies = copies
    this.#checkpoints = new Checkpoints(copies)
    this.#wake = wake
    this.chores = new StateChores(runner.info, slots, options, copies, wake)
    const events = {
      released: (state: KeptState) => this.chores.release(state),
      forgotten: (state: KeptState) => this.chores.forget(state),
      changed: (session: Session) => this.chores.saver?.addSession(session),
      vanished: (session: Session) => this.chores.saver?.unclaim(session),
    }
    this.sessions = new Sessions(limits, events, now)
    this.chores.attach(this.sessions)
    this.claims =
      store === null ? null : new SessionClaims(store, this.chores.saver!, this.sessions, wake)
    this.#expiry = setInterval(() => this.#expire(), EXPIRY_MS).unref()
  }

  /** Makes a request the writer of its session and its prompt the whole conversation, now or later. May throw. */
  open(live: LiveRequest, namespace: string, opening: Opening): void {
    const use: Use = {
      namespace,
      session: null,
      parent: null,
      pinned: null,
      waiting: null,
    }
    this.#uses.set(live, use)
    if (this.#mustClaim(live, use)) {
      void this.#claimThenEnter(live, use, opening)
      return
    }
    try {
      this.#enter(live, use, opening)
    } catch (error) {
      this.#uses.delete(live)
      throw error
    }
  }

  /** The turn being continued, and where the state of it is to begin with; null for a request without one. */
  startOf(live: LiveRequest): Start | null {
    const state = this.#uses.get(live)?.pinned
    if (!state) return null
    this.chores.tiers.touch(state)
    const fill = (slot: number) => followedBy(this.#fillFrom(state, slot), () => this.#unpin(live))
    return { numTokens: state.text!.tokens.length, fill }
  }

  /** From wherever the state is when the fill begins; it may leave its slot before that. */
  #fillFrom(state: KeptState, slot: number): Fill {
    let begun: Fill | null = null
    const fill = () =>
      state.slot === null
        ? writing(this.#runner, slot, state.arrays!, this.#copies.layersAtOnce)
        : copying(this.#runner, state.slot, slot)
    return {
      get next() {
        return begun?.next ?? (state.slot === null ? 'write' : 'slot')
      },
      writeSome() {
        begun ??= fill()
        return begun.writeSome()
      },
    }
  }

  /** The turn that a request continues. */
  positionOf(live: LiveRequest): SessionPosition | null {
    const use = this.#uses.get(live)
    if (!use?.session) return null
    const { id, version } = use.session
    return { id, version, turn: use.parent?.turn ?? 0 }
  }

  /** After a draw of an answer that may go on. */
  drew(sequence: Sequence): void {
    const { owner, finish } = sequence
    if (finish !== null || owner.request.stop.strings.length === 0 || !this.#uses.has(owner)) return
    this.#checkpoints.drew(sequence)
  }

  /** Takes the copies that requests wait for. */
  takeOwed(isAlone: boolean): void {
    this.#checkpoints.takeOwed(isAlone)
  }

  /** The answer has ended: it becomes a turn. Its slot may be kept. Reports once, perhaps later, unless it is gone. */
  end(
    sequence: Sequence,
    report: (position: SessionPosition | null, error: SkeinError | null) => void,
  ): void {
    const { owner } = sequence
    const use = this.#uses.get(owner)
    const session = use?.session
    assert(use && session, 'an answer of no session became a turn')
    this.#leave(owner)
    const state = session.isDeleted ? null : this.#keep(sequence, use)
    this.#checkpoints.drop(owner)
    if (state === null) {
      this.sessions.unlock(session)
      report(null, null)
      return
    }
    const { head } = session
    const turn = this.sessions.addTurn(session, use.parent?.turn ?? 0, state)
    const position = { id: session.id, turn: turn.turn, version: session.version }
    this.chores.saver?.addState(state)
    const isDurable = this.#options.isDurable && this.chores.saver !== null
    // Nothing goes for a turn that may yet be taken away.
    if (!isDurable) this.sessions.prune(session)
    if (this.chores.saver === null || !(isDurable || this.chores.isBehind)) {
      this.sessions.unlock(session)
      report(position, null)
      return
    }
    this.chores.saver.whenSaved(state, (error) => {
      const failure = isDurable ? error : null
      if (failure !== null) this.sessions.retractTurn(session, turn, head)
      else if (isDurable) this.sessions.prune(session)
      this.sessions.unlock(session)
      report(failure === null && !session.isDeleted ? position : null, failure)
    })
  }

  /** The request ends without an answer: cancelled, or failed. What it has drawn is kept if it asked for that. */
  abandon(live: LiveRequest, isCancel: boolean): void {
    const use = this.#uses.get(live)
    if (use === undefined) return
    const sequence = live.sequences[0]!
    const isAnswering = sequence.isDecoding && sequence.slot !== null
    if (isCancel && isAnswering && live.request.session!.onCancel === 'keep') {
      this.end(sequence, () => {})
      return
    }
    this.#leave(live)
    this.#checkpoints.drop(live)
    if (use.session !== null) this.sessions.unlock(use.session)
  }

  /** Without saving anything. */
  dispose(): void {
    clearInterval(this.#expiry)
  }

  /** Throws what forbids a new turn with so many tokens and its answer's; null: no state comes with it. */
  refuseIfFull(namespace: string, numTokens: number | null, storedBytes?: number): void {
    this.claims?.refreshUsage(namespace)
    const stateBytes = stateBytesOf(this.#runner.info.stateShape)
    const nextBytes = numTokens === null ? 0 : stateBytes + 4 * numTokens
    this.sessions.tenants.refuseBytes(namespace, nextBytes, storedBytes)
    if (this.chores.saver?.hasFailed && this.chores.tiers.isMemoryFull) {
      throw new SkeinError(
        'state_unavailable',
        'states can neither be written to the store nor kept in memory; check the disk of --data-dir',
      )
    }
  }

  /** The session of that id, unless its time is over. */
  find(namespace: string, id: string): Session | null {
    const session = this.sessions.find(namespace, id)
    if (session === null || session.isBusy) return session
    const end = expiresAt(session)
    if (end === null || end > this.#options.now()) return session
    this.sessions.delete(session)
    return null
  }

  #enter(live: LiveRequest, use: Use, opening: Opening): void {
    const { id, ifMissing, from, ifBusy, ifVersion, ttlSeconds } = live.request.session!
    const found = this.find(use.namespace, id)
    if (found?.isBusy) {
      if (ifBusy === 'conflict') throw busy(id)
      const resume = () => this.#enterLater(live, use, opening)
      use.waiting = { line: found.waiters, resume }
      found.waiters.push(resume)
      return
    }
    if (found === null && (ifMissing === 'error' || from)) throw unknownSession(id)
    refuseVersion(id, found?.version ?? 0, ifVersion)
    const parent = found && this.sessions.turnOf(found, from ?? found.head)
    const numTokens = (parent?.state.numTokens ?? 0) + ownPrompt(live, parent?.state).length
    this.refuseIfFull(use.namespace, numTokens, live.request.storedBytes)
    const ttlMs = ttlSeconds === undefined ? undefined : 1000 * ttlSeconds
    const session = found ?? this.sessions.create(use.namespace, id, ttlMs)
    if (ttlMs !== undefined) session.ttlMs = ttlMs
    this.sessions.lock(session)
    use.session = session
    use.parent = parent
    if (parent === null) {
      this.#proceed(live, null, opening)
      return
    }
    use.pinned = parent.state
    parent.state.users++
    if (this.chores.tiers.isInMemory(parent.state)) this.#proceed(live, parent.state, opening)
    else void this.#loadThenProceed(live, use, parent.state, opening)
  }

  /** The session is not here, and may be in the store or in the hands of another process. */
  #mustClaim({ request }: LiveRequest, { namespace }: Use): boolean {
    return this.claims !== null && this.find(namespace, request.session!.id) === null
  }

  async #claimThenEnter(live: LiveRequest, use: Use, opening: Opening): Promise<void> {
    const { id, ifMissing, from, ifBusy } = live.request.session!
    const isWaiting = () => ifBusy === 'wait' && this.#uses.get(live) === use
    const mayCreate = ifMissing === 'create' && !from
    try {
      const enter = () => {
        if (this.#uses.get(live) === use) this.#enter(live, use, opening)
      }
      await this.claims!.bring({ namespace: use.namespace, id }, mayCreate, enter, isWaiting)
    } catch (error) {
      if (this.#uses.get(live) === use) opening.fail(SkeinError.from(error))
    }
    this.#wake()
  }

  /** The writer before it has gone, and perhaps the session with it. */
  #enterLater(live: LiveRequest, use: Use, opening: Opening): void {
    use.waiting = null
    if (this.#mustClaim(live, use)) {
      void this.#claimThenEnter(live, use, opening)
      return
    }
    try {
      this.#enter(live, use, opening)
    } catch (error) {
      opening.fail(SkeinError.from(error))
    }
    this.#wake()
  }

  async #loadThenProceed(
    live: LiveRequest,
    use: Use,
    state: KeptState,
    opening: Opening,
  ): Promise<void> {
    try {
      await this.chores.tiers.bring(state)
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
    opening.fail(
      new SkeinError(
        'invalid_request',
        'the prompt is empty and the session has nothing left to read',
      ),
    )
  }

  /** The state of a turn: the slot's own where every token it has consumed belongs to the answer. */
  #keep(sequence: Sequence, { namespace, parent }: Use): KeptState {
    const { owner, drawn, numFed } = sequence
    const isForeign = parent?.state.isForeign === true
    const { count, rest } = answerTokens(sequence, this.#tokenBytes)
    const restTokens = rest === '' ? [] : this.#tokenBytes.encode!(rest) // submit has checked it
    const textAt = (consumed: number) => ({
      tokens: joinTokens(owner.prompt, drawn.slice(0, consumed)),
      tail: joinTokens(drawn.slice(consumed, count), restTokens),
    })
    if (count >= numFed) {
      const slot = sequence.slot!
      sequence.slot = null
      return this.chores.tiers.keepSlot(slot, textAt(numFed), namespace, isForeign)
    }
    const { taken, count: consumed } = this.#checkpoints.before(owner, count)
    const text = textAt(consumed)
    const { tiers } = this.chores
    if (taken.arrays !== null) {
      return tiers.keepCopy({ ...text, state: taken.arrays }, namespace, isForeign)
    }
    const spare = this.#copies.claimSlot(taken)
    assert(spare !== null, 'a copy from before a stop string was let go of')
    return tiers.keepSlot(spare, text, namespace, isForeign)
  }

  #leave(live: LiveRequest): void {
    this.#unpin(live)
    const { waiting } = this.#uses.get(live)!
    this.#uses.delete(live)
    if (waiting !== null) waiting.line.splice(waiting.line.indexOf(waiting.resume), 1)
  }

  #unpin(live: LiveRequest): void {
    const use = this.#uses.get(live)
    const state = use?.pinned
    if (!use || !state) return
    use.pinned = null
    this.chores.unuse(state)
  }

  #expire(): void {
    this.sessions.expire()
    this.claims?.expire()
    this.#wake()
  }
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
