/**
 * Owns the sessions and turns answers into their turns. writers.ts decides which request writes to a session;
 * kept/state-mover.ts knows where states are. Nothing here waits: what the store sends arrives between steps.
 */
import { assert, SkeinError } from '../../errors.ts'
import { type Runner, type StateData, stateBytesOf } from '../../model/runner.ts'
import type { KeptState, Session } from '../../state/kept-state.ts'
import { Sessions } from '../../state/sessions.ts'
import { joinTokens } from '../../state/snapshot.ts'
import { expiresAt } from '../../state/store/store.ts'
import type { SessionLimits } from '../../state/tenants.ts'
import { END_OF_TEXT, type TokenBytes } from '../answer/answer-text.ts'
import { Checkpoints } from '../kept/checkpoints.ts'
import type { Start } from '../kept/start.ts'
import { type MoverOptions, StateMover } from '../kept/state-mover.ts'
import type { SessionPosition } from '../messages.ts'
import type { LiveRequest, Sequence } from '../sequence.ts'
import type { SlotPool } from '../slots.ts'
import type { StateTransfers } from '../state-transfers.ts'
import { doubted, SessionClaims } from './claims.ts'
import { type SessionShelf, SessionWriters, type Use } from './writers.ts'

export interface SessionOptions extends MoverOptions {
  readonly limits: SessionLimits
  /** A turn is reported only when it is on disk. */
  readonly isDurable: boolean
  /** A state that this server did not hand out, or not to this tenant, may become a session. */
  readonly acceptsForeign: boolean
  readonly now: () => number
}

/** How often expired sessions are looked for, in milliseconds. */
const EXPIRY_MS = 60_000
/** How often claims are checked for their end, in milliseconds. Requests check them, too. */
const LEASE_MS = 500

export class SessionTurns implements SessionShelf {
  readonly sessions: Sessions
  readonly mover: StateMover
  readonly claims: SessionClaims | null
  readonly writers: SessionWriters
  readonly #runner: Runner
  readonly #tokenBytes: TokenBytes
  readonly #options: SessionOptions
  readonly #wake: () => void
  readonly #checkpoints: Checkpoints
  readonly #timers: readonly NodeJS.Timeout[]

