/** The workers of one model as its router sees them, and their combined figures. */
import type { EngineClient } from '../../engine/client.ts'
import type { EngineInfo } from '../../engine/messages.ts'

export interface Replica {
  readonly id: string
  /** Takes requests; null if it is not ready. */
  readonly client: EngineClient | null
  /** Answers questions about states; null if its process has gone. */
  readonly engine: EngineClient | null
  /** Requests that a router has sent or is about to send there, and that have not ended. */
  numInFlight: number
  /** Recent requests sent there; older ones count less. */
  numRecent: number
}

/**
 * A request stays with its state as long as that worker has at most this many more requests than the least busy one.
 * The slack is two plus the random variation of equal loads: independent arrivals differ by about their square root,
 * and moving states to even that out would never end (figures in docs/dev/measurements.md).
 */
export const slackAt = (meanInFlight: number): number => 2 + Math.round(1.5 * Math.sqrt(meanInFlight))

/** If a worker's count of recent requests exceeds this, all counts are halved, so that new workers soon compare. */
const MAX_RECENT = 256

/**
 * Of the replicas with the fewest requests in flight, the one with the fewest recent requests. Null without replicas.
 */
export function leastBusy(replicas: readonly Replica[]): Replica | null {
  const fewest = Math.min(...replicas.map(({ numInFlight }) => numInFlight))
  const idle = replicas.filter(({ numInFlight }) => numInFlight === fewest)
  if (replicas.some(({ numRecent }) => numRecent > MAX_RECENT)) for (const replica of replicas) replica.numRecent /= 2
  return idle.sort((a, b) => a.numRecent - b.numRecent)[0] ?? null
}

/** The replica with the fewest recent requests, of at least one. */
export function leastRecent(replicas: readonly Replica[]): Replica {
  return replicas.reduce((least, other) => (other.numRecent < least.numRecent ? other : least))
}

/** Evens the counts after a session moved, so that no further session moves until new requests show a difference. */
export function evenRecent(from: Replica, to: Replica): void {
  const half = (from.numRecent + to.numRecent) / 2
  from.numRecent = half
  to.numRecent = half
}

export function take(replica: Replica): void {
  replica.numInFlight++
  replica.numRecent++
}

export function leave(replica: Replica): void {
  replica.numInFlight--
}

/**
 * Combines at least one. Values that differ, such as devices, are those of the first; start states are those that all
 * have, since they differ only while they are being changed.
 */
export function mergedInfo(clients: readonly EngineClient[]): EngineInfo {
  const [first] = clients
  if (clients.length === 1) return first!.info
  const { startStates } = first!.info
  const common = startStates?.filter((name) => clients.every(({ info }) => info.startStates?.includes(name)))
  return {
    ...first!.info,
    ...(common === undefined ? {} : { startStates: common }),
    numSlots: sum(clients.map(({ info }) => info.numSlots)),
    maxWaiting: sum(clients.map(({ info }) => info.maxWaiting)),
    maxPromptTokens: Math.min(...clients.map(({ info }) => info.maxPromptTokens)),
  }
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0)
}
