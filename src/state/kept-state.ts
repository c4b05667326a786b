/**
 * One state that sessions hold, and where its copies are: in a slot of the device, in memory, in the store. At least
 * one of them is whole at any time. tiers.ts moves copies, saver.ts writes them.
 */
import { randomBytes } from 'node:crypto'
import type { StateData } from '../backend/state-shape.ts'
import type { SkeinError } from '../errors.ts'
import type { Snapshot } from './snapshot.ts'

/** The tokens of a snapshot: those consumed, and the tail after them. */
export type SnapshotText = Pick<Snapshot, 'tokens' | 'tail'>

export interface KeptState {
  /** Random; names it in the store. */
  readonly key: string
  readonly namespace: string
  /** It was imported, so it does not follow from its tokens alone. */
  readonly isForeign: boolean
  /** Tokens consumed and tail together. */
  readonly numTokens: number
  /** Size of its arrays and tokens. */
  readonly bytes: number
  /** In memory while it is in a slot or its arrays are. */
  text: SnapshotText | null
  slot: number | null
  arrays: StateData | null
  disk: 'none' | 'writing' | 'saved' | 'failed'
  /** Sessions of which it is a turn. */
  readonly holders: Set<Session>
  /** Requests that are about to begin with it: until they have, no copy in memory is dropped. */
  users: number
}

/** The facts of a state apart from its copies. */
export type StateFacts = Pick<KeptState, 'key' | 'namespace' | 'isForeign' | 'numTokens' | 'bytes'>

export function newKey(): string {
  return randomBytes(16).toString('hex')
}

/** A state of which no copy is known yet. */
export function createKept(facts: StateFacts, disk: KeptState['disk']): KeptState {
  const nowhere = { text: null, slot: null, arrays: null, users: 0 }
  return { ...facts, ...nowhere, disk, holders: new Set() }
}

export function tierOf({ slot, arrays }: KeptState): 'device' | 'memory' | 'disk' {
  if (slot !== null) return 'device'
  return arrays === null ? 'disk' : 'memory'
}

export interface Turn {
  readonly turn: number
  /** 0: the first. May name a turn that was pruned. */
  readonly parent: number
  readonly createdAt: number
  readonly state: KeptState
  /** The `origin` that the request of this answer gave, if any. */
  readonly origin?: string | undefined
  /** The note that the request of that turn left with it. */
  readonly note?: string | undefined
}

export interface Session {
  readonly namespace: string
  readonly id: string
  version: number
  head: number
  /** Numbers are never given twice. */
  nextTurn: number
  readonly turns: Map<number, Turn>
  readonly createdAt: number
  updatedAt: number
  ttlMs: number | null
  /** A request is writing; others wait in line. */
  isBusy: boolean
  readonly waiters: (() => void)[]
  isDeleted: boolean
  /** `doubted`: the lease of the claim has passed, and no write has shown yet whether another process took the session. */
  claim: 'sure' | 'doubted'
  /** Why it was forgotten here with what was unwritten of it: another process took it, or the store refused it. */
  lostBy: SkeinError | null
}
