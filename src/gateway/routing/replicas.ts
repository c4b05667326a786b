/** The workers of one model as its router sees them, and their figures put together. */
import type { EngineClient } from '../../engine/client.ts'
import type { EngineInfo } from '../../engine/messages.ts'

export interface Replica {
  readonly id: string
  /** Takes requests; null unless it is ready for them. */
  readonly client: EngineClient | null
  /** May still be asked about states; null when its process has gone. */
  readonly engine: EngineClient | null
  /** Requests that a router has sent there, or is about to, and that have not ended. */
  numInFlight: number
  /** Requests sent there, the older ones for less. */
  numTaken: number
}

/**
 * A request stays where its state is while that worker has at most so many more requests than the least busy one. Two, and
 * what chance makes of equal loads: numbers of requests that come by themselves differ by about their root, and to move
 * states for that would move them without an end (figures in docs/operations.md).
 */
export const slackAt = (meanInFlight: number): number => 2 + Math.round(1.5 * Math.sqrt(meanInFlight))

/** Requests of a worker after which what it has taken counts half: one that is new is soon like the others. */
const MAX_TAKEN = 256

/** Of several with the fewest requests in flight, the one that has lately had the fewest. Null without any. */
export function leastBusy(replicas: readonly Replica[]): Replica | null {
  const fewest = Math.min(...replicas.map(({ numInFlight }) => numInFlight))
  const idle = replicas.filter(({ numInFlight }) => numInFlight === fewest)
  if (replicas.some(({ numTaken }) => numTaken > MAX_TAKEN)) for (const replica of replicas) replica.numTaken /= 2
  return idle.sort((a, b) => a.numTaken - b.numTaken)[0] ?? null
}

/** Of one at least. */
export function leastTaken(replicas: readonly Replica[]): Replica {
  return replicas.reduce((least, other) => (other.numTaken < least.numTaken ? other : least))
}

/** A session goes from one to the other: their books are even, until what comes shows whether that was enough. */
export function shareTaken(from: Replica, to: Replica): void {
  const half = (from.numTaken + to.numTaken) / 2
  from.numTaken = half
  to.numTaken = half
}

export function take(replica: Replica): void {
  replica.numInFlight++
  replica.numTaken++
}

export function leave(replica: Replica): void {
  replica.numInFlight--
}

/**
 * Of one at least. What they differ in, like their devices, is that of the first; start states are those that all have,
 * which differ only while they are being changed.
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
