/** What may be done to sessions beside continuing them: the methods of EngineCalls, one function each. */
import { assert, SkeinError } from '../../errors.ts'
import { recordOf } from '../../state/commit.ts'
import { inTurns } from '../../state/in-turns.ts'
import { type KeptState, type Session, tierOf } from '../../state/kept-state.ts'
import type { Saver } from '../../state/saver.ts'
import { sealing } from '../../state/seal.ts'
import { unknownTurn } from '../../state/sessions.ts'
import { type Snapshot, transcriptOf } from '../../state/snapshot.ts'
import { encoding } from '../../state/snapshot-file.ts'
import { expiresAt, type SessionName, type StoredSession, type TurnRecord } from '../../state/store/store.ts'
import type { CallHandlers, EngineCall, SessionInfo, SessionRef } from '../messages.ts'
import { busy } from './claims.ts'
import { decodeImported, decodeOwn, type ImportContext, importSession, openLink, sealLink } from './imports.ts'
import type { SessionTurns } from './turns.ts'
import { refuseVersion, unknownSession } from './writers.ts'

export type SessionHandlers = Pick<CallHandlers, Extract<EngineCall, `sessions.${string}`>>

interface CallContext extends ImportContext {
  /** Changes are reported only when they are on disk. */
  readonly isDurable: boolean
  /** What links to turns are sealed with. */
  readonly linkKey: () => string
}

/** A session, and how it becomes what it was before. */
interface Changed {
  readonly session: Session
  readonly undo: () => void
  /** The saver to wait for before the change is reported; null: it is reported at once. */
  readonly saver: Saver | null
}

/** A session as it is read. */
interface Found extends StoredSession {
  /** Null for one that is in the store alone. */
  readonly here: Session | null
}

