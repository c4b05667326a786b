/** What may be done to sessions beside continuing them: the methods of EngineCalls, one function each. */
import { assert, SkeinError } from '../errors.ts'
import { type KeptState, tierOf } from '../state/kept-state.ts'
import { expiresAt, type Session, type Turn } from '../state/sessions.ts'
import { decodeSnapshot, encodeSnapshot, type ModelIdentity } from '../state/snapshot.ts'
import type { CallHandlers, EngineCall, EngineCalls, SessionInfo, SessionRef } from './messages.ts'
import { busy, refuseVersion, type SessionTurns, unknownSession } from './session-turns.ts'

export type SessionHandlers = Pick<CallHandlers, Extract<EngineCall, `sessions.${string}`>>

export interface CallContext {
  readonly turns: SessionTurns
  readonly identity: ModelIdentity
  readonly vocabSize: number
  /** Changes are reported only when they are on disk. */
  readonly isDurable: boolean
  namespaceOf(tenant: string): string
}

export function sessionCalls(context: CallContext): SessionHandlers {
  const { turns, namespaceOf } = context
  const { sessions } = turns
  const find = ({ tenant, id }: SessionRef): Session => {
    const session = turns.find(namespaceOf(tenant), id)
    if (session === null || session.version === 0) throw unknownSession(id)
    return session
  }
  const written = async (session: Session): Promise<SessionInfo> => {
    if (context.isDurable) await turns.chores.saver?.barrier()
    return infoOf(session)
  }
  return {
    'sessions.list': ({ tenant }) => {
      sessions.expire()
      return sessions.list(namespaceOf(tenant)).map(infoOf)
    },
    'sessions.get': (ref) => infoOf(find(ref)),
    'sessions.fork': ({ newId, turn, storedBytes, ...ref }) => {
      const from = find(ref)
      turns.refuseIfFull(from.namespace, storedBytes)
      return written(sessions.fork(from, newId, turn ?? from.head))
    },
    'sessions.rewind': ({ turn, ifVersion, ...ref }) => {
      const session = find(ref)
      if (session.isBusy) throw busy(session.id)
      refuseVersion(session.id, session.version, ifVersion)
      sessions.rewind(session, turn === 'undo' ? parentOfHead(session) : turn)
      return written(session)
    },
    // Unlike other changes it is always waited for: what was deleted is not on disk any more.
    'sessions.delete': async (ref) => {
      sessions.delete(find(ref))
      await turns.chores.saver?.barrier()
      return null
    },
    'sessions.release': () => {
      throw new SkeinError('state_unavailable', 'sessions cannot be released yet')
    },
    'sessions.export': async ({ turn, ...ref }) => {
      const session = find(ref)
      const found = sessions.turnOf(session, turn ?? session.head)
      if (found === null) throw new SkeinError('not_found', `session ${ref.id} has no turn yet`)
      return exportTurn(found, context)
    },
    'sessions.import': (params) => written(importSession(params, context)),
  }
}

function parentOfHead({ id, head, turns }: Session): number {
  const turn = turns.get(head)
  if (turn === undefined) throw new SkeinError('conflict', `session ${id} has no turn to undo`)
  return turn.parent
}

async function exportTurn({ state }: Turn, { turns, identity }: CallContext): Promise<Uint8Array> {
  const { isForeign } = state
  state.users++
  try {
    await inMemory(state, turns)
    const snapshot = { ...state.text!, state: state.arrays! }
    return encodeSnapshot(snapshot, identity, { namespace: '', isForeign })
  } finally {
    turns.chores.unuse(state)
  }
}

async function inMemory(state: KeptState, { chores: { tiers } }: SessionTurns): Promise<void> {
  if (tiers.isInMemory(state)) tiers.copyOut(state)
  else await tiers.bring(state)
}

function importSession(
  { tenant, id, bytes, ttlSeconds, storedBytes }: EngineCalls['sessions.import']['params'],
  { turns, identity, vocabSize, namespaceOf }: CallContext,
): Session {
  const { sessions, chores } = turns
  const { tiers, saver } = chores
  const namespace = namespaceOf(tenant)
  turns.refuseIfFull(namespace, storedBytes)
  if (turns.find(namespace, id) !== null) sessions.refuseTaken(namespace, id)
  const { snapshot } = decodeSnapshot(bytes, identity)
  const isToken = (token: number) => token >= 0 && token < vocabSize
  if (![snapshot.tokens, snapshot.tail].every((tokens) => tokens.every(isToken))) {
    throw new SkeinError('invalid_request', 'the state has tokens beyond the vocabulary')
  }
  const ttlMs = ttlSeconds === undefined ? undefined : 1000 * ttlSeconds
  const session = sessions.create(namespace, id, ttlMs)
  const state = tiers.keepCopy(snapshot, namespace, true)
  sessions.addTurn(session, 0, state)
  saver?.addState(state)
  return session
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
