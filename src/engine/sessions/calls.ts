/** What may be done to sessions beside continuing them: the methods of EngineCalls, one function each. */
import { assert, SkeinError } from '../../errors.ts'
import { inTurns } from '../../state/in-turns.ts'
import { type KeptState, type Session, type Turn, tierOf } from '../../state/kept-state.ts'
import type { Saver } from '../../state/saver.ts'
import { sealing } from '../../state/seal.ts'
import { transcriptOf } from '../../state/snapshot.ts'
import { encoding } from '../../state/snapshot-file.ts'
import {
  expiresAt,
  type SessionName,
  type SessionRecord,
  type StoredSession,
  type TurnRecord,
} from '../../state/store/store.ts'
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
    return infoOf(session)
  }
  const exported = (found: Session | StoredSession, turn: number | undefined) => {
    return 'record' in found ? exportStored(found, turn, context) : exportTurn(turnFor(turns, found, turn), context)
  }
  return {
    'sessions.list': ({ tenant, ...page }) => listPage(turns, context.namespaceOf(tenant), page),
    'sessions.get': (ref) => {
      return look(turns, nameOf(ref), (found) => {
        if ('record' in found) {
          const { turns: kept, head } = found.record
          const note = kept.find(({ turn }) => turn === head)?.note
          return { ...infoOfRecord(found), note }
        }
        return { ...infoOf(found), note: found.turns.get(found.head)?.note }
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
      const file = await look(turns, nameOf(ref), (found) => exported(found, turn))
      return inTurns(sealing(file, context.sealKeyOf(ref.tenant)))
    },
    'sessions.tokens': async ({ turn, start, end, ...ref }) => {
      const text = await look(turns, nameOf(ref), (found) => {
        return 'record' in found
          ? storedText(turns, storedTurn(found, turn).key, found.namespace)
          : textOf(turns, turnFor(turns, found, turn).state)
      })
      return transcriptOf(text).slice(start, end)
    },
    'sessions.share': async ({ turn, seconds, ...ref }) => {
      const name = nameOf(ref)
      const shared = await look(turns, name, (found) => {
        if ('record' in found) {
          const { turn: number, key } = storedTurn(found, turn)
          return { turn: number, stateKey: key }
        }
        const { turn: number, state } = turnFor(turns, found, turn)
        return { turn: number, stateKey: state.key }
      })
      const expiresAt = Date.now() + 1000 * seconds
      const token = sealLink({ ...name, ...shared, expiresAt }, context.linkKey())
      return { token, turn: shared.turn, expiresAt }
    },
    'sessions.open': async ({ token, ...params }) => {
      const { turn, stateKey, ...name } = openLink(token, context.linkKey(), Date.now())
      const file = await look(turns, name, (found) => {
        const key =
          'record' in found
            ? found.record.turns.find((one) => one.turn === turn)?.key
            : found.turns.get(turn)?.state.key
        return key === stateKey ? exported(found, turn) : null
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

/** Reads a session as it is here, or else as it is stored, whoever writes to it. At once: it may be deleted any time. */
async function look<T>(turns: SessionTurns, name: SessionName, read: (found: Session | StoredSession) => T) {
  const isHere = turns.find(name.namespace, name.id) !== null
  if (turns.claims === null || isHere) return await read(visible(turns, name))
  const stored = await turns.claims.find(name)
  // It may have come here meanwhile.
  return await read(stored ?? visible(turns, name))
}

async function listPage(
  turns: SessionTurns,
  namespace: string,
  { limit = Number.MAX_SAFE_INTEGER, after }: { limit?: number | undefined; after?: string | undefined },
): Promise<SessionInfo[]> {
  const { sessions, claims } = turns
  sessions.expire()
  const endAt = (cut: Session | StoredSession) => {
    return { id: cut.id, updatedAt: 'record' in cut ? cut.record.updatedAt : cut.updatedAt }
  }
  const end = after === undefined ? null : await look(turns, { namespace, id: after }, endAt)
  const infos = new Map<string, SessionInfo>()
  const addHere = () => {
    for (const session of sessions.list(namespace)) infos.set(session.id, infoOf(session))
  }
  addHere()
  if (claims !== null) {
    const stored = await claims.store.list(namespace, { limit, after: end })
    for (const session of stored) infos.set(session.id, infoOfRecord(session))
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

function turnFor({ sessions }: SessionTurns, session: Session, number: number | undefined): Turn {
  const turn = sessions.turnOf(session, number ?? session.head)
  if (turn === null) throw noTurn(session.id)
  return turn
}

function noTurn(id: string): SkeinError {
  return new SkeinError('not_found', `session ${id} has no turn yet`)
}

function storedTurn({ id, record }: StoredSession, number: number | undefined): TurnRecord {
  const wanted = number ?? record.head
  const found = record.turns.find(({ turn }) => turn === wanted)
  if (found === undefined) throw wanted === 0 ? noTurn(id) : unknownTurn(id, wanted, record)
  return found
}

/** A state that is only in the store stays there: its text alone is asked for. */
async function textOf(turns: SessionTurns, { text, key, namespace }: KeptState) {
  return text ?? storedText(turns, key, namespace)
}

function storedText({ claims }: SessionTurns, key: string, namespace: string) {
  return claims!.store.load(key, namespace)
}

async function exportStored(stored: StoredSession, number: number | undefined, { turns, identity }: CallContext) {
  const found = storedTurn(stored, number)
  const snapshot = await turns.claims!.store.load(found.key, stored.namespace)
  return inTurns(encoding(snapshot, identity, { namespace: '', isForeign: found.isForeign }))
}

function unknownTurn(id: string, turn: number, { turns }: SessionRecord): SkeinError {
  const kept = turns.map((each) => each.turn).join(', ')
  return new SkeinError('not_found', `session ${id} has no turn ${turn}; kept are: ${kept}`)
}

async function exportTurn({ state }: Turn, { turns: { mover }, identity }: CallContext): Promise<Uint8Array> {
  const { tiers } = mover
  const { isForeign } = state
  state.users++
  try {
    if (tiers.isInMemory(state)) await mover.copiedOut(state)
    else await tiers.bring(state)
    const snapshot = { ...state.text!, state: state.arrays! }
    return await inTurns(encoding(snapshot, identity, { namespace: '', isForeign }))
  } finally {
    mover.unuse(state)
  }
}

/** Describes a session from its record: another process, or none, writes to it. */
function infoOfRecord({ id, record }: StoredSession): SessionInfo {
  const { version, head, createdAt, updatedAt, ttlMs, turns } = record
  return {
    id,
    version,
    head,
    turns: turns
      .map(({ turn, parent, numTokens, createdAt: at }) => {
        return { turn, parent, numTokens, createdAt: at, tier: 'disk', isSaved: true } as const
      })
      .sort((a, b) => a.turn - b.turn),
    createdAt,
    updatedAt,
    expiresAt: expiresAt({ updatedAt, ttlMs }),
    bytes: turns.reduce((sum, { bytes }) => sum + bytes, 0),
    isBusy: false,
  }
}

function infoOf(session: Session): SessionInfo {
  const { id, version, head, createdAt, updatedAt, isBusy } = session
  const turns = [...session.turns.values()].sort((a, b) => a.turn - b.turn)
  assert(head === 0 || session.turns.has(head), 'the head of a session is no turn of it')
  return {
    id,
    version,
    head,
    turns: turns.map(({ turn, parent, createdAt: at, state }) => ({
      turn,
      parent,
      numTokens: state.numTokens,
      createdAt: at,
      tier: tierOf(state),
      isSaved: state.disk === 'saved',
    })),
    createdAt,
    updatedAt,
    expiresAt: expiresAt(session),
    bytes: turns.reduce((sum, { state }) => sum + state.bytes, 0),
    isBusy,
  }
}