export function sessionCalls(context: CallContext): SessionHandlers {
  const { turns } = context
  const { sessions, claims } = turns
  const nameOf = ({ tenant, id }: SessionRef): SessionName => ({ namespace: context.namespaceOf(tenant), id })
  const durably = context.isDurable ? turns.mover.saver : null
  /** Nobody else writes to the session until `written`, which takes the change back where it cannot be written. */
  const changed = (session: Session, undo: () => void, saver = durably): Changed => {
    if (saver !== null) sessions.lock(session)
    return { session, undo, saver }
  }
  const changedNew = (session: Session, saver = durably) => changed(session, () => sessions.delete(session), saver)
  const written = async ({ session, undo, saver }: Changed): Promise<SessionInfo> => {
    if (saver !== null) {
      try {
        await saver.barrier(session)
      } catch (error) {
        if (!session.isDeleted) undo()
        throw error
      } finally {
        sessions.unlock(session)
      }
    }
    if (session.isDeleted) throw unknownSession(session.id)
    return infoOf(foundHere(session))
  }
  return {
    'sessions.list': ({ tenant, ...page }) => listPage(turns, context.namespaceOf(tenant), page),
    'sessions.get': (ref) => {
      return look(turns, nameOf(ref), (found) => {
        const { head, turns: kept } = found.record
        return { ...infoOf(found), note: kept.find(({ turn }) => turn === head)?.note }
      })
    },
    'sessions.fork': async ({ newId, turn, storedBytes, ...ref }) => {
      const from = await withSession(turns, nameOf(ref), (session) => session)
      const name = nameOf({ ...ref, id: newId })
      const fork = () => {
        if (from.isDeleted) throw unknownSession(ref.id)
        turns.refuseIfFull(from.namespace, null, storedBytes)
        return changedNew(sessions.fork(from, newId, turn ?? from.head))
      }
      return written(await withNew(turns, name, fork))
    },
    'sessions.rewind': async ({ turn, ifVersion, ...ref }) => {
      const rewound = await withSession(turns, nameOf(ref), (session) => {
        if (session.isBusy) throw busy(session.id)
        refuseVersion(session.id, session.version, ifVersion)
        const { head } = session
        sessions.rewind(session, turn === 'undo' ? parentOfHead(session) : turn)
        return changed(session, () => sessions.rewind(session, head))
      })
      return written(rewound)
    },
    // Unlike other changes it is always waited for: what was deleted is not on disk any more.
    'sessions.delete': async (ref) => {
      await withSession(turns, nameOf(ref), (session) => sessions.delete(session), existing)
      await turns.mover.saver?.barrier()
      return null
    },
    'sessions.release': async (ref) => {
      if (claims === null)
        throw new SkeinError('state_unavailable', 'without a store a session cannot leave its worker')
      await claims.release(nameOf(ref))
      return null
    },
    'sessions.export': async ({ turn, ...ref }) => {
      const file = await look(turns, nameOf(ref), (found) => exported(found, turnIn(found, turn), context))
      return inTurns(sealing(file, context.sealKeyOf(ref.tenant)))
    },
    'sessions.tokens': async ({ turn, start, end, ...ref }) => {
      const text = await look(turns, nameOf(ref), (found) => textOf(found, turnIn(found, turn), turns))
      return transcriptOf(text).slice(start, end)
    },
    'sessions.share': async ({ turn: asked, seconds, ...ref }) => {
      const name = nameOf(ref)
      const { turn, key: stateKey } = await look(turns, name, (found) => turnIn(found, asked))
      const expiresAt = Date.now() + 1000 * seconds
      const token = sealLink({ ...name, turn, stateKey, expiresAt }, context.linkKey())
      return { token, turn, expiresAt }
    },
    'sessions.open': async ({ token, ...params }) => {
      const { turn, stateKey, ...name } = openLink(token, context.linkKey(), Date.now())
      const file = await look(turns, name, (found) => {
        const linked = found.record.turns.find((one) => one.turn === turn)
        return linked?.key === stateKey ? exported(found, linked, context) : null
      }).catch((error: unknown) => {
        if (error instanceof SkeinError && error.code === 'not_found') return null
        throw error
      })
      // Whoever has a link is not told what it is of.
      if (file === null)
        throw new SkeinError('not_found', 'token: what this link is of is not kept any more; ask for a new one')
      const snapshot = await decodeOwn(file, context)
      const create = () => changedNew(importSession(snapshot, params, context), turns.mover.saver)
      return written(await withNew(turns, nameOf(params), create))
    },
    'sessions.import': async (params) => {
      const snapshot = await decodeImported(params, context)
      // Whoever has imported a state may delete it where it came from: it is always waited for.
      const create = () => changedNew(importSession(snapshot, params, context), turns.mover.saver)
      return written(await withNew(turns, nameOf(params), create))
    },
  }
}

/** Also one that a request has begun and that has no turn yet. Throws not_found. */
function existing(turns: SessionTurns, { namespace, id }: SessionName): Session {
  const session = turns.find(namespace, id)
  if (session === null) throw unknownSession(id)
  return session
}

/** Throws not_found. */
function visible(turns: SessionTurns, name: SessionName): Session {
  const session = existing(turns, name)
  if (session.version === 0) throw unknownSession(name.id)
  return session
}

/** A session that is this worker's to change; where it is here already that is at once. */
async function withSession<T>(turns: SessionTurns, name: SessionName, use: (session: Session) => T, find = visible) {
  const act = () => use(find(turns, name))
  const isHere = turns.find(name.namespace, name.id) !== null
  if (turns.claims === null || isHere) return act()
  return turns.claims.bring(name, false, act)
}

/** Calls `create` when no other worker can make a session of that name. */
async function withNew<T>(turns: SessionTurns, name: SessionName, create: () => T): Promise<T> {
  const isHere = turns.find(name.namespace, name.id) !== null
  if (turns.claims === null || isHere) return create()
  return turns.claims.bring(name, true, create)
}

function foundHere(here: Session): Found {
  const { namespace, id, turns, head } = here
  return { namespace, id, record: recordOf(here, turns.values(), head), here }
}

/** Reads a session as it is here, or else as it is stored, whoever writes to it. At once: it may be deleted any time. */
async function look<T>(turns: SessionTurns, name: SessionName, read: (found: Found) => T) {
  const isHere = turns.find(name.namespace, name.id) !== null
  if (turns.claims === null || isHere) return await read(foundHere(visible(turns, name)))
  const stored = await turns.claims.find(name)
  // It may have come here meanwhile.
  return await read(stored === null ? foundHere(visible(turns, name)) : { ...stored, here: null })
}

