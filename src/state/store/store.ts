/**
 * The store as the rest of the engine sees it: whole changes in, whole snapshots out, nothing of files or SQL. Changes
 * are applied in the order given; reads see every change committed before them.
 */
import type { Snapshot } from '../snapshot.ts'

/** A session as it is written: plain JSON. Its turns refer to states that are in the store. */
export interface SessionRecord {
  readonly version: number
  readonly head: number
  readonly nextTurn: number
  readonly createdAt: number
  readonly updatedAt: number
  readonly ttlMs: number | null
  readonly turns: readonly TurnRecord[]
}

export interface TurnRecord {
  readonly turn: number
  readonly parent: number
  readonly createdAt: number
  readonly key: string
  readonly numTokens: number
  readonly bytes: number
  readonly isForeign: boolean
}

export interface StoredSession {
  readonly namespace: string
  readonly id: string
  readonly record: SessionRecord
}

/** What becomes true all at once or not at all. */
export interface StoreChange {
  readonly put: StatePut | null
  /** A null record removes the session. */
  readonly sessions: readonly (Omit<StoredSession, 'record'> & {
    readonly record: SessionRecord | null
  })[]
  readonly deleteKeys: readonly string[]
}

export interface StatePut {
  readonly key: string
  readonly snapshot: Snapshot
  readonly namespace: string
  readonly isForeign: boolean
}

export interface Store {
  /** Of tenants' namespaces; it lives as long as the store does. */
  readonly secret: Uint8Array
  /** What was in it when it was opened. */
  readonly sessions: readonly StoredSession[]
  /** Rejects with state_unavailable for what is missing, damaged, of another owner or of another model. */
  load(key: string, namespace: string): Promise<Snapshot>
  /** Resolves when the change is on disk; rejects with state_unavailable when nothing of it is. */
  commit(change: StoreChange): Promise<void>
  /** After what was asked before. Nothing may be asked after it. */
  close(): Promise<void>
}
