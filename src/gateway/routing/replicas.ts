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
  /** Requests sent there. Only how many more one has than another matters. */
  numGiven: number
}

/**
 * A request stays with its state as long as that worker has at most this many more requests than the least busy one.
 * The slack is two plus the random variation of equal loads, in square roots of their mean: moving states to even that out would
 * never end (figures in docs/dev/measurements.md).
 */
export const slackAt = (meanInFlight: number, roots = 1.5): number => 2 + Math.round(roots * Math.sqrt(meanInFlight))

/** Of a session, whose state moves through the store. The largest and the smallest of eight equal loads are hardly farther apart. */
export const SESSION_ROOTS = 4

/** Above this mean of requests in flight nobody is idle for long, and a new request may go where there is one more. */
const BUSY_MEAN = 1.5
/** A worker that comes, or comes back, counts as if it had at most so many fewer: sessions go there bit by bit. */
const MOST_BEHIND = 36

export function meanInFlight(replicas: readonly Replica[]): number {
  return replicas.reduce((sum, { numInFlight }) => sum + numInFlight, 0) / replicas.length
}

/**
 * The replica that a request goes to which none has a state for: of those with the fewest requests in flight the one that
 * has been given fewest. Null without replicas.
 */
export function leastBusy(replicas: readonly Replica[]): Replica | null {
  return leastGivenWithin(replicas, meanInFlight(replicas) < BUSY_MEAN ? 0 : 1)
}

/**
 * The replica that a session goes to which none holds. It will stay there, so what counts is whose turn it is: the one that has
 * been given fewest, of those that have at most the mean more than the fewest in flight, and would keep it. Null without
 * replicas.
 */
export function homeOfNew(replicas: readonly Replica[]): Replica | null {
  const mean = meanInFlight(replicas)
  return leastGivenWithin(replicas, Math.min(mean, slackAt(mean, SESSION_ROOTS)))
}

function leastGivenWithin(replicas: readonly Replica[], slack: number): Replica | null {
  const top = Math.max(...replicas.map(({ numGiven }) => numGiven))
  for (const replica of replicas) replica.numGiven = Math.max(replica.numGiven, top - MOST_BEHIND)
  const fewest = Math.min(...replicas.map(({ numInFlight }) => numInFlight))
  return leastGiven(replicas.filter(({ numInFlight }) => numInFlight <= fewest + slack))
}

/** Between equals the one with fewer requests in flight. */
export function leastGiven(replicas: readonly Replica[]): Replica | null {
  const order = (a: Replica, b: Replica) => a.numGiven - b.numGiven || a.numInFlight - b.numInFlight
  return replicas.toSorted(order)[0] ?? null
}

export function take(replica: Replica): void {
  replica.numInFlight++
  replica.numGiven++
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