  constructor(
    runner: Runner,
    slots: SlotPool,
    transfers: StateTransfers,
    tokenBytes: TokenBytes,
    options: SessionOptions,
    wake: () => void,
  ) {
    const { limits, store, now } = options
    this.#runner = runner
    this.#tokenBytes = tokenBytes
    this.#options = options
    this.#checkpoints = new Checkpoints(runner, slots, transfers)
    this.#wake = wake
    this.mover = new StateMover(runner.info, options, transfers, this.#checkpoints, wake)
    const events = {
      released: (state: KeptState) => this.mover.release(state),
      forgotten: (state: KeptState) => this.mover.forget(state),
      changed: (session: Session) => this.mover.saver?.addSession(session),
      vanished: (session: Session) => this.mover.saver?.unclaim(session),
    }
    this.sessions = new Sessions(limits, events, now)
    this.mover.attach(this.sessions)
    const offer = (state: KeptState) => this.mover.offer(state)
    this.claims = store === null ? null : new SessionClaims(store, this.mover.saver!, this.sessions, offer, wake)
    this.writers = new SessionWriters(this, wake)
    this.#timers = [
      setInterval(() => this.#expire(), EXPIRY_MS).unref(),
      ...(store?.lease ? [setInterval(() => this.claims?.checkLease(), LEASE_MS).unref()] : []),
    ]
  }

  /** The turn being continued, and where the state of it is to begin with; null for a request without one. */
  startOf(live: LiveRequest): Start | null {
    const state = this.writers.useOf(live)?.pinned
    if (!state) return null
    this.mover.tiers.touch(state)
    return {
      numTokens: state.text!.tokens.length,
      // It may have left its slot since.
      take: () => state.slot ?? state.arrays!,
      taken: () => this.writers.unpin(live),
    }
  }

  /** The turn that a request continues. */
  positionOf(live: LiveRequest): SessionPosition | null {
    const use = this.writers.useOf(live)
    if (!use?.session) return null
    const { id, version } = use.session
    return { id, version, turn: use.parent?.turn ?? 0 }
  }

  /** After a draw of an answer that may go on. */
  drew(sequence: Sequence): void {
    const { owner, finish } = sequence
    if (finish !== null || owner.request.stop.strings.length === 0 || this.writers.useOf(owner) === undefined) return
    this.#checkpoints.drew(sequence)
  }

  /** The answer has ended: it becomes a turn. Its slot may be kept. Reports once, perhaps later, unless it is gone. */
  end(sequence: Sequence, report: (position: SessionPosition | null, error: SkeinError | null) => void): void {
    const { owner } = sequence
    this.claims?.checkLease()
    const use = this.writers.useOf(owner)
    const session = use?.session
    assert(use && session, 'an answer of no session became a turn')
    this.writers.leave(owner)
    const state = session.isDeleted ? null : this.#keep(sequence, use)
    this.#checkpoints.drop(owner)
    if (state === null) {
      this.sessions.unlock(session)
      report(null, session.lostBy)
      return
    }
    const { head, ttlMs } = session
    if (use.ttlMs !== undefined) session.ttlMs = use.ttlMs
    const continued = use.parent?.turn ?? 0
    const turn = this.sessions.addTurn(session, continued, state, owner.request.session)
    const position = { id: session.id, turn: turn.turn, version: session.version, continued }
    this.mover.saver?.addState(state)
    // What may be another's by now is not told of before it is written either.
    const isDurable = this.mover.saver !== null && (this.#options.isDurable || session.claim === 'doubted')
    // Nothing goes for a turn that may yet be taken away.
    if (!isDurable) {
      this.sessions.prune(session)
      this.#pruneWhenSaved(session, state)
    }
    if (this.mover.saver === null || !(isDurable || this.mover.isBehind)) {
      this.sessions.unlock(session)
      report(position, null)
      return
    }
    this.mover.saver.whenSaved(state, (error) => {
      const failure = session.lostBy ?? (isDurable ? error : null)
      if (failure !== null) {
        session.ttlMs = ttlMs
        this.sessions.retractTurn(session, turn, head)
      } else if (isDurable) this.sessions.prune(session)
      this.sessions.unlock(session)
      report(failure === null && !session.isDeleted ? position : null, failure)
    })
  }

  /** The request ends without an answer: cancelled, or failed. What it has drawn is kept if it asked for that. */
  abandon(live: LiveRequest, isCancel: boolean): void {
    const use = this.writers.useOf(live)
    if (use === undefined) return
    const sequence = live.sequences[0]!
    const isAnswering = sequence.isDecoding && (sequence.slot ?? sequence.saved) !== null
    if (isCancel && isAnswering && live.request.session!.onCancel === 'keep') {
      this.end(sequence, () => {})
      return
    }
    this.writers.leave(live)
    this.#checkpoints.drop(live)
    if (use.session !== null) this.sessions.unlock(use.session)
  }

  /** Without saving anything. */
  dispose(): void {
    for (const timer of this.#timers) clearInterval(timer)
  }

  /** Throws what forbids a new turn with so many tokens and its answer's; null: no state comes with it. */
  refuseIfFull(namespace: string, numTokens: number | null, storedBytes?: number): void {
    this.claims?.refreshUsage(namespace)
    const stateBytes = stateBytesOf(this.#runner.info.stateShape)
    const nextBytes = numTokens === null ? 0 : stateBytes + 4 * numTokens
    this.sessions.refuseBytes(namespace, nextBytes, storedBytes)
    if (this.mover.saver?.hasFailed && this.mover.tiers.isMemoryFull) {
      const message = 'states can neither be written to the store nor kept in memory; check the disk of --data-dir'
      throw new SkeinError('state_unavailable', message)
    }
  }

  /** The session of that id, unless its time is over. Throws state_unavailable where another may have it by now. */
  find(namespace: string, id: string): Session | null {
    this.claims?.checkLease()
    const session = this.sessions.find(namespace, id)
    if (session?.claim === 'doubted') throw doubted(id)
    if (session === null || session.isBusy) return session
    const end = expiresAt(session)
    if (end === null || end > this.#options.now()) return session
    this.sessions.delete(session)
    return null
  }

  /** The state of a turn: the slot's own where every token it has consumed belongs to the answer. */
  #keep(sequence: Sequence, { namespace, parent }: Use): KeptState {
    const { owner, drawn, numFed, slot, saved } = sequence
    const { tiers } = this.mover
    const isForeign = parent?.state.isForeign === true
    const { count, rest } = answerTokens(sequence, this.#tokenBytes)
    const restTokens = rest === '' ? [] : this.#tokenBytes.encode!(rest) // submit has checked it
    const keep = (consumed: number, slot: number | null, state: StateData | null) => {
      const tokens = joinTokens(owner.prompt, drawn.slice(0, consumed))
      const text = { tokens, tail: joinTokens(drawn.slice(consumed, count), restTokens) }
      if (slot !== null) return tiers.keepSlot(slot, text, namespace, isForeign)
      assert(state !== null, 'an answer without a state became a turn')
      return tiers.keepCopy({ ...text, state }, namespace, isForeign)
    }
    if (count >= numFed) {
      sequence.slot = null
      return keep(numFed, slot, saved)
    }
    const checkpoint = this.#checkpoints.before(owner, count)
    const copy = this.#checkpoints.claim(checkpoint.copy)
    return keep(checkpoint.count, copy.slot, copy.state)
  }

  /** Until a turn is in the store, one before it may have been kept for it. */
  #pruneWhenSaved(session: Session, state: KeptState): void {
    this.mover.saver?.whenSaved(state, (error) => {
      if (error === null) this.sessions.prune(session)
      else if (session.lostBy === null) this.#pruneWhenSaved(session, state)
    })
  }

  #expire(): void {
    this.sessions.expire()
    this.claims?.expire()
    this.#wake()
  }
}

interface AnswerTokens {
  /** How many of the drawn tokens, from the first on, belong to the answer as they are. */
  readonly count: number
  /** Visible text after those. */
  readonly rest: string
}

/** Of a sequence that has ended. */
export function answerTokens(sequence: Sequence, tokenBytes: TokenBytes): AnswerTokens {
  const { drawn, finish, text } = sequence
  if (typeof finish?.matched === 'number') return { count: drawn.length - 1, rest: '' }
  if (typeof finish?.matched !== 'string') return { count: drawn.length, rest: '' }
  let count = drawn.length
  let whole = decode(drawn, tokenBytes)
  const shown = whole.slice(0, text.numReleased)
  // A stop string spans a few tokens, so this goes a few steps back.
  while (!shown.startsWith(whole)) {
    count--
    whole = decode(drawn.slice(0, count), tokenBytes)
  }
  return { count, rest: shown.slice(whole.length) }
}

function decode(tokens: readonly number[], tokenBytes: TokenBytes): string {
  const bytes = tokens.map((token) => (token === END_OF_TEXT ? new Uint8Array(0) : tokenBytes.bytesOf(token)))
  return new TextDecoder('utf-8', { ignoreBOM: true }).decode(Buffer.concat(bytes))
}
