/**
 * The protocol version of messages and rows between members of a cluster. A release that changes it increments the
 * number and still accepts the previous one; members that differ by more do not work together.
 */
import { SkeinError } from '../errors.ts'

export const PROTOCOL = 1

/** The version in a member's claims; those without one are version 1. */
export function protocolOf(claims: Readonly<Record<string, unknown>>): number {
  return typeof claims.protocol === 'number' ? claims.protocol : 1
}

export function isNear(protocol: number, own = PROTOCOL): boolean {
  return Math.abs(protocol - own) <= 1
}

/** Throws conflict. `who`: for the message; `own`: the version of the checking member. */
export function checkNear(protocol: number, who: string, own = PROTOCOL): void {
  if (isNear(protocol, own)) return
  const message = `${who} speaks protocol ${protocol} of clusters and this release ${own}: releases may be one apart; bring the cluster to one between them first`
  throw new SkeinError('conflict', message)
}
