/**
 * What one commit writes, and its parts: where a store refuses something of it for what that is, it is divided until the
 * record to blame is alone.
 */
import type { SkeinError } from '../errors.ts'
import type { KeptState, Session, Turn } from './kept-state.ts'
import { headAmong } from './sessions.ts'
import type { SessionName, SessionRecord, StatePut, StoreChange } from './store/store.ts'

/** Told of the end of what it waits for. */
type Done = (error: SkeinError | null) => void

/** Waits for a session with all its states, or for the next commit. */
export interface Barrier {
  readonly session: Session | null
  readonly done: Done
}

/** The end of a claim. If somebody waits for it and it fails, it is not tried again: the session stays here. */
export interface Release {
  readonly name: SessionName
  readonly done: Done | null
}

/** Null: the session goes. Undefined: nothing of it can be written yet. */
type Written = SessionRecord | null | undefined

/** The content of one commit, as it is when that begins. */
export interface Commit {
  readonly puts: ReadonlyMap<KeptState, StatePut>
  readonly sessions: ReadonlyMap<Session, Written>
  readonly deleteKeys: readonly string[]
  readonly releases: readonly Release[]
  readonly barriers: readonly Barrier[]
}

interface Parts extends Pick<Commit, 'deleteKeys' | 'releases' | 'barriers'> {
  /** In memory. */
  readonly states: readonly KeptState[]
  readonly sessions: readonly Session[]
}

export function commitOf({ states, sessions, ...rest }: Parts): Commit {
  const puts = states.map((state) => {
    const { key, text, arrays, namespace, isForeign } = state
    return [state, { key, ...text!, floats: arrays!, namespace, isForeign }] as const
  })
  const coming = new Set(states)
  const records = sessions.map((session) => [session, session.isDeleted ? null : writtenOf(session, coming)] as const)
  return { ...rest, puts: new Map(puts), sessions: new Map(records) }
}

export function changeOf({ puts, sessions, deleteKeys, releases }: Commit): StoreChange {
  const written = [...sessions].flatMap(([{ namespace, id }, record]) => {
    return record === undefined ? [] : { namespace, id, record }
  })
  const names = releases.map(({ name: { namespace, id } }) => ({ namespace, id }))
  return { puts: [...puts.values()], sessions: written, deleteKeys, releases: names }
}

/**
 * Half of the sessions each, with all their states, and then what is about no session's record. Empty where the commit is
 * one record, or none.
 */
export function partsOf({ puts, sessions, deleteKeys, releases, barriers }: Commit): Commit[] {
  const middle = Math.ceil(sessions.size / 2)
  const halves = [[...sessions].slice(0, middle), [...sessions].slice(middle)].map((half): Commit => {
    const keys = new Set(half.flatMap(([, record]) => record?.turns.map(({ key }) => key) ?? []))
    const own = new Map(half)
    return {
      puts: new Map([...puts].filter(([{ key }]) => keys.has(key))),
      sessions: own,
      ...{ deleteKeys: [], releases: [] },
      barriers: barriers.filter(({ session }) => session !== null && own.has(session)),
    }
  })
  const rest: Commit = {
    puts: new Map([...puts].filter(([state]) => halves.every((half) => !half.puts.has(state)))),
    sessions: new Map(),
    ...{ deleteKeys, releases },
    barriers: barriers.filter(({ session }) => session === null || !sessions.has(session)),
  }
  const isOf = (part: Commit) => part.sessions.size + part.puts.size + part.barriers.length > 0
  const hasRest = isOf(rest) || deleteKeys.length + releases.length > 0
  const parts = [...halves.filter(isOf), ...(hasRest ? [rest] : [])]
  return parts.length > 1 ? parts : []
}

/** Parts, in their order, as one again. */
export function joined(parts: readonly Commit[]): Commit {
  return {
    puts: new Map(parts.flatMap(({ puts }) => [...puts])),
    sessions: new Map(parts.flatMap(({ sessions }) => [...sessions])),
    deleteKeys: parts.flatMap(({ deleteKeys }) => deleteKeys),
    releases: parts.flatMap(({ releases }) => releases),
    barriers: parts.flatMap(({ barriers }) => barriers),
  }
}

/**
 * The record of a session, restricted to states that are in the store, `coming` included; undefined when none is. So a
 * record never refers to a missing state, and after a crash the session is as it was at an earlier moment.
 */
function writtenOf(session: Session, coming: ReadonlySet<KeptState>): SessionRecord | undefined {
  const isSaved = ({ state }: Turn) => coming.has(state) || state.disk === 'saved'
  const saved = [...session.turns.values()].filter(isSaved)
  return saved.length === 0 ? undefined : recordOf(session, saved, headAmong(session, isSaved))
}

/** A session, or a part of it, in the form of the store. */
export function recordOf(session: Session, turns: Iterable<Turn>, head: number): SessionRecord {
  const { version, nextTurn, createdAt, updatedAt, ttlMs } = session
  const records = Array.from(turns, ({ turn, parent, createdAt: at, state, origin, note }) => {
    const { key, numTokens, bytes, isForeign } = state
    const made = { ...(origin === undefined ? {} : { origin }), ...(note === undefined ? {} : { note }) }
    return { turn, parent, createdAt: at, key, numTokens, bytes, isForeign, ...made }
  })
  return { version, head, nextTurn, createdAt, updatedAt, ttlMs, turns: records }
}
