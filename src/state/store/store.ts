/**
 * The store as the rest of the engine sees it: whole changes in, whole snapshots out, nothing of files or SQL. Several
 * processes may use one; a session is written by the one that has claimed it. Changes are applied in the order given;
 * reads see every change committed before them.
 */

import { SkeinError } from '../../errors.ts'
import type { ModelIdentity, Snapshot } from '../snapshot.ts'
import { decodeSnapshot, viewSnapshot } from '../snapshot-file.ts'

/** Larger states are not in the database. */
export const MAX_INLINE_BYTES = 2 ** 20
/**
 * Numbers of versions that are skipped where the last ones of a dead process may have been told of and not written: more
 * changes than a session has on their way to the store at once.
 */
export const VERSION_GAP = 1000

/** A session as it is stored: plain JSON. Its turns refer to states in the store. */
export interface SessionRecord {
  readonly version: number
  readonly head: number
  readonly nextTurn: number
  readonly createdAt: number
  readonly updatedAt: number
  readonly ttlMs: number | null
  readonly turns: readonly TurnRecord[]
}

/** Milliseconds since 1970, a whole number: stores keep it in a column of integers. Null: never. */
export function expiresAt({ updatedAt, ttlMs }: Pick<SessionRecord, 'updatedAt' | 'ttlMs'>): number | null {
  return ttlMs === null ? null : Math.ceil(updatedAt + ttlMs)
}

export interface TurnRecord {
  readonly turn: number
  readonly parent: number
  readonly createdAt: number
  readonly key: string
  readonly numTokens: number
  readonly bytes: number
  readonly isForeign: boolean
  readonly origin?: string | undefined
  readonly note?: string | undefined
}

export interface SessionName {
  readonly namespace: string
  readonly id: string
}

/** The two as one text; namespaces have no spaces. */
export function nameKey({ namespace, id }: SessionName): string {
  return `${namespace} ${id}`
}

export interface StoredSession extends SessionName {
  readonly record: SessionRecord
}

/** A change that is applied as a whole or not at all. */
export interface StoreChange {
  readonly puts: readonly StatePut[]
  /** A null record removes the session, and the claim to it. */
  readonly sessions: readonly (SessionName & { readonly record: SessionRecord | null })[]
  /** States that nothing here needs any more; those that other sessions use stay. */
  readonly deleteKeys: readonly string[]
  /** Sessions that others may claim from then on. */
  readonly releases?: readonly SessionName[] | undefined
  /** Sessions that were begun without a claim and may belong to another process by now. */
  readonly unclaimed?: readonly SessionName[] | undefined
}

export interface StatePut {
  readonly key: string
  readonly tokens: Int32Array
  readonly tail: Int32Array
  /** The numbers of the state's arrays, in their order, in any number of pieces. */
  readonly floats: readonly Float32Array[]
  readonly namespace: string
  readonly isForeign: boolean
}

/** The beginning of prompts, with its state. */
export interface SharedPrefix {
  readonly namespace: string
  readonly tokens: Int32Array
  /** As of a StatePut. They must not change before it is published. */
  readonly floats: readonly Float32Array[]
}

/**
 * Beginnings of prompts that all workers of a model share. Calls reject when the store fails; nothing depends on them.
 */
export interface PrefixStore {
  /** The longest one that a prompt begins with, of at least `minTokens` and shorter than the prompt; null: none. */
  find(namespace: string, prompt: Int32Array, minTokens: number): Promise<Snapshot | null>
  /** Others find it from then on, for as long as it is used. */
  publish(prefix: SharedPrefix): Promise<void>
  /** Nobody finds it any more. */
  remove(namespace: string, tokens: Int32Array): Promise<void>
}

/** What a tenant has in the store besides the sessions that this process has claimed. */
export interface Usage {
  readonly sessions: number
  readonly bytes: number
}

export interface ClaimAsk {
  readonly name: SessionName
  readonly mayCreate: boolean
}

export interface Claim {
  /** Null: there is none of that name. */
  readonly session: StoredSession | null
  readonly others: Usage
  /** A new session that could not be claimed because nothing can be written; it is claimed when that is possible. */
  readonly isUnclaimed?: boolean
}

export interface ListPage {
  readonly limit: number
  /** Goes on after this one. */
  readonly after: { readonly updatedAt: number; readonly id: string } | null
}

/** How long this process may rely on its claims, where they expire. */
export interface LeaseSight {
  /** Others may take what is claimed here, and writes of this process may be refused. */
  readonly isOver: boolean
  /** How often it went on after it was over. */
  readonly numLapses: number
}

export interface Store {
  /** Pause after a write that failed; absent: 2 s. */
  readonly retryMs?: number
  /** Nothing can be asked of it at present. */
  readonly isDown?: boolean
  /** Absent where there are no others to share them with. */
  readonly prefixes?: PrefixStore | undefined
  /** Makes tenants' namespaces; it lives as long as the store. */
  readonly secret: Uint8Array
  /** Null: claims last as long as the process. */
  readonly lease: LeaseSight | null
  /** Rejects with state_unavailable when the state is missing, damaged, or of another owner or model. */
  load(key: string, namespace: string): Promise<Snapshot>
  /**
   * Makes this process the only one to write to a session; one that does not exist is claimed only where it may be
   * created. Rejects with conflict while another process has it, and takes it over at once when that one is dead; with
   * misdirected and its address while that process is of another machine.
   */
  claim(name: SessionName, mayCreate: boolean): Promise<Claim>
  /** A session as it is stored, whoever writes to it. */
  find(name: SessionName): Promise<StoredSession | null>
  /** Sessions that this process has not claimed; latest change first. */
  list(namespace: string, page: ListPage): Promise<readonly StoredSession[]>
  usage(namespace: string): Promise<Usage>
  /** Deletes sessions whose time is over and that no process has claimed. */
  expire(): Promise<void>
  /**
   * Resolves when the change is on disk, with those of its sessions that were not written because others have them.
   * Rejects when, as far as is known, none of it is: with state_refused for what is in a record or state, which no other try
   * would change, else with state_unavailable.
   */
  commit(change: StoreChange): Promise<readonly SessionName[]>
  /**
   * Offers the stored state of a session that is about to be released: its next owner can fetch it from here for a
   * moment. Absent where that is impossible.
   */
  offer?(put: StatePut): Promise<void>
  /** After what was asked before. Nothing may be asked after it. */
  close(): Promise<void>
}

export interface Wanted {
  readonly key: string
  readonly namespace: string
  readonly identity: ModelIdentity
}

/**
 * Throws state_unavailable for a state of another owner, state_incompatible for one of another model, invalid_request
 * for a damaged one. `mayView`: the state may be a view of the file, which nobody changes.
 */
export function readStored(file: Uint8Array, { key, namespace, identity }: Wanted, mayView = false): Snapshot {
  const { snapshot, header } = (mayView ? viewSnapshot : decodeSnapshot)(file, identity)
  if (header.namespace !== namespace) throw new SkeinError('state_unavailable', 'it belongs to another tenant')
  if (header.key !== undefined && header.key !== key)
    throw new SkeinError('state_unavailable', 'another state is in its place')
  return snapshot
}