async function listPage(
  turns: SessionTurns,
  namespace: string,
  { limit = Number.MAX_SAFE_INTEGER, after }: { limit?: number | undefined; after?: string | undefined },
): Promise<SessionInfo[]> {
  const { sessions, claims } = turns
  sessions.expire()
  const endAt = ({ id, record: { updatedAt } }: Found) => ({ id, updatedAt })
  const end = after === undefined ? null : await look(turns, { namespace, id: after }, endAt)
  const infos = new Map<string, SessionInfo>()
  const addHere = () => {
    for (const session of sessions.list(namespace)) infos.set(session.id, infoOf(foundHere(session)))
  }
  addHere()
  if (claims !== null) {
    const stored = await claims.store.list(namespace, { limit, after: end })
    for (const session of stored) infos.set(session.id, infoOf({ ...session, here: null }))
    addHere()
  }
  const isPast = (info: SessionInfo) => end === null || byUse(end, info) < 0
  return [...infos.values()].filter(isPast).sort(byUse).slice(0, limit)
}

type Used = Pick<SessionInfo, 'id' | 'updatedAt'>

/** Latest first. */
function byUse(a: Used, b: Used): number {
  return b.updatedAt - a.updatedAt || (a.id < b.id ? -1 : Number(a.id > b.id))
}

function parentOfHead({ id, head, turns }: Session): number {
  const turn = turns.get(head)
  if (turn === undefined) throw new SkeinError('conflict', `session ${id} has no turn to undo`)
  return turn.parent
}

/** Of that number, or the head. Throws not_found. */
function turnIn({ id, record: { head, turns } }: Found, number = head): TurnRecord {
  const found = turns.find(({ turn }) => turn === number)
  if (found !== undefined) return found
  if (number === 0) throw new SkeinError('not_found', `session ${id} has no turn yet`)
  throw unknownTurn(
    id,
    number,
    turns.map(({ turn }) => turn),
  )
}

function stateOf({ here }: Found, { turn }: TurnRecord): KeptState | undefined {
  return here?.turns.get(turn)?.state
}

/** A state that is only in the store stays there: its text alone is asked for. */
async function textOf(found: Found, turn: TurnRecord, { claims }: SessionTurns) {
  return stateOf(found, turn)?.text ?? claims!.store.load(turn.key, found.namespace)
}

async function exported(found: Found, turn: TurnRecord, { turns, identity }: CallContext): Promise<Uint8Array> {
  const state = stateOf(found, turn)
  const write = (snapshot: Snapshot) => {
    return inTurns(encoding(snapshot, identity, { namespace: '', isForeign: turn.isForeign }))
  }
  if (state === undefined) return write(await turns.claims!.store.load(turn.key, found.namespace))
  const { mover } = turns
  state.users++
  try {
    if (mover.tiers.isInMemory(state)) await mover.copiedOut(state)
    else await mover.tiers.bring(state)
    return await write({ ...state.text!, state: state.arrays! })
  } finally {
    mover.unuse(state)
  }
}

function infoOf(found: Found): SessionInfo {
  const { id, record, here } = found
  const { version, head, createdAt, updatedAt } = record
  const turns = record.turns.toSorted((a, b) => a.turn - b.turn)
  assert(here === null || head === 0 || here.turns.has(head), 'the head of a session is no turn of it')
  return {
    id,
    version,
    head,
    turns: turns.map((one) => {
      const { turn, parent, numTokens, createdAt } = one
      const state = stateOf(found, one)
      const place = { tier: state ? tierOf(state) : 'disk', isSaved: state === undefined || state.disk === 'saved' }
      return { turn, parent, numTokens, createdAt, ...place }
    }),
    createdAt,
    updatedAt,
    expiresAt: expiresAt(record),
    bytes: turns.reduce((sum, { bytes }) => sum + bytes, 0),
    isBusy: here?.isBusy ?? false,
  }
}
